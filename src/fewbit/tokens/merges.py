"""SentencePiece's BPE as a list of merges.

SentencePiece joins, among all adjacent pairs whose concatenation is a piece, the one whose result
has the highest score. Ranked merges say the same when every way of splitting a piece is a merge
and merges are ordered by the score of their result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fewbit.errors import BadFileError


def merges_from_scores(pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges that build `pieces` (text to score), best score first.

    Splits of one piece, and pieces of one score, are ordered by the longer left part, as
    transformers' converter orders them. SentencePiece takes the leftmost pair there: the two
    differ only where two overlapping pairs would give the same piece by different splits.
    """
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in pieces.items():
        for cut in range(1, len(piece)):
            left = piece[:cut]
            if left in pieces and piece[cut:] in pieces:
                found.append((-score, -cut, cut - len(piece), left, piece[cut:]))
    found.sort(key=_rank)
    return [(left, right) for _, _, _, left, right in found]


def _rank(merge: tuple[float, int, int, str, str]) -> tuple[float, int, int]:
    return merge[:3]


def split_merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return GGUF's merge lines as pairs: cut at the first space that is not the first character.

    A repeated merge keeps its first rank.

    Raises:
        BadFileError: a line is not two tokens.
    """
    pairs: dict[tuple[str, str], None] = {}
    for index, line in enumerate(lines):
        cut = line.find(" ", 1)
        if not 0 < cut < len(line) - 1:
            raise BadFileError(f"merge {index:,} is {line[:80]!r} instead of two tokens.")
        pairs[line[:cut], line[cut + 1 :]] = None
    return list(pairs)
