"""An evenly spread part of a large source.

Calibration reads some hundred thousand tokens, and a file may have a thousand times as much. A
tokenizer takes 180 bytes of memory for each character of a text, and a second for 1.2 million
(SmolLM2's; empirical), so long passages are cut into pieces first, and no more of them is read than
there is a use for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fewbit.calibrate.entries import Conversation, Entry, Passage

LEAST = 1 << 23
"""Characters that are read whatever is asked for: some millions of tokens."""

CHARACTERS = 16
"""Of a source for each token that is asked for: three or four times what a token has, so that there
is something to choose from."""

_PIECE = 1 << 19
"""Characters of a piece of a passage of more than two such, at the least; it is cut at the end of a
line where it has lines."""


@dataclass(frozen=True)
class Portion:
    """What is read of a source."""

    entries: Sequence[Entry]
    note: str = ""
    """That it is a part; empty where it is all."""


def portion(entries: Sequence[Entry], tokens: int) -> Portion:
    """Return all of some entries, or where that is far more than is needed a part, evenly spread.

    Long passages come in pieces.

    Args:
        entries: of one source.
        tokens: that are asked for.
    """
    most = max(LEAST, CHARACTERS * tokens)
    total = sum(map(_size, entries))
    pieces = [piece for entry in entries for piece in _pieces(entry)]
    if total <= most:
        return Portion(pieces)
    count = max(1, len(pieces) * most // total)
    chosen = [pieces[number * len(pieces) // count] for number in range(count)]
    taken = sum(map(_size, chosen))
    return Portion(
        chosen, f"of its {total:,} characters {taken:,}, evenly spread, were cut into windows"
    )


def _size(entry: Entry) -> int:
    """Return an entry's characters, more or less."""
    if isinstance(entry, Passage):
        return len(entry.text)
    if isinstance(entry, Conversation):
        return sum(len(str(message.get("content"))) for message in entry.messages)
    return 4 * len(entry.ids)


def _pieces(entry: Entry) -> Iterator[Entry]:
    """Yield a long passage in pieces, and any other entry as it is."""
    if not isinstance(entry, Passage):
        yield entry
        return
    start = 0
    while len(entry.text) - start > 2 * _PIECE:
        end = entry.text.find("\n", start + _PIECE, start + 2 * _PIECE) + 1
        end = end or start + _PIECE
        yield Passage(entry.text[start:end])
        start = end
    yield Passage(entry.text[start:])
