"""Hands out the pages of a KV store to sequences, which grow, roll back and let go.

The store itself (bytes and layout) belongs to the executor; this is only who uses what.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import RequestError
from fewbit.runtime.step import PAGE


def pages_for(positions: int) -> int:
    """Return how many pages hold this many positions."""
    return -(-positions // PAGE)


class PageAllocator:
    """The free pages of one store; the page given back last is handed out first."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free = list(range(pages - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take pages.

        Raises:
            RequestError: fewer are free; nothing was taken.
        """
        if count > self.free:
            raise RequestError(
                f"{count} pages of {PAGE} positions are needed and {self.free} of {self.pages} are "
                "free; wait for other requests or give the engine more pages."
            )
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        """Return pages that nobody reads any more."""
        self._free.extend(reversed(pages))


class PageTable:
    """The pages of one sequence, in order of position."""

    def __init__(self, allocator: PageAllocator) -> None:
        self._allocator = allocator
        self._pages: list[int] = []
        self._array = np.empty(0, np.int32)

    @property
    def array(self) -> NDArray[np.int32]:
        """The pages, int32; `array[i]` holds positions [i * PAGE, (i + 1) * PAGE)."""
        return self._array

    def can_grow(self, positions: int) -> bool:
        """Whether `grow(positions)` would succeed."""
        return pages_for(positions) - len(self._pages) <= self._allocator.free

    def grow(self, positions: int) -> None:
        """Hold enough pages for this many positions; holding more already changes nothing.

        Raises:
            RequestError: too few pages are free; the table is unchanged.
        """
        missing = pages_for(positions) - len(self._pages)
        if missing > 0:
            self._pages += self._allocator.take(missing)
            self._array = np.array(self._pages, np.int32)

    def roll_back(self, positions: int) -> None:
        """Give back the pages that only held positions from here on."""
        kept = pages_for(positions)
        if kept < len(self._pages):
            self._allocator.give_back(self._pages[kept:])
            del self._pages[kept:]
            self._array = np.array(self._pages, np.int32)
