"""The engine over a tiny model: drafts, batches and pages never change what is generated."""

import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from fakes import FakeDecoder, FakeExecutor, FixedDraft
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.engine.engine import MEASURED_PLAIN_STEPS, Engine, Served
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.errors import NumericalError, RequestError, UsageError
from fewbit.records.generation import FinishReason, GenerationRecord
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

VOCABULARY = 30
GREEDY = SamplingParams(temperature=0)


def engine(draft=None, *, context=400, longest=6, limits=None, vocabulary=VOCABULARY, **model):
    executor = FakeExecutor(VOCABULARY, **model)
    speculation = None if draft is None else Speculation(draft, longest)
    ticks = itertools.count()
    served = Served(executor, vocabulary, context, FakeDecoder)
    return Engine(served, speculation, limits=limits, clock=lambda: next(ticks) * 0.001)


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


def changed_by(monkeypatch, params, draw):
    """Whether drawing by `draw` along a true draft changes what plain decoding says."""
    request = Request(PROMPT, params, StopCondition(max_tokens=60))
    plain = run(engine(), [request])
    draft = truth_draft(list(PROMPT) + plain[0][0] + [0] * 10)
    monkeypatch.setattr("fewbit.engine.engine.sample_blocks", draw)
    return said(run(engine(draft), [request])) != said(plain)


def heard(block, _tokens):
    return block.sampler


def test_drawing_row_by_row_is_no_bug(monkeypatch):
    for params in (PARAMS["sampled"], PARAMS["penalties"]):
        draw = drawn_row_by_row(heard, lambda block, j: block.position + j)
        assert not changed_by(monkeypatch, params, draw)


def test_the_comparison_sees_one_number_for_a_whole_block(monkeypatch):
    draw = drawn_row_by_row(heard, lambda block, j: block.position)
    assert changed_by(monkeypatch, PARAMS["sampled"], draw)


def test_the_comparison_sees_penalties_that_ignore_the_block(monkeypatch):
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

    assert changed_by(monkeypatch, params, draw)


def test_the_comparison_sees_keys_of_rejected_tokens():
    class Stale(FakeExecutor):
        """A store in which what was written once stays, as if nothing were rolled back."""

        written: ClassVar = set()

        def _row(self, token, position, pages):
            place = (pages[position // PAGE], position % PAGE)
            before = self._store[place]
            found = super()._row(token, position, pages)
            if (id(self), place) in self.written:
                self._store[place] = before
            self.written.add((id(self), place))
            return found

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
    st.booleans(),
)
def test_pages_and_rows_of_any_number_change_nothing(shapes, pages, rows, keep):
    limits = Limits(rows=rows, sequences=8, keep_prefix=keep)
    requests = [
        Request(tuple(i % VOCABULARY for i in range(n)), GREEDY, StopCondition(max_tokens=m))
        for n, m in shapes
    ]
    draft = NgramDraft(longest=2, shortest=1)
    found = run(engine(draft, pages=pages, limits=limits, repeat=5.0), requests)
    assert said(found) == [said(run(engine(repeat=5.0), [r]))[0] for r in requests]


# --- ends ---------------------------------------------------------------------------------------


def plain_tokens(count=60, **fields):
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=count), **fields)
    return run(engine(), [request])[0][0]


@pytest.mark.parametrize("position", range(4, 12))
def test_a_stop_token_inside_an_accepted_block_ends_it(position):
    """sglang #31599, transformers #47912: reported as stop, with nothing after it."""
    tokens = plain_tokens()
    end = tokens[position]
    first = tokens.index(end)
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=60, ids=frozenset([end])))
    found, text, _, record = run(engine(truth_draft(list(PROMPT) + tokens)), [request])[0]
    assert found == tokens[: first + 1]
    assert record.finish is FinishReason.STOP
    assert record.detail == f"token {end}"
    assert record.generated_tokens == first + 1
    assert text == letters(tokens[:first])


def letters(tokens):
    decoder = FakeDecoder()
    return "".join(decoder.push(t) for t in tokens) + decoder.finish()


