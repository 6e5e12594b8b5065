"""What a draft head has of a sequence: states that wait to be read, and rows in its own store."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.pages import PageTable
from fewbit.runtime.step import PAGE
from fewbit.speculate.own_store import KEEPS_UP

Rows = NDArray[np.float32]

KEPT_STATES = 2048
"""States that wait to be read, of each sequence at most; a head that is asked later than that
begins with the latest of them."""


@dataclass(eq=False, slots=True)
class HeadSequence:
    """What the head has of a sequence.

    Its rows are numbered by the sequence's positions: row p is of the token behind position p, with
    that position's state. In the store lie the rows from `base` on, `computed` of them; their pages
    count from `base`. `waiting` has states of the rows from `at` to `known`, that of the row read
    last included: it is read again where no token came since.
    """

    table: PageTable
    waiting: deque[Rows] = field(default_factory=deque)
    at: int = 0
    known: int = 0
    base: int = 0
    computed: int = 0
    shared: int = 0
    """Pages that other sequences can begin with."""
    used: int = 0
    """The call that asked for it last."""
    ended: str = ""
    """Why nothing more is drafted for it: its logits were not finite."""

    @property
    def read(self) -> int:
        """The first row that is not read yet."""
        return self.base + self.computed

    def watch(self, first: int, states: Rows) -> None:
        """Take states of rows from `first` on; what lies before a gap is of no use any more."""
        if first > self.known:
            self.waiting.clear()
            self.at = self.known = first
        fresh = states[self.known - first :]
        if not len(fresh):
            return
        self.waiting.append(fresh.copy())
        self.known += len(fresh)
        while self.known - self.at - len(self.waiting[0]) >= KEPT_STATES:
            self.at += len(self.waiting.popleft())

    def settle(self, tokens: Sequence[int]) -> int:
        """Make the store fit a sequence's tokens; return how many rows are still to be read.

        0 where the last one's state has not come, so that nothing can be drafted.
        """
        rows = len(tokens) - 1
        if not rows or self.known < rows:
            return 0
        self.computed = min(self.computed, rows - 1 - self.base)
        self.table.roll_back(self.computed)
        if not self.base and rows - self.computed > KEEPS_UP:
            self.computed = self.table.reuse(_row_ids(tokens, rows), self.computed)
        if self.at > self.read:
            self.forget()
            self.base = self.at
        return rows - self.read

    def take(self, count: int) -> Rows:
        """Return the states of the next rows to read, and count them as read."""
        if len(self.waiting) > 1:
            self.waiting = deque([np.concatenate(self.waiting)])
        begin = self.read - self.at
        self.computed += count
        return self.waiting[0][begin : begin + count]

    def keep_last(self, tokens: Sequence[int]) -> None:
        """Let go of states that were read, and let other sequences begin with full pages.

        Not with the last row's, which may be written again.
        """
        done = self.read - 1 - self.at
        if done > 0:
            self.waiting = deque([self.waiting[0][done:].copy()])
            self.at += done
        full = (self.computed - 1) // PAGE
        if not self.base and full > self.shared:
            self.table.share(_row_ids(tokens, full * PAGE), full * PAGE)
            self.shared = full

    def forget(self) -> None:
        """Let all pages go."""
        self.table.roll_back(0)
        self.base = self.computed = self.shared = 0


def _row_ids(tokens: Sequence[int], rows: int) -> list[int]:
    """Return an id for each row from 0 on, by which pages are found again.

    A row's is its token's; that of row 0 also stands for the token at position 0, on which all
    states depend and which has no row.
    """
    first = blake2b(array("i", tokens[:2]).tobytes(), digest_size=4).digest()
    return [int.from_bytes(first, "little") >> 1, *tokens[2 : rows + 1]]
