"""Two drafts as one under a simulated clock: costs and acceptance of each are kept apart."""

from functools import cache

import pytest
from fakes import FakeDecoder
from simulated import GREEDY, LARGE, LOOKUP, STEP, VOCABULARY, ChanceDraft, Clock, CountingExecutor
from simulated import serve as serve_one

from fewbit.engine import drafting
from fewbit.engine.costing import measure_costs
from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.records.costs import CostTable, DraftCosts
from fewbit.report.costs import describe_costs
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.costs import CostModel
from fewbit.speculate.drafts import Proposal
from fewbit.speculate.ledger import EXPLORATION_STEPS, SHARE

NAMES = ("lookup", "model")


def both(*tables):
    """Return the costs of a target with both drafts."""
    own = tuple(
        DraftCosts(
            draft=name,
            sequences=t.sequences,
            seconds=t.draft_seconds,
            fixed=t.draft_fixed,
            read=t.draft_read,
        )
        for name, t in zip(NAMES, tables, strict=True)
    )
    return CostTable(rows=LARGE.rows, seconds=LARGE.seconds, parts=own)


TABLE = both(LOOKUP, LARGE)


class Named(ChanceDraft):
    """A draft with a name, which has something at some positions only."""

    def __init__(self, name, clock, table, chance, *, has=lambda position: True, context=None):
        super().__init__(clock, table, chance)
        self.name, self._has, self.context = name, has, context

    def propose(self, queries):
        if all(query.length == 1 and not self._table.draft_read for query in queries):
            return [self._first(query) for query in queries]  # the look whether it has any
        asked = [query for query in queries if self._has(len(query.tokens))]
        found = iter(super().propose(asked) if asked else [])
        return [next(found) if query in asked else Proposal(()) for query in queries]

    def _first(self, query):
        return self._proposal(query) if self._has(len(query.tokens)) else Proposal(())


def serve(lookup, model, *, table=TABLE, tokens=600, requests=1, has=None, context=None):
    """Return (seconds, records, engine, drafts) with two drafts of these chances."""
    clock = Clock()
    repeats = has or (lambda position: position // 20 % 2 == 0)
    first = Named("lookup", clock, LOOKUP, lookup, has=repeats)
    second = Named("model", clock, LARGE, model, context=context)
    served = Served(CountingExecutor(clock, LARGE), VOCABULARY, 100_000, FakeDecoder)
    speculation = Speculation(CombinedDraft(first, second), 8, table)
    engine = Engine(served, speculation, limits=Limits(stall=1e9), clock=clock)
    asked = Request(tuple(i % VOCABULARY for i in range(40)), GREEDY, StopCondition(tokens))
    records = [o.record for o in engine.generate([asked] * requests) if o.record]
    return clock.now, records, engine, (first, second)


def always(chance):
    return lambda *_: chance


@cache
def plain(tokens=600, requests=1):
    return serve_one(LARGE, tokens=tokens, requests=requests, prompt=40)[0]


def blocks(engine):
    return [part.blocks for part in engine.record.speculation.parts]


def test_a_part_that_never_pays_is_not_asked_and_the_other_is():
    seconds, records, engine, (_, model) = serve(always(1.0), always(0.0))
    few, many = blocks(engine)[1], blocks(engine)[0]
    assert few < 12 < many
    assert len(model.calls) < 20
    assert plain() / seconds > 1.6
    reasons = [change.reason for change in records[0].draft.changes]
    assert any(reason.startswith("model: ") and "no draft pays" in reason for reason in reasons)
    assert any(reason.startswith("lookup: ") for reason in reasons)


def test_as_one_draft_the_bad_part_would_spoil_the_good_one(monkeypatch):
    """The negative control: with one survival and one cost for both, less is gained."""
    apart, *_ = serve(always(1.0), always(0.2))
    monkeypatch.setattr(drafting, "asked_parts", lambda draft: (draft,))
    monkeypatch.setattr(CombinedDraft, "able", lambda self, query: (0,))
    together, *_ = serve(always(1.0), always(0.2), table=LARGE)
    assert apart < 0.97 * together


def test_where_the_first_is_poor_the_second_is_asked_though_the_first_has_something():
    seconds, _, engine, _ = serve(always(0.05), always(0.95), has=always(True))
    assert blocks(engine)[1] > 10 * blocks(engine)[0]
    alone, *_ = serve_one(LARGE, always(0.95), tokens=600, prompt=40)
    assert seconds < 1.05 * alone


def test_two_good_parts_gain_more_than_either():
    seconds, *_ = serve(always(1.0), always(0.9))
    one, *_ = serve(always(1.0), always(0.0))
    other, *_ = serve_one(LARGE, always(0.9), tokens=600, prompt=40)
    assert seconds < min(one, other)


def test_what_each_did_adds_up():
    _, records, engine, _ = serve(always(0.9), always(0.8))
    found = engine.record.speculation
    assert [part.draft for part in found.parts] == list(NAMES)
    assert sum(part.blocks for part in found.parts) == found.blocks == records[0].draft.blocks
    assert sum(part.draft_seconds for part in found.parts) == pytest.approx(found.draft_seconds)
    assert sum(part.wasted for part in found.parts) == found.wasted
    assert serve_one(LARGE, always(0.8))[2].record.speculation.parts == ()


@pytest.mark.parametrize("requests", [1, 16])
@pytest.mark.parametrize("lookup", [0.0, 1.0])
@pytest.mark.parametrize("model", [0.0, 0.6])
@pytest.mark.parametrize("table", [TABLE, None], ids=["measured", "learned"])
def test_the_bound_holds_for_both_together(lookup, model, requests, table):
    tokens = 300 if requests == 1 else 30
    seconds, _, engine, _ = serve(
        always(lookup), always(model), tokens=tokens, requests=requests, table=table
    )
    budget = engine.record.speculation.exploration_seconds
    assert budget <= (EXPLORATION_STEPS * 2.2 + 4 * requests) * STEP
    assert seconds <= (1 + SHARE) * plain(tokens, requests) + budget


def test_a_full_context_ends_one_part_and_is_said():
    _, records, *_ = serve(always(0.5), always(1.0), context=300)
    (change,) = [c for c in records[0].draft.changes if "context of 300 tokens is full" in c.reason]
    assert change.reason.startswith("model: ")
    assert records[0].draft_off == ""
    assert 250 < change.token < 262


def test_each_part_is_measured_by_itself():
    clock = Clock()
    drafts = (
        Named("lookup", clock, LOOKUP, always(0.0)),
        Named("model", clock, LARGE, always(0.0)),
    )
    served = Served(CountingExecutor(clock, LARGE), VOCABULARY, 4096, FakeDecoder)
    found = measure_costs(served, CombinedDraft(*drafts), sequences=16, clock=clock)
    assert [draft.draft for draft in found.drafts] == list(NAMES)
    assert found.drafts[1].seconds[0] == pytest.approx(LARGE.draft_seconds[0], rel=0.01)
    assert found.drafts[1].read == pytest.approx(LARGE.draft_read, rel=0.01)
    assert found.drafts[0].seconds[0] < 1e-3 * STEP
    line = describe_costs(found)
    assert "a drafted token by lookup 0.00" in line
    assert "a drafted token by model 0.4" in line


def test_a_table_of_another_number_of_drafts_is_refused():
    with pytest.raises(UsageError, match="1 drafts and 2 are asked"):
        CostModel(LARGE, 2)
    with pytest.raises(UsageError, match="2 drafts and 1 are asked"):
        CostModel(TABLE)
