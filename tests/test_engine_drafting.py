"""What an engine tells a draft: the rule it is judged by, and room in the target's store."""

import pytest
from engine_cases import GREEDY, PROMPT, engine, run, said, truth_draft
from fakes import FixedDraft

from fewbit.engine.request import Request
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.report.generation import describe_generation
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams
from fewbit.speculate.verifier import Verifier


class WritingDraft(FixedDraft):
    """Drafts what it is told, and spoils the target's keys from `computed` on, as it may."""

    def __init__(self, choose, executor):
        super().__init__(choose, shares_store=True)
        self._executor = executor

    def propose(self, queries):
        for query in queries:
            assert query.computed == len(query.tokens) - 1
            for position in range(query.computed, len(query.tokens) + query.length):
                self._executor._write(position, query.pages.tolist(), 999)
        return super().propose(queries)


def test_a_draft_on_the_targets_store_has_room_and_spoils_nothing():
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=3 * PAGE))
    plain = run(engine(), [request])
    truth = truth_draft(list(PROMPT) + plain[0][0] + [0] * 10)
    running = engine(truth)
    draft = WritingDraft(truth._choose, running._served.executor)
    running._drafting.speculation = running._drafting.speculation.__class__(draft, 6)
    assert said(run(running, [request])) == said(plain)
    assert len({len(query.pages) for query in draft.queries}) > 1


def test_without_free_pages_a_draft_on_the_store_is_not_asked():
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=PAGE))
    draft = FixedDraft(lambda seen, length: [0] * length, shares_store=True)
    run(engine(draft, pages=1), [request])
    assert draft.asked
    assert all(count + length <= PAGE for count, length in draft.asked[0])


class CountingDraft(FixedDraft):
    """Drafts what is never true, and counts it."""

    drafted = 0

    def propose(self, queries):
        found = super().propose(queries)
        self.drafted += sum(len(proposal.tokens) for proposal in found)
        return found


@pytest.mark.parametrize(("rows", "missing"), [(8, True), (512, False)])
def test_drafted_tokens_that_no_row_is_free_for_are_counted_and_said(rows, missing):
    """Half of a step's rows are for drafts."""
    draft = CountingDraft(lambda seen, length: [0] * length)
    running = engine(draft, limits=Limits(rows=rows, sequences=1))
    [(_, _, _, record)] = run(running, [Request(PROMPT, GREEDY, StopCondition(20))])
    left_out = record.draft.tokens_left_out
    assert (left_out > 0) is missing
    assert left_out + sum(position.proposed for position in record.draft.positions) == draft.drafted
    assert running.record.speculation.tokens_left_out == left_out
    words = f"drafted tokens left out, as no cache page or row was free: {left_out}"
    assert (words in describe_generation(record)) is missing


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("pages", "missing"), [(5, True), (6, False)])
def test_drafted_tokens_that_no_page_is_free_for_are_counted(pages, missing, shared):
    """Two sequences of three pages, admitted with two, come to the end of these together."""
    draft = FixedDraft(lambda seen, length: [0] * length, shares_store=shared)
    running = engine(draft, pages=pages)
    stop = StopCondition(2 * PAGE + 20)
    requests = [Request(prompt, GREEDY, stop) for prompt in (PROMPT, PROMPT[::-1])]
    found = run(running, requests)
    assert said(found) == said(run(engine(), requests))
    counts = [record.draft.tokens_left_out for *_, record in found]
    assert (max(counts) > 0) is missing
    assert running.record.speculation.tokens_left_out == sum(counts)


@pytest.mark.parametrize(
    ("params", "verifier"),
    [
        (GREEDY, Verifier.MATCH),
        (SamplingParams(seed=4), Verifier.MATCH),
        (SamplingParams(), Verifier.BLOCK),
    ],
)
def test_a_draft_is_told_how_it_will_be_judged(params, verifier):
    draft = FixedDraft(lambda seen, length: [0] * length)
    run(engine(draft), [Request(PROMPT, params, StopCondition(max_tokens=9))])
    assert {query.verifier for query in draft.queries} == {verifier}
