"""A draft that continues from the target's hidden states: EAGLE-3, and heads like it.

A head's row stands for a token and the state behind the token before it. Rows of verified tokens
have the target's states, which the engine hands over as they come; rows of drafted ones have the
state that the head made for the row before. So a row in the head's store is good for ever once the
target's state went into it, and provisional otherwise: after each verification the head reads the
accepted tokens once more, with their true states, over what it had drafted.

What such a head is (EAGLE-3, one layer of multi-token prediction) is the business of `Head`. Heads
that do not read their own tokens (Medusa) are drafts of their own that `watch` as this one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.pages import PageTable
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.step import PAGE, StepInput
from fewbit.sampling import SamplingThreads
from fewbit.speculate.drafts import DraftQuery, Proposal
from fewbit.speculate.drawing import Drawing, KeptRows, draw_each
from fewbit.speculate.head_sequence import HeadSequence, Rows
from fewbit.speculate.own_store import (
    READ_ROWS,
    OwnStore,
    Placed,
    beside,
    portions,
    step_input,
)


class Head(Protocol):
    """What continues from hidden states, with a KV store of its own (`model.head_runner`)."""

    @property
    def pages(self) -> int:
        """Pages in its store."""
        ...

    @property
    def width(self) -> int:
        """Floats of the target's states for one position."""
        ...

    def page(self, page: int) -> bytes:
        """Return the keys and values of a page of its store."""
        ...

    def fuse(self, states: Rows) -> Rows:
        """Return what rows of verified positions read, [rows, hidden], for states [rows, width]."""
        ...

    def step(self, step: StepInput, hidden: Rows) -> tuple[Rows, Rows]:
        """Run rows of tokens, each with its hidden state.

        Returns:
            Of the wanted rows the logits, valid until the next step, and the states that the rows
            after them read.
        """
        ...


@dataclass(frozen=True, eq=False)
class HeadModel:
    """A head made ready to draft.

    It takes at most `context` positions of a sequence, and never proposes the target's ids from
    `vocabulary` on.
    """

    name: str
    head: Head
    context: int
    vocabulary: int
    ends: frozenset[int] = frozenset()
    """The target's ids after which a text is over."""
    support: NDArray[np.int32] | None = None
    """int32 [n] ascending, the target's ids that it can propose; None for those of its logits."""
    columns: NDArray[np.int32] | None = None
    """int32 [n], the column of its logits for each; None where they lie in that order."""
    threads: SamplingThreads | None = None
    kernels: tuple[KernelRecord, ...] = ()


@dataclass(eq=False, slots=True)
class _Run:
    """A query while it is answered."""

    drawing: Drawing
    state: HeadSequence
    unread: int
    next: Rows = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """The state that the next drafted row reads, [1, hidden]."""

    @property
    def position(self) -> int:
        """Where the next row stands in the store."""
        return self.state.computed + max(len(self.drawing.tokens) - 1, 0)

    @property
    def whole(self) -> bool:
        """Whether its text is read."""
        return not self.unread

    def tokens(self, count: int) -> Sequence[int]:
        """Return the tokens of the next rows: of the text, or the one drawn last."""
        if self.drawing.tokens:
            return self.drawing.tokens[-1:]
        begin = self.state.read + 1
        return self.drawing.query.tokens[begin : begin + count]


