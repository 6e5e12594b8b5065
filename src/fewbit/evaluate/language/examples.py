"""Where a candidate diverges most, as text that can be read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fewbit.evaluate.language.passages import Passage
from fewbit.evaluate.language.positions import Positions
from fewbit.records.drawn import Example
from fewbit.tokens.tokenizer import Tokenizer

EXAMPLES = 12
"""Shown, at most; of each document the worst prediction alone."""

_CONTEXT = 64
"""Tokens of the text before a prediction that are shown, at most."""


def worst(
    tokenizer: Tokenizer, passages: Sequence[Passage], positions: Positions
) -> tuple[Example, ...]:
    """Return the counted predictions of the largest divergence, the worst first."""
    c = positions.candidate
    order = np.argsort(-np.where(positions.counted, c.divergence, -1.0), kind="stable")
    _, firsts = np.unique(positions.owners[order], return_index=True)
    chosen = order[np.sort(firsts)][:EXAMPLES]
    kept = [row for row in chosen.tolist() if positions.counted[row] and c.divergence[row] > 0]
    return tuple(_example(tokenizer, passages, positions, row) for row in kept)


def _example(
    tokenizer: Tokenizer, passages: Sequence[Passage], positions: Positions, row: int
) -> Example:
    c, passage = positions.candidate, passages[positions.passages[row]]
    place = int(positions.places[row])
    before = passage.tokens[max(0, place + 1 - _CONTEXT) : place + 1].tolist()
    return Example(
        name=f"{passage.document.name}, token {place + 1}",
        slice=f"language/kl/{passage.domain}",
        asked=_text(tokenizer, before),
        source=_said(tokenizer, int(c.source_first[row]), float(c.source_chance[row])),
        candidate=_said(tokenizer, int(c.candidate_first[row]), float(c.candidate_chance[row])),
        expected=_text(tokenizer, [int(passage.tokens[place + 1])]),
        harm=float(c.divergence[row]),
    )


def _said(tokenizer: Tokenizer, token: int, chance: float) -> str:
    return f"{_text(tokenizer, [token])!r} ({chance:.0%})"


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return ids as text; rows of padding are named by their number."""
    if any(token >= tokenizer.vocabulary_size for token in ids):
        return " ".join(f"<token {token}>" for token in ids)
    return tokenizer.decode(ids)
