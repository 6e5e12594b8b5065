"""A model as draft: never a word of the output, and a store that equals a fresh one's."""

import numpy as np
import pytest
from engine_cases import GREEDY, PARAMS, PROMPT, VOCABULARY, engine, run, said
from engine_storm import Storm, alone, requests
from fakes import FakeDecoder, FakeExecutor, draft_query

from fewbit.engine.engine import Engine, Served
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.runtime.step import PAGE
from fewbit.speculate import model_draft
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.model_draft import DraftModel, ModelDraft, _Sequence

ASKED = requests(60)


def draft_model(context=400, pages=64, readable=VOCABULARY, **fields):
    executor = FakeExecutor(VOCABULARY, pages=pages, **fields)
    return DraftModel("small", executor, context, readable, VOCABULARY)


def model_draft_of(read_rows=model_draft.READ_ROWS, **fields):
    return ModelDraft(draft_model(**fields), read_rows=read_rows)


def asked(params, count=60, **fields):
    return Request(PROMPT, params, StopCondition(max_tokens=count), **fields)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("seed", [0, 1], ids=["the target itself", "another model"])
def test_the_output_is_the_plain_output(params, seed):
    plain = run(engine(repeat=2.0), [asked(params, top_logprobs=2)])
    drafted = run(
        engine(model_draft_of(seed=seed, repeat=2.0), repeat=2.0), [asked(params, top_logprobs=2)]
    )
    assert said(drafted) == said(plain)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_target_as_its_own_draft_is_always_right(params):
    """Coupled: the same numbers, the same penalties and bias at every drafted position."""
    [(_, _, _, record)] = run(engine(model_draft_of()), [asked(params)])
    assert record.draft.acceptance_length > 5
    assert all(p.accepted == p.tested for p in record.draft.positions)


def test_several_at_once_and_none_the_same():
    wanted = [asked(params, 40, sample=i) for i, params in enumerate(PARAMS.values())]
    plain = [run(engine(), [request])[0] for request in wanted]
    together = run(engine(model_draft_of(seed=1), context=200), wanted)
    assert said(together) == said(plain)


# --- joining, leaving, cancelled, set back --------------------------------------------------------


def stormy_engine(draft, pages=8):
    served = Served(FakeExecutor(VOCABULARY, pages=pages, repeat=3.0), VOCABULARY, 320, FakeDecoder)
    return Engine(
        served, Speculation(draft, 4, control=FixedLengths), limits=Limits(rows=40, sequences=6)
    )


@pytest.fixture(scope="module")
def truth():
    def plain():
        executor = FakeExecutor(VOCABULARY, pages=7, repeat=3.0)
        return Engine(Served(executor, VOCABULARY, 320, FakeDecoder))

    return alone(plain, ASKED)


@pytest.mark.parametrize("pages", [3, 8, 40])
@pytest.mark.parametrize("seed", [0, 1], ids=["the target itself", "another model"])
def test_a_storm_of_requests(truth, pages, seed):
    draft = model_draft_of(pages=pages, seed=seed, repeat=3.0, read_rows=30)
    storm = Storm(stormy_engine(draft), ASKED, truth, seed).run(400)
    assert not storm.wrong
    assert storm.cancelled > 10
    storm.require_nothing_left()
    assert draft.pages_held == 0


# --- its store ------------------------------------------------------------------------------------


def fresh_proposal(tokens, length=4):
    """What a draft says that has read these tokens and nothing else."""
    query = draft_query(0, tokens, length, params=GREEDY)
    fresh = model_draft_of(read_rows=10_000, seed=1)
    return fresh.propose([query])[0].tokens


def grown(rng, tokens, drafted):
    """What a sequence becomes: some drafted tokens, or none, and one of the target's own."""
    taken = drafted[: rng.integers(0, len(drafted) + 1)]
    return [*tokens, *taken, int(rng.integers(VOCABULARY))]


def walk(draft, steps=40, sequences=3, seed=3):
    """Grow sequences as a target would, now and then without a draft; yield each proposal."""
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(0, VOCABULARY, n).tolist() for n in range(5, 5 + sequences)]
    for _ in range(steps):
        for other in tokens:
            other.extend(rng.integers(0, VOCABULARY, rng.choice([0, 0, 0, 2])).tolist())
        here = [i for i in range(sequences) if rng.random() < 0.7]
        queries = [draft_query(i, tokens[i], int(rng.integers(1, 5)), params=GREEDY) for i in here]
        for i, proposal in zip(here, draft.propose(queries), strict=True):
            yield tokens[i], proposal.tokens
            tokens[i] = grown(rng, tokens[i], proposal.tokens)


def test_a_rolled_back_store_equals_a_fresh_one():
    draft = model_draft_of(seed=1)
    for tokens, proposal in walk(draft):
        assert proposal
        assert proposal == fresh_proposal(tokens)[: len(proposal)]


