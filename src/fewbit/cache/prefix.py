"""Which page holds which tokens, so that a sequence can begin with pages computed for another.

A page's key is a digest chained over all tokens from the sequence's start. The digest only finds a
page; what decides is that the page's own tokens and its parent page are those looked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from fewbit.runtime.step import PAGE

NO_PAGE = -1
"""The parent of a sequence's first page."""

Digest = Callable[[bytes, bytes], bytes]
"""Of a parent's digest (empty for none) and a page's tokens."""


def chained_digest(parent: bytes, tokens: bytes) -> bytes:
    """Return the digest of all tokens up to a page's end."""
    return blake2b(parent + tokens, digest_size=16).digest()


class PageKey(NamedTuple):
    """What a full page holds: the digest of everything up to its end, and its tokens, int32."""

    digest: bytes
    tokens: bytes


class _Entry(NamedTuple):
    page: int
    parent: int
    tokens: bytes


class PrefixIndex:
    """Finds the pages of a text's beginning among those that were computed and verified.

    Whoever holds a page holds its parents too, and a page is only forgotten before its parent
    (`PagePool` sees to it). So a page number names the same parent as long as a child knows it.
    """

    def __init__(self, digest: Digest = chained_digest) -> None:
        self._digest = digest
        self._entries: dict[bytes, _Entry] = {}
        self._digests: dict[int, bytes] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._digests

    def extend(self, keys: list[PageKey], tokens: Sequence[int], count: int) -> None:
        """Add the keys of a sequence's first `count` full pages that are not in `keys` yet."""
        for i in range(len(keys), count):
            page = array("i", tokens[i * PAGE : (i + 1) * PAGE]).tobytes()
            keys.append(PageKey(self._digest(keys[-1].digest if keys else b"", page), page))

    def find(self, keys: Sequence[PageKey]) -> list[int]:
        """Return the pages that hold a sequence's beginning, as far as there are any."""
        pages: list[int] = []
        parent = NO_PAGE
        for key in keys:
            entry = self._entries.get(key.digest)
            if entry is None or not self._holds(entry, key, parent):
                break
            parent = entry.page
            pages.append(parent)
        return pages

    def add(self, page: int, key: PageKey, parent: int) -> int:
        """Make a computed page known; the parent comes first.

        Returns:
            The page that stands for these tokens from now on: this one, or an equal one known
            before. `NO_PAGE` where it cannot be known: its parent is not, or its digest is another
            page's.
        """
        entry = self._entries.get(key.digest)
        if entry is not None:
            return entry.page if self._holds(entry, key, parent) else NO_PAGE
        if parent != NO_PAGE and parent not in self._digests:
            return NO_PAGE
        self._entries[key.digest] = _Entry(page, parent, key.tokens)
        self._digests[page] = key.digest
        return page

    def forget(self, page: int) -> None:
        """Stop knowing a page that will be written anew."""
        del self._entries[self._digests.pop(page)]

    @staticmethod
    def _holds(entry: _Entry, key: PageKey, parent: int) -> bool:
        return entry.tokens == key.tokens and entry.parent == parent
