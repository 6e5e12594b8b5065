"""The engine over a tiny model: drafts, batches and pages never change what is generated."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from engine_cases import (
    GREEDY,
    PARAMS,
    PROMPT,
    VOCABULARY,
    engine,
    garbage,
    half_right,
    run,
    said,
    truth_draft,
)
from fakes import FakeExecutor
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.engine.request import Request
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.errors import RequestError, UsageError
from fewbit.runtime.step import PAGE, Span, StepInput
from fewbit.sampling import (
    Block,
    Drawn,
    History,
    SamplingParams,
    TokenSampler,
    distribution,
    sample_blocks,
)
from fewbit.speculate.drafts import NgramDraft


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
@pytest.mark.parametrize("repeat", [0.0, 6.0])
@pytest.mark.parametrize(
    "stop",
    [
        StopCondition(max_tokens=60),
        StopCondition(max_tokens=100, ids=frozenset([11, 17])),
        StopCondition(max_tokens=100, strings=("ca", "zz", "mk")),
    ],
    ids=["max_tokens", "ids", "strings"],
)
def test_the_output_with_a_draft_is_the_output_without_one(params, stop, repeat):
    request = Request(PROMPT, params, stop, top_logprobs=2)
    plain = run(engine(repeat=repeat), [request])
    everything = list(PROMPT) + plain[0][0] + [0] * 10
    drafts = [NgramDraft(longest=3, shortest=1), truth_draft(everything), half_right(everything)]
    for draft in [*drafts, garbage(1)]:
        assert said(run(engine(draft, repeat=repeat), [request])) == said(plain)


# --- planted bugs: the comparison above must see each of them -----------------------------------


def drawn_row_by_row(sampler_at, position_at):
    """A stand-in for `sample_blocks` that draws each row of a block by a call of its own."""

    def draw(logits, blocks, **others):
        block, tokens = blocks[0], []
        for j in range(len(block.draft) + 1):
            alone = Block(sampler_at(block, tokens), block.row + j, position_at(block, j))
            tokens += sample_blocks(logits, [alone], **others)[0].tokens
            if j < len(block.draft) and tokens[-1] != block.draft[j]:
                break
        return [Drawn(tokens, [])]

    return draw


def changed_by(params, draw):
    """Whether drawing by `draw` along a true draft changes what plain decoding says."""
    request = Request(PROMPT, params, StopCondition(max_tokens=60))
    plain = run(engine(), [request])
    draft = truth_draft(list(PROMPT) + plain[0][0] + [0] * 10)
    return said(run(engine(draft, draw=draw), [request])) != said(plain)


def heard(block, _tokens):
    return block.sampler


def test_drawing_row_by_row_is_no_bug():
    for params in (PARAMS["sampled"], PARAMS["penalties"]):
        draw = drawn_row_by_row(heard, lambda block, j: block.position + j)
        assert not changed_by(params, draw)


def test_the_comparison_sees_one_number_for_a_whole_block():
    draw = drawn_row_by_row(heard, lambda block, j: block.position)
    assert changed_by(PARAMS["sampled"], draw)


def test_the_comparison_sees_penalties_that_ignore_the_block():
    """vLLM #18902: every row of a block is judged by the penalties at its start."""
    params = PARAMS["greedy penalties"]
    made = []

    def deaf(_block, _tokens):
        sampler = TokenSampler(params, seed=0, prompt=PROMPT)
        sampler.remember(made)
        return sampler

    inner = drawn_row_by_row(deaf, lambda block, j: block.position + j)

    def draw(logits, blocks, **others):
        drawn = inner(logits, blocks, **others)
        made.extend(drawn[0].tokens)
        return drawn

    assert changed_by(params, draw)


def test_the_comparison_sees_keys_of_rejected_tokens():
    class Stale(FakeExecutor):
        """A store in which what was written once stays, as if nothing were rolled back."""

        written: ClassVar = set()

        def _write(self, position, pages, state):
            place = (id(self), pages[position // PAGE], position % PAGE)
            if place not in self.written:
                super()._write(position, pages, state)
            self.written.add(place)

    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=60))
    plain = run(engine(), [request])
    running = engine(half_right(list(PROMPT) + plain[0][0] + [0] * 10))
    running._served = replace(running._served, executor=Stale(VOCABULARY))
    assert said(run(running, [request])) != said(plain)


def test_the_fake_model_can_be_predicted_and_drafts_are_accepted():
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=80))
    plain = run(engine(), [request])
    draft = truth_draft(list(PROMPT) + plain[0][0])
    record = run(engine(draft), [request])[0][3]
    assert record.draft.acceptance_length > 5
    assert all(p.accepted == p.tested == p.proposed for p in record.draft.positions)


