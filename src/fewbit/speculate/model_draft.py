"""A smaller model as a draft, with a KV store of its own.

It reads what the target has verified and draws on from there, all sequences together, one step a
token. Between two calls its own drafted tokens lie in its store; those that the target did not
accept are rolled back at the next call, by comparing them with what the sequence became.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.pages import PagePool, PageTable
from fewbit.runtime.executor import Executor
from fewbit.runtime.step import Span, StepInput
from fewbit.sampling import Block, SamplingThreads, TokenSampler, sample_blocks
from fewbit.speculate.drafts import DraftQuery, Proposal

READ_ROWS = 256
"""Rows that one call spends at most on texts not read yet: the target waits for them."""

_KEEPS_UP = 8
"""A sequence with at most so many tokens to read is served before any that has a text to read."""


@dataclass(frozen=True)
class DraftModel:
    """A model made ready to draft, and what its logits stand for.

    It reads ids below `readable` and takes at most `context` positions of a sequence. Its logits
    are those of the target's ids in order, of which those from `vocabulary` on are never drafted.
    """

    name: str
    executor: Executor
    context: int
    readable: int
    vocabulary: int
    threads: SamplingThreads | None = None


@dataclass(eq=False, slots=True)
class _Sequence:
    """What the draft's store has of a sequence.

    The keys of its first `computed` tokens, all verified, and behind them those of `drafted`.
    """

    table: PageTable
    used: int = 0
    """The call that asked for it last."""
    computed: int = 0
    drafted: list[int] = field(default_factory=list)
    refused: bool = False
    """Whether it has a token that the draft cannot read, or logits that are not finite."""

    def settle(self, tokens: Sequence[int]) -> None:
        """Count drafted tokens that the sequence took as computed, and forget the others."""
        for drafted, token in zip(self.drafted, tokens[self.computed :], strict=False):
            if drafted != token:
                break
            self.computed += 1
        self.computed = min(self.computed, len(tokens) - 1)
        self.drafted.clear()
        self.table.roll_back(self.computed)
        self.table.share(tokens, self.computed)
        if len(tokens) - self.computed > _KEEPS_UP:
            self.computed = self.table.reuse(tokens, self.computed)

    def forget(self) -> None:
        """Let all pages go; the text is read again when it is asked for."""
        self.table.roll_back(0)
        self.computed = 0
        self.drafted.clear()


@dataclass(eq=False, slots=True)
class _Run:
    """A query while it is answered."""

    query: DraftQuery
    state: _Sequence
    sampler: TokenSampler
    length: int
    drawn: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The first position that is not in the store."""
        return self.state.computed + len(self.state.drafted)

    def unread(self) -> int:
        """How many tokens are still to be run."""
        return len(self.query.tokens) + len(self.drawn) - self.position

    def next_tokens(self, count: int) -> Sequence[int]:
        """Return the next tokens to run."""
        if self.drawn:
            return self.drawn[-1:]
        return self.query.tokens[self.state.computed : self.state.computed + count]

    def advance(self, count: int) -> None:
        """Count tokens as run."""
        if self.drawn:
            self.state.drafted.append(self.drawn[-1])
        else:
            self.state.computed += count


