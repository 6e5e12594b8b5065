"""Shingles: runs of words by which texts are recognised in one another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

SHINGLE_WORDS = 12
"""Words in a row that two texts must share to count as overlapping there."""

SHARED_LIMIT = 0.2
"""Share of a document's shingles that may occur in the other text: licence headers do."""

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]"
    "|[^\\s\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)
"""A character of a script that writes no spaces between words (Thai, Lao, Burmese, Khmer, kana,
Han), or a run of others without a space."""


def words(text: str) -> list[str]:
    """Return a text's words, whatever case and spacing.

    Where a script puts no spaces between words, each of its characters is one.
    """
    lowered = text.lower()
    return lowered.split() if lowered.isascii() else _UNSPACED.findall(lowered)


def shingles(text: str) -> dict[int, int]:
    """Return a text's shingles, by hash, each with the index of its first word.

    A text of fewer than `SHINGLE_WORDS` words is one shingle.
    """
    # Built-in hashes differ from process to process; they are only ever compared within one.
    found = words(text)
    starts = range(max(len(found) - SHINGLE_WORDS, 0), -1, -1)  # backwards: the first place stays
    return {hash(tuple(found[start : start + SHINGLE_WORDS])): start for start in starts}


class Known:
    """The shingles of texts seen so far, and which texts have each."""

    def __init__(self) -> None:
        self._owners: dict[int, list[int]] = {}
        self._sizes: list[int] = []

    def add(self, found: Collection[int]) -> None:
        """Add a text's shingles."""
        for shingle in found:
            self._owners.setdefault(shingle, []).append(len(self._sizes))
        self._sizes.append(len(found))

    def common(self, found: Collection[int]) -> list[int]:
        """Return those shingles of a text that another has too, in the order given."""
        return [shingle for shingle in found if shingle in self._owners]

    def share(self, found: Collection[int]) -> float:
        """Return the largest share in common with one text, of the smaller of the two."""
        common = Counter(o for s in found for o in self._owners.get(s, ()))
        shares = (n / min(len(found), self._sizes[owner]) for owner, n in common.items())
        return max(shares, default=0.0)

    def admit(self, found: Collection[int]) -> bool:
        """Add a text and return True, unless it largely repeats one seen before."""
        if self.share(found) > SHARED_LIMIT:
            return False
        self.add(found)
        return True
