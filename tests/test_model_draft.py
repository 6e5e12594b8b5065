"""A model as draft: never a word of the output, and a store that equals a fresh one's."""

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import GREEDY, PARAMS, PROMPT, VOCABULARY, engine, run, said
from engine_storm import Storm, alone, requests
from fakes import FakeDecoder, FakeExecutor, draft_query

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.records.generation import FinishReason
from fewbit.runtime.step import PAGE, Span, StepInput
from fewbit.sampling import History, SamplingParams, distribution
from fewbit.speculate import model_draft
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.model_draft import DraftModel, ModelDraft, _Sequence
from fewbit.speculate.verifier import Verifier
from fewbit.tokens.mapping import TokenMap

ASKED = requests(60)


def model_draft_of(read_rows=model_draft.READ_ROWS, context=400, pages=64, **fields):
    executor = FakeExecutor(VOCABULARY, pages=pages, **fields)
    return ModelDraft(DraftModel("small", executor, context, VOCABULARY), read_rows=read_rows)


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


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_without_seeds_everything_comes_to_its_end(cut):
    """What rejection judges has no other run to be equal to; certificates enumerate it."""
    draft = cut_draft(pages=6, seed=1) if cut else model_draft_of(pages=6, seed=1)
    running = stormy_engine(draft)
    wanted = [replace(request, params=SamplingParams()) for request in ASKED[:40]]
    ended = run(running, wanted)
    assert all(r.finish in (FinishReason.STOP, FinishReason.LENGTH) for *_, r in ended)
    assert sum(p.accepted for *_, r in ended if r.draft for p in r.draft.positions)
    assert running.record.pages_held == draft.pages_held == 0


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
    assert draft.pending(query) == 4
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


def test_logits_that_are_not_finite_end_its_drafts_and_not_the_request():
    plain = run(engine(), [asked(GREEDY)])
    draft = model_draft_of()
    draft._model.executor.poisoned = 20
    drafted = run(engine(draft), [asked(GREEDY)])
    assert said(drafted) == said(plain)
    assert drafted[0][3].draft.blocks > 0
    assert "the draft cannot go on (the logit of token 3 is nan" in drafted[0][3].draft_off


def test_nothing_is_drafted_behind_an_end_of_text():
    executor = FakeExecutor(VOCABULARY, seed=1)
    whole = fresh_proposal([1, 2, 3], 4)
    ends = frozenset(whole[1:2])
    draft = ModelDraft(DraftModel("small", executor, 400, VOCABULARY, ends))
    [proposal] = draft.propose([draft_query(0, [1, 2, 3], 4, params=GREEDY)])
    assert proposal.tokens == whole[: whole.index(whole[1]) + 1]


def test_releasing_lets_every_page_go():
    draft = model_draft_of()
    list(walk(draft, sequences=4))
    for number in range(4):
        draft.release(number)
    draft.release(99)
    assert draft.pages_held == 0


# --- a cut head, other ids ------------------------------------------------------------------------

KEPT = np.array([0, 2, 3, 5, 8, 13, 21, 22, 29], np.int32)
ORDER = np.random.default_rng(4).permutation(VOCABULARY)
"""The draft's id of each of the target's tokens."""


class CutExecutor(FakeExecutor):
    """Has a head of `KEPT` alone."""

    def step(self, step):
        return np.ascontiguousarray(super().step(step)[:, KEPT])


class RenumberedExecutor(FakeExecutor):
    """The same model with its tokens in another order."""

    def step(self, step):
        tokens = np.argsort(ORDER)[step.tokens].astype(np.int32)
        logits = super().step(step._replace(tokens=tokens))
        return np.ascontiguousarray(logits[:, np.argsort(ORDER)])


def cut_draft(**fields):
    executor = CutExecutor(VOCABULARY, **fields)
    return ModelDraft(DraftModel("cut", executor, 400, VOCABULARY, support=KEPT))


def renumbered_draft(kept=None):
    mapping = TokenMap(range(VOCABULARY), ORDER, [(int(own),) for own in ORDER])
    left = mapping if kept is None else mapping.restricted(ORDER[kept])
    model = DraftModel(
        "other",
        RenumberedExecutor(VOCABULARY),
        400,
        VOCABULARY,
        tokens=mapping,
        support=left.support,
        columns=left.draft_ids,
    )
    return ModelDraft(model)