def test_drafted_tokens_that_are_not_compared_are_seen(monkeypatch):
    def settle(self, tokens):
        self.computed = min(self.computed + len(self.drafted), len(tokens) - 1)
        self.drafted.clear()

    monkeypatch.setattr(_Sequence, "settle", settle)
    wrong = [
        tokens
        for tokens, proposal in walk(model_draft_of(seed=1))
        if proposal != fresh_proposal(tokens)[: len(proposal)]
    ]
    assert wrong


def test_a_text_is_read_in_pieces_and_only_then_drafted_from():
    draft = model_draft_of(read_rows=16, seed=1)
    tokens = [i % VOCABULARY for i in range(45)]
    query = draft_query(0, tokens, 3, params=GREEDY)
    seen = []
    for _ in range(4):
        seen.append(draft.pending(query))
        last = draft.propose([query])[0].tokens
    assert seen == [44, 28, 12, 0]
    assert last == fresh_proposal(tokens, 3)


def test_reading_does_not_hold_up_who_keeps_up():
    draft = model_draft_of(read_rows=16, seed=1)
    short, long = draft_query(0, [1, 2, 3], 2), draft_query(1, [4] * 100, 2)
    first = draft.propose([long, short])
    assert [len(p.tokens) for p in first] == [0, 2]
    assert max(len(step.tokens) for step in draft._model.executor.steps) <= 16 + 3


def test_a_text_read_for_another_sequence_is_not_read_again():
    draft = model_draft_of(seed=1)
    tokens = [i % 7 for i in range(2 * PAGE + 5)]
    draft.propose([draft_query(0, tokens, 1, params=GREEDY)])
    draft.propose([draft_query(0, [*tokens, 3], 1, params=GREEDY)])
    draft.release(0)
    before = sum(len(step.tokens) for step in draft._model.executor.steps)
    query = draft_query(1, tokens, 1, params=GREEDY)
    assert draft.propose([query])[0].tokens == fresh_proposal(tokens, 1)
    assert sum(len(step.tokens) for step in draft._model.executor.steps) - before == 5


def test_a_forgotten_sequence_is_read_again():
    draft = model_draft_of(pages=2, seed=1)
    first, second = [1] * 70, [2] * 100
    for tokens, number in ((first, 0), (second, 1), (first, 0)):
        query = draft_query(number, tokens, 2, params=GREEDY)
        assert draft.propose([query])[0].tokens == fresh_proposal(tokens, 2)
    assert draft.pages_held <= 2


def test_without_room_there_is_no_draft():
    draft = model_draft_of(pages=2, seed=1)
    queries = [draft_query(i, [i + 1] * 100, 2, params=GREEDY) for i in range(2)]
    assert [len(p.tokens) for p in draft.propose(queries)] == [2, 0]
    assert [len(p.tokens) for p in draft.propose([queries[1]])] == [2]


# --- limits ---------------------------------------------------------------------------------------


def test_a_draft_with_a_shorter_context_ends_there_and_the_target_goes_on():
    plain = run(engine(), [asked(GREEDY, 80)])
    drafted = run(engine(model_draft_of(context=40, seed=0)), [asked(GREEDY, 80)])
    assert said(drafted) == said(plain)
    assert drafted[0][3].draft.blocks > 0
    assert "context of 40 tokens is full" in drafted[0][3].draft_off


def test_no_position_beyond_the_context_is_run():
    draft = model_draft_of(context=12, seed=1)
    for count in range(9, 16):
        proposal = draft.propose([draft_query(0, [1] * count, 4, params=GREEDY)])[0]
        assert len(proposal.tokens) == max(0, min(4, 12 - count + 1))
    ends = [s.position + s.count for step in draft._model.executor.steps for s in step.spans]
    assert max(ends) == 12


def test_a_token_that_the_draft_cannot_read_ends_its_drafts():
    draft = model_draft_of(readable=20, seed=1)
    tokens = [1, 2, 3]
    assert draft.propose([draft_query(0, tokens, 2)])[0].tokens
    assert not draft.propose([draft_query(0, [*tokens, 25], 2)])[0].tokens
    assert not draft.propose([draft_query(0, [*tokens, 25, 1], 2)])[0].tokens


def test_logits_that_are_not_finite_end_its_drafts_and_not_the_request():
    plain = run(engine(), [asked(GREEDY)])
    draft = model_draft_of()
    draft._model.executor.poisoned = 20
    drafted = run(engine(draft), [asked(GREEDY)])
    assert said(drafted) == said(plain)


def test_releasing_lets_every_page_go():
    draft = model_draft_of()
    list(walk(draft, sequences=4))
    for number in range(4):
        draft.release(number)
    draft.release(99)
    assert draft.pages_held == 0
