"""Hands out the pages of a KV store to sequences, which grow, roll back, share and let go.

The store itself (bytes and layout) belongs to the executor; this is only who uses what.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.cache.prefix import NO_PAGE, PageKey, PrefixIndex
from fewbit.errors import RequestError
from fewbit.runtime.step import PAGE


def pages_for(positions: int) -> int:
    """Return how many pages hold this many positions."""
    return -(-positions // PAGE)


class PagePool:
    """The pages of one store, each counted by its holders.

    A page that nobody holds is free, or idle where the index knows its tokens: idle pages wait to
    be shared until pages run out, and then the one idle for longest is written anew. As a sequence
    lets go of its last page first and holds all parents of a page it holds, an idle page stands
    before its parent in that order: leaves go first.
    """

    def __init__(self, pages: int, index: PrefixIndex | None = None) -> None:
        self.pages = pages
        self.index = PrefixIndex() if index is None else index
        self.peak = 0
        """The most pages held at once."""
        self.evictions = 0
        """Idle pages written anew."""
        self._free = list(range(pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._holders = [0] * pages

    @property
    def free(self) -> int:
        """How many pages can be taken: those that nobody holds."""
        return len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """How many pages somebody holds."""
        return self.pages - self.free

    @property
    def idle(self) -> int:
        """How many pages nobody holds and a next sequence may begin with."""
        return len(self._idle)

    def idle_among(self, pages: Iterable[int]) -> int:
        """Return how many of these pages nobody holds."""
        return sum(page in self._idle for page in pages)

    def take(self, count: int) -> list[int]:
        """Take pages to write in.

        Raises:
            RequestError: fewer are free; nothing was taken.
        """
        if count > self.free:
            raise RequestError(
                f"{count} pages of {PAGE} positions are needed and {self.free} of {self.pages} are "
                "free; wait for other requests or give the engine more pages."
            )
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        self.peak = max(self.peak, self.held)
        return taken

    def hold(self, pages: Iterable[int]) -> None:
        """Hold pages that the index knows, to read them."""
        for page in pages:
            if self._holders[page] == 0:
                del self._idle[page]
            self._holders[page] += 1
        self.peak = max(self.peak, self.held)

    def let_go(self, pages: Sequence[int]) -> None:
        """Stop holding a sequence's pages, given in order of position."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page] > 0:
                continue
            if page in self.index:
                self._idle[page] = None
            else:
                self._free.append(page)

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self.index.forget(page)
        self.evictions += 1
        return page


@dataclass(frozen=True, eq=False)
class Fork:
    """Pages in which a sequence may go on otherwise than in its own, from page `first` on."""

    first: int
    pages: list[int]
    """None are left once it was adopted or dropped, so that either changes nothing then."""
    array: NDArray[np.int32]
    """int32, all pages of the sequence so continued."""


def _taken(fork: Fork) -> list[int]:
    """Return a fork's pages, which it has no more."""
    pages = [*fork.pages]
    fork.pages.clear()
    return pages


class PageTable:
    """The pages of one sequence, in order of position; those shared with others are only read."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: list[int] = []
        self.array: NDArray[np.int32] = np.empty(0, np.int32)
        """The pages, int32; `array[i]` holds positions [i * PAGE, (i + 1) * PAGE)."""
        self._keys: list[PageKey] = []
        self._known = 0  # pages from the start that the index knows

    def __len__(self) -> int:
        return len(self._pages)

    def can_grow(self, positions: int) -> bool:
        """Whether `grow(positions)` would succeed."""
        return pages_for(positions) - len(self._pages) <= self._pool.free

    def grow(self, positions: int) -> None:
        """Hold enough pages for this many positions; holding more already changes nothing.

        Raises:
            RequestError: too few pages are free; the table is unchanged.
        """
        missing = pages_for(positions) - len(self._pages)
        if missing > 0:
            self._set(self._pages + self._pool.take(missing))

    def roll_back(self, positions: int) -> None:
        """Let go of the pages that only held positions from here on."""
        kept = pages_for(positions)
        if kept < len(self._pages):
            self._pool.let_go(self._pages[kept:])
            self._known = min(self._known, kept)
            self._set(self._pages[:kept])

    def can_fork(self, begin: int, end: int) -> bool:
        """Whether `fork` would succeed."""
        return pages_for(end) - begin // PAGE <= self._pool.free

    def fork(self, begin: int, end: int) -> Fork:
        """Take pages of their own for the positions from `begin` to `end`; the table stays as is.

        Whoever takes it gives it back, by `adopt` or `drop`.

        Raises:
            RequestError: too few pages are free.
        """
        first = begin // PAGE
        pages = self._pool.take(pages_for(end) - first)
        return Fork(first, pages, np.array([*self._pages[:first], *pages], np.int32))

    def adopt(self, fork: Fork) -> None:
        """Go on in the pages of a fork in place of its own there."""
        pages = _taken(fork)
        end = fork.first + len(pages)
        own = self._pages[fork.first : end]
        self._set([*self._pages[: fork.first], *pages, *self._pages[end:]])
        self._pool.let_go(own)

    def drop(self, fork: Fork) -> None:
        """Give the pages of a fork back."""
        self._pool.let_go(_taken(fork))

    def pages_to_take(self, tokens: Sequence[int], positions: int) -> int:
        """Return by how many an empty table that begins with `reuse` lowers the free pages."""
        found = self._find(tokens)
        return pages_for(positions) - len(found) + self._pool.idle_among(found)

    def reuse(self, tokens: Sequence[int], computed: int) -> int:
        """Begin with whole pages that hold these tokens already, if that is more than `computed`.

        At least the last token is left to compute, as its logits are wanted.

        Returns:
            How many positions are computed now.
        """
        found = self._find(tokens)
        if len(found) * PAGE <= computed:
            return computed
        self._pool.hold(found)
        self._pool.let_go(self._pages)
        self._known = len(found)
        self._set(found)
        return len(found) * PAGE

    def share(self, tokens: Sequence[int], verified: int) -> None:
        """Let others begin with the pages full of tokens that no roll-back can reach any more.

        Where an equal page is known already it takes the place of this sequence's own: by row
        invariance both hold the same bits.
        """
        full = verified // PAGE
        if full <= self._known:
            return
        self._pool.index.extend(self._keys, tokens, full)
        for i in range(self._known, full):
            parent = self._pages[i - 1] if i else NO_PAGE
            page = self._pool.index.add(self._pages[i], self._keys[i], parent)
            if page == NO_PAGE:
                return
            self._known = i + 1
            if page != self._pages[i]:
                self._replace(i, page)

    def next_key(self, tokens: Sequence[int], computed: int) -> PageKey | None:
        """Return the key of the page computed next; None where no other sequence could use it."""
        page, shareable = computed // PAGE, (len(tokens) - 1) // PAGE
        if page >= shareable:
            return None
        self._pool.index.extend(self._keys, tokens, shareable)
        return self._keys[page]

    def _find(self, tokens: Sequence[int]) -> list[int]:
        shareable = (len(tokens) - 1) // PAGE
        self._pool.index.extend(self._keys, tokens, shareable)
        return self._pool.index.find(self._keys[:shareable])

    def _replace(self, i: int, page: int) -> None:
        self._pool.hold([page])
        self._pool.let_go([self._pages[i]])
        self._set([*self._pages[:i], page, *self._pages[i + 1 :]])

    def _set(self, pages: list[int]) -> None:
        self._pages = pages
        self.array = np.array(pages, np.int32)