class ModelDraft:
    """Drafts with a model of its own store; satisfies `speculate.drafts.Draft`.

    A text is read when a draft of it is first asked for, at most `READ_ROWS` tokens a call beside
    the sequences that keep up; until it is read, the proposals are empty. Where pages run out,
    sequences that were not asked for lately are forgotten first, and read again when they are.

    Args:
        model: what drafts; its executor's store is this draft's alone.
        read_rows: rows of texts not read yet in one call, at least 1.
    """

    shares_store = False

    def __init__(self, model: DraftModel, *, read_rows: int = READ_ROWS) -> None:
        self._model = model
        self._read_rows = read_rows
        self._pool = PagePool(model.executor.pages)
        self._sequences: dict[int, _Sequence] = {}
        self._call = 0

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def context(self) -> int:
        """How many positions of a sequence the draft can look at."""
        return self._model.context

    @property
    def pages_held(self) -> int:
        """Pages that sequences hold now."""
        return self._pool.held

    def pending(self, query: DraftQuery) -> int:
        """Return how many tokens before the last must be read before it could propose."""
        state = self._sequences.get(query.sequence)
        if state is None:
            return len(query.tokens) - 1
        return max(len(query.tokens) - 1 - state.computed - len(state.drafted), 0)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return one proposal for each query; empty where its text is not read yet."""
        self._call += 1
        runs = [self._begun(query) for query in queries]
        active = self._read([run for run in runs if run is not None])
        while active:
            active = self._step([(run, 1) for run in active])
        return [Proposal(tuple(run.drawn)) if run else Proposal(()) for run in runs]

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        state = self._sequences.pop(sequence, None)
        if state is not None:
            state.forget()

    def _begun(self, query: DraftQuery) -> _Run | None:
        """Return the query with its store settled and room in it; None where it has no draft."""
        state = self._sequences.get(query.sequence)
        if state is None:
            state = self._sequences[query.sequence] = _Sequence(PageTable(self._pool))
        known = state.computed
        state.used = self._call
        state.settle(query.tokens)
        if not state.refused:
            state.refused = any(t >= self._model.readable for t in query.tokens[known:])
        length = min(query.length, self._model.context - len(query.tokens) + 1)
        if state.refused or length < 1 or not self._has_room(state, query, length):
            return None
        return _Run(query, state, query.sampler.fork(), length)

    def _has_room(self, state: _Sequence, query: DraftQuery, length: int) -> bool:
        """Hold pages for a text and its draft, whose last token is never run."""
        positions = len(query.tokens) + length - 1
        idle = sorted(self._others(), key=lambda other: other.used)
        while not state.table.can_grow(positions):
            if not idle:
                return False
            idle.pop(0).forget()
        state.table.grow(positions)
        return True

    def _others(self) -> Iterable[_Sequence]:
        """Return the sequences that this call has not asked for, as far as it got."""
        return (state for state in self._sequences.values() if state.used != self._call)

    def _read(self, runs: list[_Run]) -> list[_Run]:
        """Run what is unread of each, and return those that drew a token and want another."""
        left = self._read_rows
        work = []
        for run in sorted(runs, key=lambda run: run.unread() > _KEEPS_UP):
            unread = run.unread()
            count = unread if unread <= _KEEPS_UP else min(unread, left)
            if count:
                work.append((run, count))
                left -= count if unread > _KEEPS_UP else 0
        return self._step(work)

    def _step(self, work: Sequence[tuple[_Run, int]]) -> list[_Run]:
        """Run the next tokens of each, draw where a text is read; return who wants another."""
        if not work:
            return []
        drawing = [run for run, count in work if count == run.unread()]
        logits = self._model.executor.step(_step_input(work))
        for run, count in work:
            run.advance(count)
        blocks = [
            Block(run.sampler, row, len(run.query.tokens) + len(run.drawn))
            for row, run in enumerate(drawing)
        ]
        found = sample_blocks(
            logits, blocks, vocabulary=self._model.vocabulary, threads=self._model.threads
        )
        for run, drawn in zip(drawing, found, strict=True):
            run.drawn += drawn.tokens
            run.state.refused = drawn.fault is not None
        return [run for run in drawing if len(run.drawn) < run.length and not run.state.refused]


def _step_input(work: Sequence[tuple[_Run, int]]) -> StepInput:
    """Return the step that runs `count` tokens of each; wanted is the last row of a whole text."""
    tokens: list[int] = []
    wanted: list[int] = []
    spans: list[Span] = []
    for run, count in work:
        spans.append(Span(len(tokens), count, run.position, run.state.table.array))
        tokens += run.next_tokens(count)
        if count == run.unread():
            wanted.append(len(tokens) - 1)
    ids: NDArray[np.int32] = np.array(tokens, np.int32)
    return StepInput(ids, tuple(spans), np.array(wanted, np.int32))
