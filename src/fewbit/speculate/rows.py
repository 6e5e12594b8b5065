"""Rows of probabilities as the rules take them: checked, subtracted, drawn from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.errors import NumericalError, UsageError

SUM_TOLERANCE = 1e-4
"""How far a row may be from 1: float32 softmax over 2^18 tokens stays within 2^18 * 2^-24 / 2."""


def remainder(
    target: NDArray[np.float64], draft: NDArray[np.float64] | None, token: int
) -> NDArray[np.float64]:
    """Return max(p - q, 0), float64 [V], unnormalized; p where rounding left nothing of it.

    `draft` None is a point mass on `token`.
    """
    left = target.copy()
    if draft is None:
        left[token] = 0.0
    else:
        left = np.maximum(target - draft, 0.0)
    return left if left.any() else target


def draw(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw an index in proportion to float64 [V] weights, with one number of `rng`."""
    return pick(weights, rng.random())


def pick(weights: NDArray[np.float64], uniform: float) -> int:
    """Return the index at which the cumulated weights, in ascending order, exceed a share.

    Args:
        weights: float64 [V], not negative and not all 0.
        uniform: the share of their sum, in [0, 1).
    """
    reached = np.cumsum(weights)
    found = int(np.searchsorted(reached, uniform * reached[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))


def checked_block(
    proposals: ArrayLike, draft_probs: ArrayLike | None, target_probs: ArrayLike
) -> tuple[list[int], NDArray[np.float64] | None, NDArray[np.float64]]:
    """Return K ids, the draft's rows [K, V] or None, and the target's [K or K + 1, V], float64.

    Rows sum to 1 as exactly as float64 can.

    Raises:
        UsageError: shapes that do not fit, an id out of range, a row that is no distribution, or a
            proposal that its draft gives no probability.
        NumericalError: a probability is not finite.
    """
    ids = np.asarray(proposals)
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise UsageError(f"proposals have type {ids.dtype}; give integer token ids.")
    if ids.ndim != 1:
        raise UsageError(f"proposals have shape {list(ids.shape)}; give K token ids in one row.")
    target = _checked_rows("target_probs", target_probs)
    if len(target) not in (len(ids), len(ids) + 1):
        raise UsageError(
            f"target_probs has {len(target)} rows for {len(ids)} proposals; give one for each, "
            "or one more to draw the token after them."
        )
    vocabulary = target.shape[1]
    for i, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise UsageError(f"proposals[{i}] is {token}; ids are in [0, {vocabulary - 1}].")
    draft = None if draft_probs is None else _checked_draft(ids, draft_probs, vocabulary)
    return [int(token) for token in ids], draft, target


def _checked_draft(
    ids: NDArray[np.integer], draft_probs: ArrayLike, vocabulary: int
) -> NDArray[np.float64]:
    draft = _checked_rows("draft_probs", draft_probs)
    if draft.shape != (len(ids), vocabulary):
        raise UsageError(
            f"draft_probs has shape {list(draft.shape)}; {len(ids)} proposals and the target's "
            f"vocabulary need [{len(ids)}, {vocabulary}]."
        )
    for i, token in enumerate(ids):
        if draft[i, token] == 0:
            raise UsageError(
                f"proposals[{i}] is {token}, which draft_probs[{i}] gives probability 0; pass the "
                "distribution that the proposal was drawn from."
            )
    return draft


def _checked_rows(name: str, value: ArrayLike) -> NDArray[np.float64]:
    rows = np.asarray(value, np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise UsageError(f"{name} has shape {list(rows.shape)}; give rows over the vocabulary.")
    bad = np.argwhere(~np.isfinite(rows))
    if bad.size:
        row, token = bad[0]
        raise NumericalError(f"{name}[{row}, {token}] is {rows[row, token]}; it must be finite.")
    if (rows < 0).any():
        row, token = np.argwhere(rows < 0)[0]
        raise UsageError(f"{name}[{row}, {token}] is {rows[row, token]}; it must not be negative.")
    for row, total in enumerate(rows.sum(axis=1)):
        if abs(total - 1) > SUM_TOLERANCE:
            raise UsageError(f"{name}[{row}] sums to {total}; a distribution sums to 1.")
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))
