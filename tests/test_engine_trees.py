"""Trees through the whole engine: never a word of the output, never a page, and what they bring."""

from dataclasses import replace

import numpy as np
import pytest
from engine_cases import GREEDY, PARAMS, PROMPT, VOCABULARY, engine, plain_tokens, run, said
from engine_storm import Storm, alone, fake_engine, requests
from engine_storm import sees as storm_sees
from fakes import FakeDecoder, FakeExecutor, FixedDraft

from fewbit.cache.pages import PagePool, PageTable
from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation, branch_fates
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.records.generation import FinishReason
from fewbit.report.generation import describe_generation
from fewbit.runtime.step import PAGE
from fewbit.sampling import Branch, SamplingParams, Verifier
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import NgramDraft
from fewbit.speculate.model_draft import DraftModel, ModelDraft
from fewbit.speculate.suffix import SuffixDraft

ASKED = requests(60)


class TreeDraft(FixedDraft):
    """Proposes the chain that a function says, and the branches that another one says."""

    reach = 8

    def __init__(self, choose, branches, **fields):
        super().__init__(choose, **fields)
        self._branches = branches

    def propose(self, queries):
        found = super().propose(queries)
        return [
            replace(proposal, branches=tuple(self._branches(list(query.tokens), query.length)))
            for query, proposal in zip(queries, found, strict=True)
        ]


def right_on_a_branch(tokens, depth=1, length=3):
    """A chain that is right for `depth` tokens, and a branch that goes on rightly from there."""

    def chain(seen, count):
        known = tokens[len(seen) : len(seen) + count]
        return [t if i < depth else (t + 1) % VOCABULARY for i, t in enumerate(known)]

    def branches(seen, count):
        known = tokens[len(seen) + depth : len(seen) + min(depth + length, count)]
        if count <= depth or not known:
            return []
        return [Branch(depth, ((known[0] + 2) % VOCABULARY,)), Branch(depth, tuple(known))]

    return TreeDraft(chain, branches)


def model_draft(seed=0, pages=64, **fields):
    executor = FakeExecutor(VOCABULARY, pages=pages, seed=seed, **fields)
    return ModelDraft(DraftModel("small", executor, 400, VOCABULARY))


