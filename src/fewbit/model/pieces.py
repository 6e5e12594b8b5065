"""Pieces of sequences, and the step that runs several of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.runtime.step import Span, StepInput


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one sequence in a step.

    tokens int32 [rows], from `position` on; `pages` int32, the sequence's pages from its start;
    `wanted` int32, the indices into `tokens` whose logits come back. `trunk` numbers an earlier
    piece of the step that this one branches off, as `Span.trunk` says.
    """

    tokens: NDArray[np.int32]
    position: int
    pages: NDArray[np.int32]
    wanted: NDArray[np.int32]
    trunk: int | None = None


def step_of(pieces: Sequence[Piece]) -> StepInput:
    """Return the step that runs several sequences' pieces together, in order."""
    counts = [len(piece.tokens) for piece in pieces]
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(int).tolist()
    spans = tuple(
        Span(start, count, piece.position, piece.pages, piece.trunk)
        for start, count, piece in zip(starts, counts, pieces, strict=True)
    )
    wanted = [piece.wanted + start for start, piece in zip(starts, pieces, strict=True)]
    return StepInput(
        np.concatenate([piece.tokens for piece in pieces]).astype(np.int32),
        spans,
        np.concatenate(wanted).astype(np.int32),
    )