DRAFTS = {
    "cut": cut_draft,
    "renumbered": renumbered_draft,
    "renumbered and cut": lambda: renumbered_draft(KEPT),
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
def test_neither_changes_the_output(params, draft):
    plain = run(engine(), [asked(params)])
    assert said(run(engine(draft()), [asked(params)])) == said(plain)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_target_with_other_ids_is_still_always_right(params):
    [(_, _, _, record)] = run(engine(renumbered_draft()), [asked(params)])
    assert record.draft.acceptance_length > 5
    assert all(p.accepted == p.tested for p in record.draft.positions)


@pytest.mark.parametrize("draft", [cut_draft, lambda: renumbered_draft(KEPT)], ids=["cut", "both"])
def test_a_cut_head_proposes_the_likeliest_of_its_tokens(draft):
    tokens = [1, 2, 3, 4]
    whole = FakeExecutor(VOCABULARY).step(
        StepInput(
            np.array(tokens, np.int32),
            (Span(0, 4, 0, np.zeros(1, np.int32)),),
            np.array([3], np.int32),
        )
    )
    [proposal] = draft().propose([draft_query(0, tokens, 1, params=GREEDY)])
    assert proposal.tokens == (KEPT[np.argmax(whole[0, KEPT])],)


def test_where_none_of_its_tokens_may_come_the_block_ends_and_no_more():
    banned = SamplingParams(seed=1, logit_bias=dict.fromkeys(KEPT.tolist(), -100))
    draft, query = cut_draft(), draft_query(0, [1, 2, 3], 3, params=banned)
    [proposal] = draft.propose([query])
    assert (proposal.tokens, proposal.ended) == ((), "")
    allowed = draft_query(0, [1, 2, 3, 4], 3, params=GREEDY)
    assert len(draft.propose([allowed])[0].tokens) == 3


# --- draws that are judged by rejection -----------------------------------------------------------


@pytest.mark.parametrize("draft", [model_draft_of, *DRAFTS.values()], ids=["whole", *DRAFTS])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_the_distribution_that_is_returned_is_the_one_drawn_from(draft, params):
    """Each row is what the request makes of the draft's logits, over the ids that it can propose.

    The float64 truth is rounded to float32 on the way, so a probability is off by 2^-24 of itself.
    """
    tokens = list(PROMPT)
    query = draft_query(0, tokens, 5, params=params, verifier=Verifier.BLOCK)
    [proposal] = draft().propose([query])
    support = np.arange(VOCABULARY) if proposal.support is None else proposal.support
    assert proposal.probabilities.shape == (5, len(support))
    executor = FakeExecutor(VOCABULARY)
    for j, token in enumerate(proposal.tokens):
        seen = [*tokens, *proposal.tokens[:j]]
        step = StepInput(
            np.array(seen, np.int32),
            (Span(0, len(seen), 0, np.zeros(1, np.int32)),),
            np.array([len(seen) - 1], np.int32),
        )
        logits = np.full(VOCABULARY, -1e30, np.float32)
        logits[support] = executor.step(step)[0, support]
        history = History(np.array(seen, np.int32), len(tokens))
        truth = distribution(logits, params, history)[support]
        assert np.allclose(proposal.probabilities[j], truth, rtol=1e-6, atol=1e-12)
        assert proposal.probabilities[j][list(support).index(token)] > 0


def test_distributions_of_one_call_do_not_share_memory():
    queries = [draft_query(i, [i + 1], 1 + i % 4, verifier=Verifier.BLOCK) for i in range(9)]
    draft = cut_draft()
    for _ in range(3):
        found = draft.propose(queries)
        alone = [cut_draft().propose([query])[0] for query in queries]
        for one, other in zip(found, alone, strict=True):
            assert np.array_equal(one.probabilities, other.probabilities)


def test_coupled_draws_need_no_distribution():
    [proposal] = cut_draft().propose([draft_query(0, [1, 2], 3, params=GREEDY)])
    assert proposal.probabilities is None
