"""Engines over the fake model, and what their output must be equal in."""

import itertools

import numpy as np
from fakes import FakeDecoder, FakeExecutor, FixedDraft

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.served import Drawing, Served
from fewbit.engine.stop import StopCondition
from fewbit.sampling import SamplingParams, sample_blocks
from fewbit.speculate.controller import FixedLengths

VOCABULARY = 30
GREEDY = SamplingParams(temperature=0)


def engine(
    draft=None,
    *,
    context=400,
    longest=6,
    limits=None,
    vocabulary=VOCABULARY,
    control=FixedLengths,
    draw=sample_blocks,
    branches=0,
    **model,
):
    executor = FakeExecutor(VOCABULARY, **model)
    speculation = (
        None if draft is None else Speculation(draft, longest, branches=branches, control=control)
    )
    ticks = itertools.count()
    served = Served(executor, vocabulary, context, FakeDecoder)
    return Engine(
        served,
        speculation,
        limits=limits,
        clock=lambda: next(ticks) * 0.001,
        drawing=Drawing(draw=draw),
    )


def run(running, requests):
    """Return, for each request, (tokens, text, logprobs, record)."""
    found = {i: ([], [], [], []) for i in range(len(requests))}
    for output in running.generate(requests):
        tokens, text, logprobs, record = found[output.request]
        tokens += output.tokens
        text.append(output.text)
        logprobs += output.logprobs
        if output.record:
            record.append(output.record)
    assert all(len(record) == 1 for *_, record in found.values())
    return [(t, "".join(x), p, r[0]) for t, x, p, r in found.values()]


def outputs(running, requests):
    """Return the tokens of each request, and the records."""
    results = run(running, requests)
    return [tokens for tokens, *_ in results], [record for *_, record in results]


def said(results):
    """What must not depend on drafts, batches, chunks or pages."""
    return [(t, x, p, r.finish, r.detail, r.generated_tokens) for t, x, p, r in results]


PARAMS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(seed=1),
    "cold": SamplingParams(temperature=0.5, seed=2),
    "top-k and top-p": SamplingParams(top_k=9, top_p=0.8, seed=3),
    "min-p": SamplingParams(min_p=0.2, seed=4),
    "penalties": SamplingParams(
        repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=0.5, seed=5
    ),
    "greedy penalties": SamplingParams(temperature=0, frequency_penalty=1.0),
    "bias": SamplingParams(logit_bias={3: -100, 7: 2.5, 9: -100}, seed=6),
}
PROMPT = (5, 1, 2, 3, 1, 2)


def truth_draft(tokens):
    """Proposes what the target will say, as known from a run without a draft."""
    return FixedDraft(lambda seen, length: tokens[len(seen) : len(seen) + length])


def half_right(tokens):
    def choose(seen, length):
        known = tokens[len(seen) : len(seen) + length]
        return [t if i % 3 != 2 else (t + 1) % VOCABULARY for i, t in enumerate(known)]

    return FixedDraft(choose)


def garbage(seed):
    rng = np.random.default_rng(seed)
    return FixedDraft(lambda seen, length: rng.integers(0, VOCABULARY, length).tolist())


def plain_tokens(count=60, **fields):
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=count), **fields)
    return run(engine(), [request])[0][0]


def letters(tokens):
    decoder = FakeDecoder()
    return "".join(decoder.push(t) for t in tokens) + decoder.finish()
