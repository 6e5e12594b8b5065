"""Exact speculative sampling: the emitted tokens follow the target's distribution, whatever drafts.

The rule is that of Leviathan et al., "Fast inference from transformers via speculative decoding",
ICML 2023, and Chen et al., "Accelerating large language model decoding with speculative sampling",
2023. A proposal x drawn from q is accepted with probability min(1, p(x) / q(x)); after the first
rejection one token is drawn from max(p - q, 0), renormalized. That the result is distributed as p
is established; it needs three things that programs get wrong:

* q is what the proposal was really drawn from, after the same truncation as p;
* the number that accepts and the number that corrects are independent;
* the remainder is renormalized.

Nothing in this module changes the target's distribution, and no rule that does belongs here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.errors import NumericalError, UsageError

SUM_TOLERANCE = 1e-4
"""How far a row may be from 1: float32 softmax over 2^18 tokens stays within 2^18 * 2^-24 / 2."""


def exact_accept_reject(
    proposals: ArrayLike,
    draft_probs: ArrayLike | None,
    target_probs: ArrayLike,
    rng: np.random.Generator,
) -> tuple[int, int | None]:
    """Accept a prefix of the proposals, and draw the token that follows it.

    The accepted proposals and the correction together are distributed exactly as tokens drawn
    from the target one by one.

    Args:
        proposals: K token ids; `proposals[i]` was drawn from `draft_probs[i]`, independently of
            `rng`.
        draft_probs: [K, V], what each proposal was drawn from; None where the draft is
            deterministic (a point mass on each proposal).
        target_probs: [K + 1, V] or [K, V], the target's distribution at each position, given the
            proposals before it.
        rng: one number decides on each proposal that is reached, one more draws the correction.

    Returns:
        How many proposals are accepted, and the token after them: drawn from the remainder where
        a proposal was rejected, from the last row where all K were accepted and `target_probs` has
        K + 1 rows, and None where it has K.

    Raises:
        UsageError: shapes that do not fit, an id out of range, a row that is no distribution, or a
            proposal that its draft gives no probability.
        NumericalError: a probability is not finite.
    """
    ids, draft, target = _checked(proposals, draft_probs, target_probs)
    for i, token in enumerate(ids):
        chance = target[i, token]
        drawn_from = 1.0 if draft is None else draft[i, token]
        if chance < drawn_from and rng.random() * drawn_from >= chance:
            return i, _draw(_remainder(target[i], None if draft is None else draft[i], token), rng)
    if len(target) == len(ids):
        return len(ids), None
    return len(ids), _draw(target[-1], rng)


def _remainder(
    target: NDArray[np.float64], draft: NDArray[np.float64] | None, token: int
) -> NDArray[np.float64]:
    """Return max(p - q, 0), float64 [V], unnormalized; p where rounding left nothing of it."""
    left = target.copy()
    if draft is None:
        left[token] = 0.0
    else:
        left = np.maximum(target - draft, 0.0)
    return left if left.any() else target


def _draw(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw an index in proportion to the weights, by inverse CDF in ascending order."""
    reached = np.cumsum(weights)
    found = int(np.searchsorted(reached, rng.random() * reached[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))


def _checked(
    proposals: ArrayLike, draft_probs: ArrayLike | None, target_probs: ArrayLike
) -> tuple[list[int], NDArray[np.float64] | None, NDArray[np.float64]]:
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
