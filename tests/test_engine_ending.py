"""What ends a generation, inside a block of accepted tokens too, and the record it leaves."""

import pytest
from engine_cases import (
    GREEDY,
    PROMPT,
    engine,
    garbage,
    half_right,
    letters,
    plain_tokens,
    run,
    said,
    truth_draft,
)
from fakes import FixedDraft

from fewbit.engine.request import Request
from fewbit.engine.stop import StopCondition
from fewbit.errors import NumericalError
from fewbit.records.generation import FinishReason, GenerationRecord
from fewbit.sampling import SamplingParams
from fewbit.speculate.controller import LengthController


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


def test_a_draft_with_a_shorter_context_stops_there_and_generation_goes_on():
    """vLLM #57941."""
    whole = list(PROMPT) + plain_tokens(60)
    draft = FixedDraft(lambda seen, length: whole[len(seen) : len(seen) + length], context=30)
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=60))
    tokens, _, _, record = run(engine(draft), [request])[0]
    assert tokens == whole[len(PROMPT) :]
    assert max(count + length for count, length in draft.asked[0]) <= 30
    assert "draft's context of 30" in record.draft_off


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
    assert sum(record.draft.histogram) == record.draft.blocks


def test_a_poor_draft_is_turned_off_and_the_record_says_so():
    draft = FixedDraft(lambda seen, length: [0] * length)
    params = SamplingParams(seed=1, logit_bias={0: -100})
    running = engine(draft, control=LengthController)
    record = run(running, [Request(PROMPT, params, StopCondition(max_tokens=200))])[0][3]
    assert record.draft.changes[-1].length == 0
    assert "no draft pays" in record.draft.changes[-1].reason
    assert record.draft.blocks < 30


def test_a_request_may_leave_the_draft_unused():
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=30), speculate=False)
    record = run(engine(garbage(0)), [request])[0][3]
    assert record.draft is None