class HeadDraft:
    """Drafts chains with a head; satisfies `speculate.drafts.Draft` and `Watching`.

    A text is read when a draft of it is first asked for, at most `read_rows` rows a call beside
    the sequences that keep up; until it is read, the proposals are empty. Where pages run out,
    sequences that were not asked for lately let theirs go, and begin anew with what comes next.

    Args:
        model: the head; its store is this draft's alone.
        read_rows: rows of texts not read yet in one call, at least 1.
    """

    reach = 1
    shares_store = False

    def __init__(self, model: HeadModel, *, read_rows: int = READ_ROWS) -> None:
        self._model = model
        self._read_rows = read_rows
        self._store = OwnStore(model.head.pages, HeadSequence)
        self._rows = KeptRows()

    def anew(self) -> HeadDraft:
        """Return a draft on the same store that knows nothing; only one of the two is then used."""
        return HeadDraft(self._model, read_rows=self._read_rows)

    @property
    def name(self) -> str:
        """The head's name."""
        return self._model.name

    @property
    def context(self) -> int:
        """How many positions of a sequence the draft can look at."""
        return self._model.context

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """What reads each of its matrices."""
        return self._model.kernels

    @property
    def pages_held(self) -> int:
        """Pages that sequences hold now."""
        return self._store.held

    @property
    def width(self) -> int:
        """Floats of the target's states for one position."""
        return self._model.head.width

    def watch(self, sequence: int, first: int, states: Rows) -> None:
        """Take the states of a sequence's positions from `first` on, float32 [rows, width]."""
        self._store.of(sequence).watch(first, states)

    def pending(self, query: DraftQuery) -> int:
        """Return how many rows before the last must be read before it could propose."""
        return max(self._store.of(query.sequence).settle(query.tokens) - 1, 0)

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return one proposal for each query; empty where its text is not read yet.

        Its probabilities are valid until the next call.
        """
        self._store.call()
        self._rows.reset()
        runs = [self._begun(query) for query in queries]
        active = self._read([run for run in runs if run is not None])
        while active:
            active = self._step(
                [(run, 1) for run in active], np.concatenate([r.next for r in active])
            )
        return [
            Proposal(())
            if run is None
            else run.drawing.proposal(self._model.support, run.state.ended)
            for run in runs
        ]

    def beside_fresh(
        self, sequence: int, tokens: Sequence[int], states: Rows
    ) -> list[tuple[bytes, bytes]]:
        """Return each whole page that was read of a sequence, and what one pass over it writes.

        For certificates: every row must have been written with the target's own state, over what
        was drafted there.

        Args:
            sequence: which.
            tokens: all of them.
            states: float32 [positions, width], the target's, of all positions but the last.

        Raises:
            RequestError: the store has no room for the pass.
        """
        state, head = self._store.of(sequence), self._model.head
        whole = state.computed // PAGE
        rows = slice(state.base, state.base + whole * PAGE)
        fresh = self._store.table()
        self._write(tokens[1:][rows], states[rows], fresh)
        return beside(state, fresh, whole, head.page)

    def spoil(self, tokens: Sequence[int]) -> None:
        """Write the rows of another text where the next sequence's pages will lie."""
        table = self._store.table()
        self._write(tokens, np.zeros((len(tokens), self.width), np.float32), table)
        table.roll_back(0)

    def _write(self, tokens: Sequence[int], states: Rows, table: PageTable) -> None:
        """Write rows in one pass over them."""
        head = self._model.head
        table.grow(len(tokens))
        for at in range(0, len(tokens), self._read_rows):
            placed = Placed(tokens[at : at + self._read_rows], at, table.array)
            fused = head.fuse(states[at : at + self._read_rows])
            head.step(step_input([placed], [False]), fused)

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._store.release(sequence)

    def _begun(self, query: DraftQuery) -> _Run | None:
        """Return the query with its store settled and room in it; None where it has no draft."""
        state = self._store.asked(query.sequence)
        unread = state.settle(query.tokens)
        length = min(query.length, self._model.context - len(query.tokens) + 1)
        if state.ended or length < 1 or not unread:
            return None
        # The last drafted token is never run.
        rows = state.computed + unread + length - 1
        if not self._store.hold(state, rows):
            return None
        return _Run(Drawing.begun(query, length), state, unread)

    def _read(self, runs: list[_Run]) -> list[_Run]:
        """Run what is unread of each, and return those that drew a token and want another."""
        work = portions(runs, lambda run: run.unread, self._read_rows)
        if not work:
            return []
        input_of = [(_placed(run, count), run.state.take(count)) for run, count in work]
        for run, count in work:
            run.unread -= count
        states = np.concatenate([states for _, states in input_of])
        active = self._step(work, self._model.head.fuse(states), [placed for placed, _ in input_of])
        for run, _ in work:
            run.state.keep_last(run.drawing.query.tokens)
        return active

    def _step(
        self,
        work: Sequence[tuple[_Run, int]],
        hidden: Rows,
        placed: Sequence[Placed] | None = None,
    ) -> list[_Run]:
        """Run the next rows of each, draw where a text is read; return who wants another."""
        model = self._model
        rows = [_placed(*entry) for entry in work] if placed is None else placed
        runs = [run for run, _ in work if run.whole]
        logits, following = model.head.step(
            step_input(rows, [run.whole for run, _ in work]), hidden
        )
        ended = draw_each(
            [run.drawing for run in runs],
            logits,
            self._rows,
            vocabulary=model.vocabulary,
            support=model.support,
            columns=model.columns,
            threads=model.threads,
        )
        for i, (run, why) in enumerate(zip(runs, ended, strict=True)):
            run.state.ended = why
            run.next = following[i : i + 1]
        return [run for run in runs if run.drawing.wants_more(model.ends)]


def _placed(run: _Run, count: int) -> Placed:
    return Placed(run.tokens(count), run.position, run.state.table.array)
