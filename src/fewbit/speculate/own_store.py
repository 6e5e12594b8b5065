"""What drafts with a KV store of their own share: its room, reading in portions, rows of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.pages import PagePool, PageTable
from fewbit.runtime.step import Span, StepInput

READ_ROWS = 128
"""Rows that one call spends at most on texts not read yet: every sequence waits for them."""

KEEPS_UP = 8
"""A sequence with at most so many rows to read is served before any that has a text to read."""

_T = TypeVar("_T")


class Stored(Protocol):
    """What a draft has of a sequence in its store."""

    table: PageTable
    used: int
    """The call that asked for it last."""

    def forget(self) -> None:
        """Let all pages go."""
        ...


_StoredT = TypeVar("_StoredT", bound=Stored)


class OwnStore(Generic[_StoredT]):
    """The pages of a draft's own store, and what it has there of each sequence.

    Args:
        pages: so many there are.
        begun: makes what a draft has of a sequence that it does not know.
    """

    def __init__(self, pages: int, begun: Callable[[PageTable], _StoredT]) -> None:
        self.sequences: dict[int, _StoredT] = {}
        self._pool = PagePool(pages)
        self._begun = begun
        self._call = 0

    @property
    def held(self) -> int:
        """Pages that sequences hold now."""
        return self._pool.held

    def call(self) -> None:
        """Begin a call: what only earlier ones asked for may lose its pages."""
        self._call += 1

    def of(self, sequence: int) -> _StoredT:
        """Return what the draft has of a sequence."""
        if sequence not in self.sequences:
            self.sequences[sequence] = self._begun(self.table())
        return self.sequences[sequence]

    def asked(self, sequence: int) -> _StoredT:
        """Return what the draft has of a sequence that the call asks for."""
        state = self.of(sequence)
        state.used = self._call
        return state

    def hold(self, state: Stored, rows: int) -> bool:
        """Hold pages for so many rows: if need be, of sequences that the call does not ask for.

        Returns:
            False where pages run out even so.
        """
        while not state.table.can_grow(rows):
            held = (other for other in self.sequences.values() if len(other.table))
            idle = [other for other in held if other.used != self._call]
            if not idle:
                return False
            min(idle, key=lambda other: other.used).forget()
        state.table.grow(rows)
        return True

    def table(self) -> PageTable:
        """Return a table of no pages."""
        return PageTable(self._pool)

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        state = self.sequences.pop(sequence, None)
        if state is not None:
            state.forget()


def portions(runs: Iterable[_T], unread: Callable[[_T], int], rows: int) -> list[tuple[_T, int]]:
    """Return how many rows of each are read in a call: all of those that keep up, first.

    Of the others `rows` together, in their order; those that get none are left out.
    """
    found = []
    for run in sorted(runs, key=lambda run: unread(run) > KEEPS_UP):
        wanted = unread(run)
        count = wanted if wanted <= KEEPS_UP else min(wanted, rows)
        if count:
            found.append((run, count))
            rows -= count if wanted > KEEPS_UP else 0
    return found


def beside(
    state: Stored, fresh: PageTable, pages: int, page: Callable[[int], bytes]
) -> list[tuple[bytes, bytes]]:
    """Return the first pages of a sequence, each with the fresh one; the fresh ones are let go."""
    pairs = zip(state.table.array[:pages], fresh.array, strict=True)
    found = [(page(int(old)), page(int(new))) for old, new in pairs]
    fresh.roll_back(0)
    return found


@dataclass(frozen=True, slots=True)
class Placed:
    """Consecutive rows of a sequence: their tokens and where they stand in its pages."""

    tokens: Sequence[int]
    position: int
    pages: NDArray[np.int32]


def step_input(rows: Sequence[Placed], wanted: Sequence[bool]) -> StepInput:
    """Return the step that runs these rows; the last one's logits come back where wanted."""
    tokens: list[int] = []
    last: list[int] = []
    spans: list[Span] = []
    for placed, want in zip(rows, wanted, strict=True):
        spans.append(Span(len(tokens), len(placed.tokens), placed.position, placed.pages))
        tokens += placed.tokens
        if want:
            last.append(len(tokens) - 1)
    return StepInput(np.array(tokens, np.int32), tuple(spans), np.array(last, np.int32))