@pytest.mark.parametrize("position", range(4, 12))
def test_a_stop_string_inside_an_accepted_block_ends_it(position):
    """vLLM #47616: ids and logprobs beyond it are trimmed."""
    tokens = plain_tokens()
    text = letters(tokens)
    string = text[position : position + 2]
    request = Request(
        PROMPT, GREEDY, StopCondition(max_tokens=60, strings=(string,)), top_logprobs=0
    )
    draft = truth_draft(list(PROMPT) + tokens)
    found, shown, logprobs, record = run(engine(draft), [request])[0]
    assert shown == text[: text.find(string)]
    assert len(logprobs) == len(found) == record.generated_tokens
    assert string in letters(found)
    assert record.detail == f"the string {string!r}"


def test_max_tokens_is_never_passed_and_held_text_is_shown_at_the_end():
    for count in range(1, 20):
        draft = truth_draft(list(PROMPT) + plain_tokens())
        request = Request(PROMPT, GREEDY, StopCondition(max_tokens=count, strings=("@@",)))
        tokens, text, _, record = run(engine(draft), [request])[0]
        assert len(tokens) == count
        assert text == letters(tokens)
        assert record.finish is FinishReason.LENGTH


@pytest.mark.parametrize("draft", [None, "truth"])
def test_a_full_context_ends_with_length(draft):
    context = 40
    whole = list(PROMPT) + plain_tokens(50)
    chosen = truth_draft(whole) if draft else None
    running = engine(chosen, context=context)
    tokens, _, _, record = run(running, [Request(PROMPT, GREEDY)])[0]
    assert len(PROMPT) + len(tokens) == context
    assert record.finish is FinishReason.LENGTH
    assert "context of 40" in record.detail
    highest = max(
        span.position + span.count for step in running._served.executor.steps for span in step.spans
    )
    assert highest <= context


def test_the_store_bounds_the_context_too():
    running = engine(context=1000, pages=2)
    assert running.context == 2 * PAGE
    tokens, *_ = run(running, [Request(PROMPT, GREEDY)])[0]
    assert len(PROMPT) + len(tokens) == 2 * PAGE


def test_a_draft_with_a_shorter_context_stops_there_and_generation_goes_on():
    """vLLM #57941."""
    whole = list(PROMPT) + plain_tokens(60)
    draft = FixedDraft(lambda seen, length: whole[len(seen) : len(seen) + length], context=30)
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=60))
    tokens, _, _, record = run(engine(draft), [request])[0]
    assert tokens == whole[len(PROMPT) :]
    assert max(count + length for count, length in draft.asked[0]) <= 30
    assert "draft's context of 30" in record.draft_off


def test_cancelling_keeps_what_was_generated():
    running = engine(NgramDraft())
    number = running.add(Request(PROMPT, GREEDY))
    seen = []
    for _ in range(10):
        for output in running.step():
            seen += output.tokens
    last = running.cancel(number)
    assert last.record.finish is FinishReason.CANCELLED
    assert last.record.generated_tokens == len(seen) > 5
    assert not running.busy
    assert running.cancel(number) is None
    assert running._scheduler._allocator.free == 64


def test_leaving_the_loop_frees_everything():
    running = engine(FixedDraft(lambda seen, length: [1] * length))
    for output in running.generate([Request(PROMPT, GREEDY), Request(PROMPT, GREEDY)]):
        if output.tokens:
            break
    assert not running.busy
    assert running._scheduler._allocator.free == 64


def test_a_logit_that_is_not_finite_ends_its_request_only():
    running = engine()
    running._served.executor.poisoned = 20
    long = Request(PROMPT, GREEDY)
    short = Request(PROMPT, GREEDY, StopCondition(max_tokens=3))
    outputs = list(running.generate([long, short]))
    last = {o.request: o for o in outputs if o.record}
    assert last[0].record.finish is FinishReason.ERROR
    assert isinstance(last[0].fault, NumericalError)
    assert "token 3" in str(last[0].fault)
    assert last[1].record.finish is FinishReason.LENGTH


