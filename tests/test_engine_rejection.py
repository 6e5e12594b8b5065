"""Drafts that draw, through the whole engine: the law of the output, and what must never appear."""

import itertools

import numpy as np
import pytest
from engine_cases import PARAMS, PROMPT, engine, run, said
from fakes import FakeExecutor
from sampled_draft import SampledDraft

from fewbit.engine.request import Request
from fewbit.engine.served import Drawing
from fewbit.engine.stop import StopCondition
from fewbit.report.generation import describe_generation
from fewbit.runtime.step import Span, StepInput
from fewbit.sampling import SamplingParams, TokenSampler, Verifier, sample_blocks

SMALL = 5
"""The tokens that these requests may draw; the bias bans the others."""
ALLOWED = dict.fromkeys(range(SMALL, 30), -100.0)
REQUESTS = 2500
COUNT = 3


def logits_after(tokens, executor):
    """The fake model's logits after a text, by a run of its own."""
    pages = np.arange(1 + len(tokens) // 64, dtype=np.int32)
    span = Span(0, len(tokens), 0, pages)
    last = np.array([len(tokens) - 1], np.int32)
    return executor.step(StepInput(np.array(tokens, np.int32), (span,), last))[0]


def near_target(noise=1.0, seed=9, **model):
    """A draft near the target: its logits and some noise that depends on the last token."""
    executor = FakeExecutor(30, **model)
    shift = np.random.default_rng(seed).normal(0, noise, (30, 30)).astype(np.float32)
    return lambda text: logits_after(text, executor) + shift[text[-1]]


def law_of_text(params, count):
    """The probability of each text of `count` tokens, float64."""
    executor = FakeExecutor(30)
    law = {(): 1.0}
    for _ in range(count):
        grown = {}
        for text, weight in law.items():
            sampler = TokenSampler(params, seed=0, prompt=PROMPT)
            sampler.remember(text)
            row = sampler.probabilities(logits_after([*PROMPT, *text], executor))
            for token in np.flatnonzero(row).tolist():
                grown[(*text, token)] = weight * row[token]
        law = grown
    return law


def generated(params, draft, *, count=COUNT, requests=REQUESTS, draw=sample_blocks, longest=2):
    running = engine(draft, longest=longest, draw=draw)
    request = Request(PROMPT, params, StopCondition(max_tokens=count))
    return [tuple(tokens) for tokens, *_ in run(running, [request] * requests)]


def worst_deviation(texts, law):
    """The largest deviation of the count of any set of texts that agree in one token, in sigmas."""
    worst = 0.0
    for place, token in itertools.product(range(COUNT), range(SMALL)):
        p = sum(weight for text, weight in law.items() if text[place] == token)
        seen = sum(text[place] == token for text in texts)
        sigma = np.sqrt(len(texts) * p * (1 - p))
        if sigma > 3:
            worst = max(worst, abs(seen - len(texts) * p) / sigma)
    return worst


UNSEEDED = [
    SamplingParams(logit_bias=ALLOWED),
    SamplingParams(logit_bias=ALLOWED, temperature=1.5, presence_penalty=2.0),
]


@pytest.fixture(scope="module", params=UNSEEDED)
def params(request):
    return request.param


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_the_output_follows_the_target(params, noise):
    """15 counts; one is beyond 4.5 sigma in about one run of 10,000, and the seeds are fixed."""
    texts = seeded(generated, params, SampledDraft(near_target(noise)))
    assert worst_deviation(texts, law_of_text(params, COUNT)) < 4.5


def seeded(call, *args, **fields):
    """Run with engine-chosen seeds that are the same in every run."""
    numbers = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewbit.engine.engine.secrets.randbits", lambda _: next(numbers))
        return call(*args, **fields)


def judged_unpenalized(logits, blocks, **others):
    """vLLM #18902: rows of a block are judged by the penalties at its start."""
    drawn = []
    for block in blocks:
        tokens, sampler = [], block.sampler
        for j in range(len(block.draft) + 1):
            rest = block.draft[j:]
            alone = block._replace(
                sampler=sampler.fork(), row=block.row + j, draft=rest[:1], verifier=Verifier.TOKEN,
                probabilities=None if not rest else block.probabilities[j:],
                position=block.position + j,
            )  # fmt: skip
            if not rest:
                alone = alone._replace(verifier=Verifier.MATCH)
            found = sample_blocks(logits, [alone], **others)[0]
            tokens.append(found.tokens[0])
            if not rest or found.tokens[0] != rest[0]:
                break
        block.sampler.remember(tokens)
        drawn.append(found._replace(tokens=tokens))
    return drawn


def test_the_count_sees_an_unpenalized_position():
    params = UNSEEDED[1]
    texts = seeded(generated, params, SampledDraft(near_target(0.5)), draw=judged_unpenalized)
    assert worst_deviation(texts, law_of_text(params, COUNT)) > 6


def q_of_another(logits, blocks, **others):
    """transformers #47932: the q that judges is not the q that was drawn from."""
    flat = [
        b if b.probabilities is None else b._replace(
            probabilities=np.where(b.probabilities > 0, np.sqrt(b.probabilities), 0)
        )
        for b in blocks
    ]  # fmt: skip
    return sample_blocks(logits, flat, **others)


def test_the_count_sees_a_wrong_q():
    params = UNSEEDED[0]
    texts = seeded(generated, params, SampledDraft(near_target(2.0)), draw=q_of_another)
    assert worst_deviation(texts, law_of_text(params, COUNT)) > 8


@pytest.mark.parametrize("name", list(PARAMS))
@pytest.mark.parametrize("support", [None, np.arange(0, 30, 2, dtype=np.int32)])
def test_a_seeded_request_says_the_same_with_a_draft_that_draws(name, support):
    target = near_target(0.7)
    logits = target if support is None else lambda text: target(text)[support]
    request = Request(PROMPT, PARAMS[name], StopCondition(max_tokens=40), top_logprobs=2)
    drafted = run(engine(SampledDraft(logits, support=support)), [request])
    assert said(drafted) == said(run(engine(), [request]))
    assert sum(p.accepted for p in drafted[0][3].draft.positions) > 3


def test_coupled_draws_agree_more_often_than_independent_ones():
    """Seeded at temperature 1: with the draft's own noise no more than chance would be accepted."""
    request = Request(PROMPT, SamplingParams(seed=5), StopCondition(max_tokens=200))
    accepted = {}
    for kind, draft in {"coupled": Coupled, "independent": Uncoupled}.items():
        record = run(engine(draft(near_target(0.5)), longest=1), [request])[0][3]
        accepted[kind] = record.draft.positions[0].accepted / record.draft.positions[0].tested
    assert accepted["coupled"] > accepted["independent"] + 0.2


class Coupled(SampledDraft):
    pass


class Uncoupled(SampledDraft):
    """Draws with other noise, and so is a draft by chance alone."""

    def propose(self, queries):
        own = [
            Query(q.tokens, q.length, TokenSampler(SamplingParams(), seed=77), q.verifier)
            for q in queries
        ]
        return super().propose(own)


class Query:
    def __init__(self, tokens, length, sampler, verifier):
        self.tokens, self.length, self.sampler, self.verifier = tokens, length, sampler, verifier


def test_banned_and_truncated_tokens_never_appear():
    """sglang #10617 and vLLM #42744, at every drafted position."""
    params = SamplingParams(logit_bias={3: -100, 9: -100}, min_p=0.3)
    executor = FakeExecutor(30)
    texts = generated(params, SampledDraft(near_target(2.0)), count=12, requests=60, longest=4)
    for text in texts:
        for place, token in enumerate(text):
            sampler = TokenSampler(params, seed=0)
            row = sampler.probabilities(logits_after([*PROMPT, *text[:place]], executor))
            assert row[token] > 0


def test_log_probabilities_are_those_of_the_target():
    executor = FakeExecutor(30)
    request = Request(PROMPT, SamplingParams(), StopCondition(max_tokens=30), top_logprobs=1)
    tokens, _, logprobs, record = run(engine(SampledDraft(near_target(0.7))), [request])[0]
    assert sum(p.accepted for p in record.draft.positions) > 3
    assert len(logprobs) == len(tokens) == 30
    for place, (token, found) in enumerate(zip(tokens, logprobs, strict=True)):
        row = logits_after([*PROMPT, *tokens[:place]], executor).astype(np.float64)
        assert found.logprob == pytest.approx(row[token] - np.log(np.exp(row).sum()), abs=1e-5)


def test_a_record_says_whether_its_seed_repeats_it():
    draft = SampledDraft(near_target())
    seeds = {}
    for name, params in {"seeded": SamplingParams(seed=3), "unseeded": SamplingParams()}.items():
        request = Request(PROMPT, params, StopCondition(max_tokens=20))
        plain, drafted = (run(engine(d), [request])[0][3] for d in (None, draft))
        assert plain.repeats
        seeds[name] = drafted.repeats
        assert any("not to be repeated" in line for line in describe_generation(drafted)) != (
            drafted.repeats
        )
    assert seeds == {"seeded": True, "unseeded": False}


def test_a_stop_inside_an_accepted_block_ends_it():
    """vLLM #47616, sglang #31599: nothing beyond the stop is reported, neither ids nor values."""
    for stop in range(1, 12):
        condition = StopCondition(max_tokens=20, ids=frozenset(range(stop)))
        request = Request(PROMPT, SamplingParams(), condition, top_logprobs=0)
        for tokens, _, logprobs, record in run(
            engine(SampledDraft(near_target(0.2))), [request] * 5
        ):
            inside = [token for token in tokens if token < stop]
            assert inside == tokens[-1:] or (not inside and record.finish.value == "length")
            assert len(logprobs) == len(tokens) == record.generated_tokens


def test_seeded_and_unseeded_requests_share_a_batch():
    """vLLM #9441: a request with a seed says the same beside any others."""
    seeded_request = Request(PROMPT, PARAMS["sampled"], StopCondition(max_tokens=30))
    other = Request(PROMPT[:3], SamplingParams(), StopCondition(max_tokens=30))
    alone = run(engine(), [seeded_request])
    mixed = run(engine(SampledDraft(near_target(0.7))), [other, seeded_request, other])
    assert said([mixed[1]]) == said(alone)


def test_a_drawing_of_ones_own_takes_the_place_of_the_pipeline():
    asked = []

    def draw(logits, blocks, **others):
        asked.extend(block.verifier for block in blocks if block.draft)
        return sample_blocks(logits, blocks, **others)

    assert Drawing().draw is sample_blocks
    generated(SamplingParams(), SampledDraft(near_target()), requests=3, draw=draw)
    assert set(asked) == {Verifier.BLOCK}
