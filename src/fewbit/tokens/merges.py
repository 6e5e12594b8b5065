"""SentencePiece's BPE as a list of merges.

SentencePiece joins, among all adjacent pairs whose concatenation is a piece, the one whose result
has the highest score. Ranked merges say the same when every way of splitting a piece is a merge
and merges are ordered by the score of their result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from fewbit.errors import BadFileError


def merges_from_scores(pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges that build `pieces` (text to score), best score first.

    Splits of one piece, and pieces of one score, are ordered by the longer left part, as
    transformers' converter orders them. SentencePiece takes the leftmost pair there: the two
    differ only where two overlapping pairs would give the same piece by different splits.
    """
    ranked = sorted(pieces, key=pieces.__getitem__, reverse=True)
    merges: list[tuple[str, str]] = []
    for _, equals in itertools.groupby(ranked, key=pieces.__getitem__):
        found = [pair for piece in equals for pair in _splits(piece, pieces)]
        found.sort(key=_lengths, reverse=True)
        merges += found
    return merges


def _splits(piece: str, pieces: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for cut in range(len(piece) - 1, 0, -1):
        left, right = piece[:cut], piece[cut:]
        if right in pieces and left in pieces:
            yield left, right


def _lengths(merge: tuple[str, str]) -> tuple[int, int]:
    return len(merge[0]), len(merge[1])


def split_merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return GGUF's merge lines as pairs: cut at the first space that is not the first character.

    A repeated merge keeps its first rank.

    Raises:
        BadFileError: a line is not two tokens.
    """
    pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    plain = all(left and right and " " not in right for left, right in pairs)
    return pairs if plain and len(set(lines)) == len(lines) else _split_one_by_one(lines)


def _split_one_by_one(lines: Sequence[str]) -> list[tuple[str, str]]:
    pairs: dict[tuple[str, str], None] = {}
    for index, line in enumerate(lines):
        cut = line.find(" ", 1)
        if not 0 < cut < len(line) - 1:
            raise BadFileError(
                f"merge {index:,} is {line[:80]!r} instead of two tokens; the tokenizer is "
                "damaged, fetch the model again."
            )
        pairs[line[:cut], line[cut + 1 :]] = None
    return list(pairs)