def test_banned_tokens_never_appear_along_a_draft():
    """sglang #10617: the draft proposes the banned token everywhere."""
    banned = dict.fromkeys((1, 2, 3), -100.0)
    draft = FixedDraft(lambda seen, length: [1, 2, 3, 1, 2, 3][:length])
    params = SamplingParams(seed=1, logit_bias=banned)
    tokens, *_ = run(engine(draft), [Request(PROMPT, params, StopCondition(max_tokens=80))])[0]
    assert not set(tokens) & set(banned)


def test_a_draft_may_propose_too_much_and_tokens_the_target_lacks():
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=30))
    plain = run(engine(), [request])
    wild = FixedDraft(lambda seen, length: [1, -5, 2, 10**6] * length)
    assert said(run(engine(wild), [request])) == said(plain)


def test_padding_of_the_vocabulary_is_never_generated():
    """vLLM #7252."""
    request = Request(PROMPT, SamplingParams(temperature=5, seed=1), StopCondition(max_tokens=200))
    tokens, *_ = run(engine(vocabulary=20), [request])[0]
    assert max(tokens) < 20


# --- a conversation's prefix --------------------------------------------------------------------


def test_a_kept_prefix_is_used_and_changes_nothing():
    running = engine(limits=Limits(keep_prefix=True), repeat=2.0)
    stop = StopCondition(max_tokens=70)
    tokens, *_ = run(running, [Request(PROMPT, GREEDY, stop)])[0]
    longer = (*PROMPT, *tokens, 4, 4)
    before = len(running._served.executor.steps)
    warm = run(running, [Request(longer, GREEDY, stop)])
    cold = run(engine(repeat=2.0), [Request(longer, GREEDY, stop)])
    assert said(warm) == said(cold)
    assert warm[0][3].cached_tokens == len(PROMPT) + len(tokens) - 1
    assert cold[0][3].cached_tokens == 0
    assert len(running._served.executor.steps[before].tokens) == 3


# --- records ------------------------------------------------------------------------------------


def test_acceptance_is_counted_per_position():
    whole = list(PROMPT) + plain_tokens(62)
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=62))
    record = run(engine(half_right(whole), longest=4), [request])[0][3]
    first, second, third, *_ = record.draft.positions
    assert first.tested == first.accepted == first.proposed
    assert second.tested == second.accepted
    assert third.accepted == 0 < third.tested
    assert record.draft.acceptance_length == pytest.approx(3.0, abs=0.1)


def test_times_cover_the_run_and_every_gap_is_kept():
    whole = list(PROMPT) + plain_tokens(60)
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=60))
    record: GenerationRecord = run(engine(truth_draft(whole)), [request])[0][3]
    times = record.times
    assert len(times.gaps) == 59
    assert times.gaps.count(0.0) > 20
    assert times.first_token + sum(times.gaps) <= times.total
    spent = times.queue + times.prompt + times.draft + times.verify + times.plain
    assert 0 < spent <= times.total
    assert record.plain_steps >= MEASURED_PLAIN_STEPS
    assert record.tokens_per_second > record.plain_tokens_per_second


def test_a_poor_draft_is_turned_off_and_the_record_says_so():
    draft = FixedDraft(lambda seen, length: [0] * length)
    params = SamplingParams(seed=1, logit_bias={0: -100})
    record = run(engine(draft), [Request(PROMPT, params, StopCondition(max_tokens=200))])[0][3]
    assert record.draft.changes[-1].length == 0
    assert "no draft pays" in record.draft.changes[-1].reason
    assert record.draft.blocks < 30


def test_a_request_may_leave_the_draft_unused():
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=30), speculate=False)
    record = run(engine(garbage(0)), [request])[0][3]
    assert record.draft is None


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


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request((1,) * 400), "has 400 tokens and the context holds 400"),
        (Request((1, 30)), "token 30, but the vocabulary has 30"),
        (Request((-1,)), "token -1"),
        (Request((1,), SamplingParams(logit_bias={30: 1.0})), "logit_bias names token 30"),
    ],
)
def test_a_request_the_model_cannot_serve_is_refused_before_any_step(request_, words):
    running = engine()
    with pytest.raises(RequestError, match=words):
        list(running.generate([Request((1,)), request_]))
    assert not running.busy


def test_limits_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="8 sequences and 4 rows"):
        Limits(rows=4, sequences=8)
