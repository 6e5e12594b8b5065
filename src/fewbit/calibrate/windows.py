"""Documents cut into windows of tokens, each beginning as the tokenizer begins a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.text import Documents
from fewbit.errors import UsageError

MINIMUM_TOKENS = 4
"""A shorter rest of a document is left out: it has no second half to score."""


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive tokens of one document, int32 [tokens], after the prefix (BOS or nothing)."""

    document: int
    tokens: NDArray[np.int32]


def cut_windows(
    documents: Documents,
    encode: Callable[[str], Sequence[int]],
    prefix: Sequence[int],
    *,
    length: int,
    limit: int,
) -> tuple[Window, ...]:
    """Return up to `limit` windows of up to `length` tokens, prefix included.

    The first window of every document comes before the second of any, so that a small limit is
    spread over as many documents as possible.

    Args:
        documents: the text; only the first `limit` documents can contribute.
        encode: text to token ids, without special tokens.
        prefix: ids put before every window.
        length: tokens of a full window.
        limit: windows at most.

    Raises:
        UsageError: no document has a window.
    """
    cut = [
        [Window(index, tokens) for tokens in _slices(encode(document.text), prefix, length)]
        for index, document in enumerate(documents.documents[:limit])
    ]
    rounds = max((len(windows) for windows in cut), default=0)
    ordered = [windows[turn] for turn in range(rounds) for windows in cut if turn < len(windows)]
    if not ordered:
        raise UsageError(
            f"The text '{documents.name}' has no document of at least {MINIMUM_TOKENS} tokens; "
            "give more text."
        )
    return tuple(ordered[:limit])


def _slices(ids: Sequence[int], prefix: Sequence[int], length: int) -> list[NDArray[np.int32]]:
    room = length - len(prefix)
    begins = np.array(prefix, np.int32)
    text = np.array(ids, np.int32)
    starts = range(0, len(text), room)
    windows = [np.concatenate([begins, text[start : start + room]]) for start in starts]
    return [window for window in windows if len(window) >= MINIMUM_TOKENS]
