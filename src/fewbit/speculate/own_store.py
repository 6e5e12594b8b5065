"""What drafts with a KV store of their own share: its room, reading in portions, rows of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.pages import PageTable
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


def hold(state: Stored, rows: int, others: Iterable[Stored], call: int) -> bool:
    """Hold pages for so many rows, those of sequences that a call does not ask for if need be.

    Returns:
        False where pages run out even so.
    """
    held = list(others)
    while not state.table.can_grow(rows):
        idle = [other for other in held if other.used != call and len(other.table)]
        if not idle:
            return False
        min(idle, key=lambda other: other.used).forget()
    state.table.grow(rows)
    return True


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
