"""What an engine tells a draft: the rule it is judged by, and room in the target's store."""

import pytest
from engine_cases import GREEDY, PROMPT, engine, run, said, truth_draft
from fakes import FixedDraft

from fewbit.engine.request import Request
from fewbit.engine.stop import StopCondition
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