def test_the_first_token_follows_the_one_pipeline():
    """Against `distribution` on the fake's own logits, for a history with penalties."""
    params = PARAMS["penalties"]
    running = engine()
    tokens = run(running, [Request(PROMPT, params, StopCondition(max_tokens=5))])[0][0]
    seen = list(PROMPT)
    for token in tokens:
        executor = FakeExecutor(VOCABULARY)
        logits = replay(executor, seen)
        truth = distribution(logits, params, History(np.array(seen, np.int32), len(PROMPT)))
        sampler = TokenSampler(params, seed=5, prompt=PROMPT)
        sampler.remember(seen[len(PROMPT) :])
        np.testing.assert_allclose(sampler.probabilities(logits), truth, rtol=1e-5)
        assert truth[token] > 0
        seen.append(token)


def replay(executor, tokens):
    pages = np.arange(2, dtype=np.int32)
    ids, last = np.array(tokens, np.int32), np.array([len(tokens) - 1], np.int32)
    return executor.step(StepInput(ids, (Span(0, len(ids), 0, pages),), last))[0]


# --- batches, chunks, pages ---------------------------------------------------------------------


def many_requests():
    rng = np.random.default_rng(7)
    params = list(PARAMS.values())
    return [
        Request(
            tuple(rng.integers(0, VOCABULARY, int(rng.integers(1, 200))).tolist()),
            params[i % len(params)],
            StopCondition(max_tokens=int(rng.integers(1, 50)), ids=frozenset([13])),
        )
        for i in range(12)
    ]


@pytest.mark.parametrize("draft", [None, "ngram"])
@pytest.mark.parametrize(
    ("limits", "pages"),
    [
        (Limits(), 64),
        (Limits(rows=16, sequences=16), 64),
        (Limits(rows=64, sequences=3), 64),
        (Limits(rows=100, sequences=12), 7),
    ],
    ids=["wide", "narrow", "few", "short of pages"],
)
def test_a_request_says_the_same_alone_and_in_any_batch(limits, pages, draft):
    requests = many_requests()
    alone = [run(engine(repeat=4.0), [request])[0] for request in requests]
    chosen = NgramDraft(longest=3, shortest=1) if draft else None
    together = run(engine(chosen, limits=limits, pages=pages, repeat=4.0), requests)
    assert said(together) == said(alone)


def test_seeds_repeat_and_differ():
    def text(params, sample=0, **others):
        request = Request(PROMPT, params, StopCondition(max_tokens=30), sample=sample)
        return run(engine(**others), [request])[0][0]

    assert text(SamplingParams(seed=1)) == text(SamplingParams(seed=1))
    assert text(SamplingParams(seed=1)) != text(SamplingParams(seed=2))
    assert text(SamplingParams(seed=1)) != text(SamplingParams(seed=1), sample=1)
    assert text(SamplingParams()) != text(SamplingParams())


def test_a_seed_the_engine_chose_is_reported_and_repeats():
    request = Request(PROMPT, SamplingParams(), StopCondition(max_tokens=30))
    tokens, _, _, record = run(engine(), [request])[0]
    again = Request(PROMPT, SamplingParams(seed=record.seed), StopCondition(max_tokens=30))
    assert run(engine(), [again])[0][0] == tokens


def test_requests_with_and_without_seeds_share_a_batch():
    """vLLM #9441, #10863."""
    stop = StopCondition(max_tokens=25)
    seeded = Request(PROMPT, SamplingParams(seed=8), stop)
    free = Request(PROMPT, SamplingParams(), stop)
    alone = run(engine(), [seeded])[0]
    mixed = run(engine(NgramDraft()), [free, seeded, free, seeded])
    assert said(mixed[1::2]) == said([alone, alone])
    assert mixed[0][0] != mixed[2][0]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 130), st.integers(1, 40)), min_size=1, max_size=6),
    st.integers(5, 9),
    st.integers(8, 90),
)
def test_pages_and_rows_of_any_number_change_nothing(shapes, pages, rows):
    limits = Limits(rows=rows, sequences=8)
    requests = [
        Request(tuple(i % VOCABULARY for i in range(n)), GREEDY, StopCondition(max_tokens=m))
        for n, m in shapes
    ]
    draft = NgramDraft(longest=2, shortest=1)
    found = run(engine(draft, pages=pages, limits=limits, repeat=5.0), requests)
    assert said(found) == [said(run(engine(repeat=5.0), [r]))[0] for r in requests]


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ()}, "no tokens"),
        ({"prompt": (1,), "sample": -1}, "sample is -1"),
        ({"prompt": (1,), "top_logprobs": -1}, "top_logprobs is -1"),
    ],
)
def test_a_request_that_cannot_be_is_refused(fields, words):
    with pytest.raises(RequestError, match=words):
        Request(**fields)


def test_limits_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="8 sequences and 4 rows"):
        Limits(rows=4, sequences=8)
