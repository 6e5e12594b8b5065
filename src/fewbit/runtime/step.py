"""Everything dynamic about one step: the rows, where they stand, and whose logits are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PAGE = 64
"""Positions in a page of the KV store; divides the attention kernels' block of 256 keys."""


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one sequence: `count` consecutive rows from `start`, at consecutive positions.

    `pages[i]` is the page of the KV store that holds positions [i * PAGE, (i + 1) * PAGE); it
    covers the last row's position.

    `trunk` numbers an earlier span of the step that this one branches off: its rows stand behind
    those of the trunk's that come before `position`, of which there is at least one, and are alone
    to see them as they see their own. From the trunk's first row on it has pages of its own. The
    step copies to them what stands in the trunk's pages before that row, and writes the rows that
    it continues to both.
    """

    start: int
    count: int
    position: int
    pages: NDArray[np.int32]
    trunk: int | None = None

    def packed(self) -> tuple[int, int, int, NDArray[np.int32], int]:
        """Return it as the native executor takes it."""
        trunk = -1 if self.trunk is None else self.trunk
        return self.start, self.count, self.position, self.pages, trunk


class StepInput(NamedTuple):
    """Rows of any number of sequences, run in one step.

    tokens int32 [rows]; the spans cover the rows in order without gaps; `wanted` int32 lists the
    rows whose logits come back, in that order.
    """

    tokens: NDArray[np.int32]
    spans: tuple[Span, ...]
    wanted: NDArray[np.int32]

    def positions(self) -> NDArray[np.int32]:
        """Return each row's position, int32 [rows]."""
        parts = [np.arange(s.position, s.position + s.count, dtype=np.int32) for s in self.spans]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)
