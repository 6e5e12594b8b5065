"""A draft that continues from hidden states: never a word of the output, and a store kept right."""

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import GREEDY, PARAMS, PROMPT, VOCABULARY, outputs
from engine_storm import Storm, alone, requests
from fakes import FakeDecoder, draft_query
from head_cases import FakeHead, StatefulExecutor

from fewbit.engine.costing import measure_costs
from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.records.generation import FinishReason
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams
from fewbit.speculate import head_draft, head_sequence
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.controller import FixedLengths, LengthController
from fewbit.speculate.drafts import NgramDraft, watching
from fewbit.speculate.head_draft import HeadDraft, HeadModel

ASKED = requests(60)


def head_draft_of(pages=64, context=400, read_rows=head_draft.READ_ROWS, **fields):
    head = FakeHead(VOCABULARY, pages, **fields)
    return HeadDraft(HeadModel("head", head, context, VOCABULARY), read_rows=read_rows)


def engine(draft=None, pages=8, control=FixedLengths, limits=None):
    executor = StatefulExecutor(VOCABULARY, pages=pages, repeat=3.0)
    served = Served(executor, VOCABULARY, 320, FakeDecoder, states=executor.states)
    speculation = None if draft is None else Speculation(draft, 4, control=control)
    return Engine(served, speculation, limits=limits or Limits(rows=40, sequences=6))


@pytest.fixture(scope="module")
def truth():
    return alone(lambda: engine(pages=7), ASKED)


# --- exact ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_output_is_the_plain_output(params):
    asked = [Request(PROMPT, params, StopCondition(60), top_logprobs=2)]
    plain, _ = outputs(engine(), asked)
    drafted, (record,) = outputs(engine(head_draft_of(repeat=3.0)), asked)
    assert drafted == plain
    assert sum(p.tested for p in record.draft.positions) > 20


@pytest.mark.parametrize("pages", [3, 8, 40])
@pytest.mark.parametrize("read_rows", [5, 128])
def test_a_storm_of_requests(truth, pages, read_rows):
    """Joining, leaving, cancelled, set back; beginnings that the target has from others."""
    draft = head_draft_of(pages, repeat=3.0, read_rows=read_rows)
    running = engine(draft)
    running._scheduler._has_room = lambda generation: True
    storm = Storm(running, ASKED, truth).run(300)
    assert not storm.wrong
    assert storm.cancelled > 10
    assert running.record.preemptions > 0
    storm.require_nothing_left()
    assert draft.pages_held == 0
    assert not draft._store.sequences
    positions = running.record.speculation.positions
    assert sum(p.accepted for p in positions) > 0
    assert sum(p.tested - p.accepted for p in positions) > 10


def test_behind_a_draft_from_the_text(truth):
    draft = CombinedDraft(NgramDraft(), head_draft_of(repeat=3.0))
    assert watching(draft) == (draft.parts[1],)
    storm = Storm(engine(draft), ASKED, truth).run(200)
    assert not storm.wrong


def test_lengths_are_chosen_by_what_it_costs(truth):
    draft = head_draft_of(repeat=3.0)
    storm = Storm(engine(draft, control=LengthController), ASKED, truth).run(200)
    assert not storm.wrong


def test_without_seeds_everything_comes_to_its_end():
    draft = head_draft_of(repeat=3.0)
    asked = [replace(request, params=SamplingParams()) for request in ASKED[:40]]
    _, records = outputs(engine(draft), asked)
    assert {r.finish for r in records} <= {FinishReason.STOP, FinishReason.LENGTH}
    assert sum(p.accepted for r in records if r.draft for p in r.draft.positions)


def test_a_model_that_hands_out_no_states_is_refused():
    executor = StatefulExecutor(VOCABULARY)
    served = Served(executor, VOCABULARY, 320, FakeDecoder)
    with pytest.raises(UsageError, match="hidden states"):
        Engine(served, Speculation(head_draft_of()))


def test_its_costs_are_measured():
    executor = StatefulExecutor(VOCABULARY)
    ticks = iter(range(10**6))
    served = Served(executor, VOCABULARY, 320, FakeDecoder, states=executor.states)
    draft = head_draft_of()
    draft._model.head.strict = False  # states of no meaning are shown
    table = measure_costs(served, draft, sequences=4, clock=lambda: next(ticks) * 1e-3)
    assert table.sequences == (1, 4)
    assert min(table.draft_seconds) > 0


# --- its store ------------------------------------------------------------------------------------


def states_of(tokens):
    """What the target says of each position."""
    rows = [(0, 0)]
    for i, token in enumerate(tokens):
        rows.append((i, (rows[-1][1] * 31 + token + 1) % 65536))
    return np.array(rows[1:], np.float32)


def shown(draft, sequence, tokens, first=0):
    """Hand a draft the states that an engine has when the last token is to be run."""
    draft.watch(sequence, first, states_of(tokens)[first : len(tokens) - 1])


def fresh_proposal(tokens, length, first=0):
    """What a draft says that saw these states and nothing else, all at once."""
    draft = head_draft_of(read_rows=10_000, repeat=1.0)
    shown(draft, 0, tokens, first)
    return draft.propose([draft_query(0, tokens, length, params=GREEDY)])[0].tokens


def texts(rng, count=3):
    return [rng.integers(0, VOCABULARY, 2 + 3 * i).tolist() for i in range(count)]