DRAFTS = {
    "right on a branch": lambda: right_on_a_branch([*PROMPT, *plain_tokens(100)]),
    "another model": lambda: model_draft(seed=1, repeat=2.0),
    "the target itself": lambda: model_draft(repeat=2.0),
    "n-grams": lambda: NgramDraft(longest=3, shortest=1),
    "suffixes": lambda: SuffixDraft(shortest=1),
    "suffixes and a model": lambda: CombinedDraft(SuffixDraft(), model_draft(seed=1)),
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("kind", DRAFTS)
def test_the_output_is_the_plain_output(params, kind):
    asked = [Request(PROMPT, params, StopCondition(max_tokens=90), top_logprobs=2)]
    plain = run(engine(repeat=2.0), asked)
    drafted = run(engine(DRAFTS[kind](), branches=3, repeat=2.0), asked)
    assert said(drafted) == said(plain)
    assert sum(b.proposed for b in drafted[0][3].draft.branches) > 0


def test_what_a_branch_brings():
    """Each step takes one token of the chain, three of the branch, and one more: five."""
    tokens = plain_tokens(60)
    draft = right_on_a_branch([*PROMPT, *tokens])
    request = Request(PROMPT, GREEDY, StopCondition(max_tokens=60))
    running = engine(draft, branches=2)
    [(found, _, _, record)] = run(running, [request])
    assert found == tokens
    assert record.draft.acceptance_length > 4.5
    first, second = record.draft.branches
    assert (first.depth, first.rank, first.accepted) == (1, 1, 0)
    assert (second.depth, second.rank) == (1, 2)
    assert second.accepted == second.tested == first.tested > 10
    assert second.tokens > 2 * second.accepted
    assert running.record.speculation.branches == record.draft.branches
    assert running._scheduler.pool.held == 0


@pytest.mark.parametrize(
    ("pages", "rows", "missing"), [(1, 512, True), (2, 512, True), (64, 14, True), (64, 512, False)]
)
def test_branches_that_no_page_or_row_is_free_for_are_counted_and_said(pages, rows, missing):
    """A branch takes a page beside the sequence's one; half of a step's rows are for drafts."""
    tokens, drafted = plain_tokens(40), []
    draft = right_on_a_branch([*PROMPT, *tokens])
    propose = draft.propose

    def counted(queries):
        found = propose(queries)
        drafted.extend(branch for proposal in found for branch in proposal.branches)
        return found

    draft.propose = counted
    running = engine(draft, branches=2, pages=pages, limits=Limits(rows=rows, sequences=1))
    [(found, _, _, record)] = run(running, [Request(PROMPT, GREEDY, StopCondition(40))])
    assert found == tokens
    left_out, was_run = record.draft.branches_left_out, record.draft.branches
    assert left_out + sum(branch.proposed for branch in was_run) == len(drafted) > 10
    assert (left_out > 0) is missing and (not was_run) is (pages == 1)
    assert running.record.speculation.branches_left_out == left_out
    words = f"branches left out, as no cache page or row was free: {left_out}"
    assert (words in describe_generation(record)) is missing


@pytest.fixture(scope="module")
def truth():
    return alone(lambda: fake_engine(pages=7), ASKED)


def stormy(draft, pages, seed=0):
    served = Served(FakeExecutor(VOCABULARY, pages=pages, repeat=3.0), VOCABULARY, 320, FakeDecoder)
    speculation = Speculation(draft, 4, branches=3, control=FixedLengths)
    return Engine(served, speculation, limits=Limits(rows=40, sequences=6))


def guesses():
    """Chains and branches that are now and then right, of any shape that may be."""
    rng = np.random.default_rng(5)

    def branches(seen, count):
        firsts = rng.permutation(VOCABULARY).tolist()
        for depth in range(count):
            for _ in range(int(rng.integers(0, 3))):
                more = rng.integers(0, VOCABULARY, int(rng.integers(0, 3))).tolist()
                yield Branch(depth, (firsts.pop(), *more))

    return TreeDraft(lambda seen, count: [VOCABULARY + 5 - 6] * count, branches)


STORMS = {
    "n-grams": lambda: NgramDraft(longest=3, shortest=1),
    "suffixes": lambda: SuffixDraft(shortest=1),
    "another model": lambda: model_draft(seed=1, repeat=3.0, pages=8),
    "guesses": guesses,
}


@pytest.mark.parametrize("pages", [3, 8, 40])
@pytest.mark.parametrize("kind", STORMS)
def test_a_storm_of_requests(truth, kind, pages):
    storm = Storm(stormy(STORMS[kind](), pages), ASKED, truth, pages).run(150)
    assert not storm.wrong
    storm.require_nothing_left()
    assert storm.cancelled > 5
    branches = storm.running.record.speculation.branches
    if pages > 3:
        assert sum(b.accepted for b in branches) > 0
        assert sum(b.tested - b.accepted for b in branches) > 5


def test_without_seeds_everything_comes_to_its_end():
    """What rejection judges has no other run to be equal to; certificates enumerate it."""
    draft = model_draft(seed=1, repeat=3.0)
    running = stormy(draft, 8)
    asked = [replace(request, params=SamplingParams()) for request in ASKED[:40]]
    ended = run(running, asked)
    assert all(r.finish in (FinishReason.STOP, FinishReason.LENGTH) for *_, r in ended)
    assert sum(b.accepted for b in running.record.speculation.branches) > 0
    assert running.record.pages_held == draft.pages_held == 0


def test_the_rule_is_settled_before_anything_is_drawn():
    verifiers = set()

    class Watched(FixedDraft):
        reach = 1

        def propose(self, queries):
            verifiers.update((query.verifier, query.siblings) for query in queries)
            return super().propose(queries)

    draft = Watched(lambda seen, count: [0] * count)
    run(engine(draft, branches=3, longest=2), [Request(PROMPT, SamplingParams(), StopCondition(4))])
    # How many blocks four tokens take, and so whether one of a single token comes, is chance.
    assert (Verifier.TOKEN, (2, 1)) in verifiers
    assert verifiers <= {(Verifier.TOKEN, (2, 1)), (Verifier.TOKEN, (3,)), (Verifier.TOKEN, ())}


def test_a_step_that_fails_gives_its_pages_back():
    running = engine(right_on_a_branch([*PROMPT, *plain_tokens(60)]), branches=2)
    running.add(Request(PROMPT, GREEDY, StopCondition(60)))
    while not running._scheduler.decoding():
        running.step()
    held = running._scheduler.pool.held
    step = running._served.executor.step
    running._served.executor.step = None
    with pytest.raises(TypeError):
        running.step()
    assert running._scheduler.pool.held == held
    running._served.executor.step = step
    tokens = [t for _ in range(5) for output in running.step() for t in output.tokens]
    assert len(tokens) > 15


@pytest.mark.parametrize("stage", ["_measure", "_postprocess", "_hand_states"])
def test_a_step_that_ends_in_the_middle_gives_its_pages_back_once(stage, monkeypatch):
    """As by Ctrl-C: after the model ran, before what was drawn is taken, and just after that."""
    running = engine(right_on_a_branch([*PROMPT, *plain_tokens(60)]), branches=2)
    number = running.add(Request(PROMPT, GREEDY, StopCondition(60)))
    while not running._scheduler.decoding():
        running.step()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            running.step()
    pool = running._scheduler.pool
    assert pool.held == len(running._scheduler.decoding()[0].table)
    running.cancel(number)
    assert pool.held == 0
    assert pool.free == pool.pages


def test_hidden_states_are_those_of_the_way_that_was_accepted():
    """Each row's is its position's alone, and rows of the chain that was left have others."""
    tokens = plain_tokens(60)
    seen = {}

    class Watching(TreeDraft):
        width = 1

        def watch(self, sequence, first, states):
            for i, state in enumerate(states[:, 0].tolist()):
                seen[first + i] = state

    draft = right_on_a_branch([*PROMPT, *tokens])
    draft.__class__ = Watching
    executor = FakeExecutor(VOCABULARY)
    served = Served(
        executor,
        VOCABULARY,
        400,
        FakeDecoder,
        states=lambda rows: executor.steps[-1].tokens[rows][:, None].astype(np.float32),
    )
    running = Engine(served, Speculation(draft, 6, branches=2, control=FixedLengths))
    run(running, [Request(PROMPT, GREEDY, StopCondition(60))])
    text = [*PROMPT, *tokens]
    assert len(seen) > 55
    assert all(state == text[at] for at, state in seen.items())


# --- the parts ------------------------------------------------------------------------------------


def test_a_fork_has_pages_of_its_own_from_its_first_position_on():
    pool = PagePool(8)
    table = PageTable(pool)
    table.grow(2 * PAGE + 5)
    before = table.array.tolist()
    fork = table.fork(PAGE + 3, 3 * PAGE + 1)
    assert fork.array.tolist()[:1] == before[:1]
    assert not set(fork.pages) & set(before)
    assert len(fork.array) == 4
    assert not table.can_fork(0, 4 * PAGE)
    table.adopt(fork)
    assert table.array.tolist() == fork.array.tolist()
    assert pool.held == 4
    table.adopt(fork)
    table.drop(fork)
    assert pool.held == 4
    other = table.fork(3 * PAGE, 3 * PAGE + 9)
    table.drop(other)
    table.roll_back(0)
    assert pool.free == 8


def test_fates_of_branches():
    branches = [Branch(0, (1,)), Branch(0, (2, 3)), Branch(0, (4,)), Branch(1, (5,))]
    found = [tuple(fate) for fate in branch_fates(branches, 0, 1, 2)]
    assert found == [
        (0, 1, 1, True, 0),
        (0, 2, 2, True, 2),
        (0, 3, 1, False, 0),
        (1, 1, 1, False, 0),
    ]
    assert not any(fate.tested for fate in branch_fates(branches, None, None, 0))
    assert [fate.tested for fate in branch_fates(branches, 1, None, 0)] == [False] * 3 + [True]


# --- planted bugs: the runs above must see each of them -------------------------------------------


def sees(truth, kind="guesses"):
    return storm_sees(stormy(STORMS[kind](), 12), truth, ASKED, 200)


def test_no_bug_is_no_bug(truth):
    assert not sees(truth)


def test_pages_of_an_accepted_branch_that_are_not_taken_over(truth, monkeypatch):
    monkeypatch.setattr(PageTable, "adopt", PageTable.drop)
    assert sees(truth)


def test_pages_of_a_branch_that_are_kept(truth, monkeypatch):
    monkeypatch.setattr(PageTable, "drop", lambda self, fork: None)
    assert sees(truth)


def test_rows_that_a_branch_continues_and_does_not_see(truth, monkeypatch):
    monkeypatch.setattr(FakeExecutor, "_follow", lambda self, span, trunk: None)
    assert sees(truth)