def test_a_store_with_rows_written_over_equals_a_fresh_one():
    draft, rng = head_draft_of(repeat=1.0), np.random.default_rng(1)
    tokens = texts(rng)
    for _ in range(40):
        queries = []
        for i, text in enumerate(tokens):
            shown(draft, i, text)
            if rng.random() < 0.7:
                queries.append(draft_query(i, text, int(rng.integers(1, 5)), params=GREEDY))
        for query, proposal in zip(queries, draft.propose(queries), strict=True):
            text = tokens[query.sequence]
            assert proposal.tokens == fresh_proposal(text, query.length)
            text.extend(proposal.tokens[: rng.integers(0, len(proposal.tokens) + 1)])
        for text in tokens:
            text.extend(rng.integers(0, VOCABULARY, int(rng.integers(1, 3))).tolist())


def test_it_can_be_asked_twice_for_the_same_text():
    draft, tokens = head_draft_of(repeat=1.0), list(range(20))
    shown(draft, 0, tokens)
    query = draft_query(0, tokens, 3, params=GREEDY)
    assert draft.pending(query) == 18
    assert draft.propose([query])[0].tokens == draft.propose([query])[0].tokens
    assert draft.pending(query) == 0


def test_a_long_text_is_read_in_parts():
    draft, tokens = head_draft_of(read_rows=30, repeat=1.0), [i % 29 for i in range(100)]
    shown(draft, 0, tokens)
    query = draft_query(0, tokens, 2, params=GREEDY)
    pending, found = [], []
    for _ in range(4):
        pending.append(draft.pending(query))
        found.append(draft.propose([query])[0].tokens)
    assert pending == [98, 68, 38, 8]
    assert found[:3] == [(), (), ()]
    assert found[3] == fresh_proposal(tokens, 2)


def test_a_beginning_that_was_read_for_another_sequence_is_not_read_again():
    draft, tokens = head_draft_of(repeat=1.0), [i % 29 for i in range(2 * PAGE + 9)]
    shown(draft, 0, tokens)
    for _ in range(2):
        draft.propose([draft_query(0, tokens, 2, params=GREEDY)])
    draft.release(0)
    before = draft._model.head.true_rows
    shown(draft, 1, tokens, first=2 * PAGE)  # the target has the pages too
    query = draft_query(1, tokens, 2, params=GREEDY)
    assert draft.propose([query])[0].tokens == fresh_proposal(tokens, 2)
    assert draft._model.head.true_rows == before + 8


def test_another_first_token_is_another_beginning():
    draft, tokens = head_draft_of(repeat=1.0), [i % 29 for i in range(PAGE + 9)]
    shown(draft, 0, tokens)
    draft.propose([draft_query(0, tokens, 2, params=GREEDY)])
    other = [7, *tokens[1:]]
    shown(draft, 1, other)
    assert draft.propose([draft_query(1, other, 2, params=GREEDY)])[0].tokens == fresh_proposal(
        other, 2
    )


def test_what_it_never_saw_is_left_out():
    """The target had the beginning from a sequence that this draft does not know."""
    tokens = [i % 29 for i in range(PAGE + 20)]
    draft = head_draft_of(repeat=1.0)
    shown(draft, 0, tokens, first=PAGE)
    found = draft.propose([draft_query(0, tokens, 3, params=GREEDY)])[0].tokens
    assert found == fresh_proposal(tokens, 3, first=PAGE)
    assert len(found) == 3


def test_states_that_come_again_are_known(monkeypatch):
    monkeypatch.setattr(head_sequence, "KEPT_STATES", 16)
    tokens = [i % 29 for i in range(60)]
    draft = head_draft_of(repeat=1.0)
    for end in range(1, 60):
        draft.watch(0, max(0, end - 3), states_of(tokens)[max(0, end - 3) : end])
    assert len(draft._store.sequences[0].waiting) <= 18
    found = draft.propose([draft_query(0, tokens, 3, params=GREEDY)])[0].tokens
    assert found == fresh_proposal(tokens, 3, first=draft._store.sequences[0].base)
    assert draft._store.sequences[0].base > 40


def test_nothing_is_drafted_before_the_states_came():
    draft = head_draft_of()
    query = draft_query(0, [1, 2, 3, 4], 3, params=GREEDY)
    assert draft.pending(query) == 0
    assert draft.propose([query])[0].tokens == ()
    draft.watch(0, 0, states_of([1, 2]))
    assert draft.propose([query])[0].tokens == ()


def test_states_of_the_wrong_rows_are_noticed():
    """The negative control: the fake head sees a state that does not follow."""
    draft, tokens = head_draft_of(), list(range(9))
    states = states_of(tokens)[[0, 1, 2, 4, 3, 5, 6, 7]]
    draft.watch(0, 0, states)
    with pytest.raises(AssertionError, match="states of other rows"):
        draft.propose([draft_query(0, tokens, 3, params=GREEDY)])


def test_it_never_looks_beyond_its_context_and_ends_at_an_end():
    draft, tokens = head_draft_of(context=21, repeat=1.0), list(range(20))
    shown(draft, 0, tokens)
    assert len(draft.propose([draft_query(0, tokens, 5, params=GREEDY)])[0].tokens) == 2
    first = fresh_proposal(tokens, 4)[0]
    head = FakeHead(VOCABULARY, repeat=1.0)
    ending = HeadDraft(HeadModel("head", head, 400, VOCABULARY, ends=frozenset([first])))
    shown(ending, 0, tokens)
    assert ending.propose([draft_query(0, tokens, 4, params=GREEDY)])[0].tokens == (first,)
