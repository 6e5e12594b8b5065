"""Block verification: the rule that accepts the most of a block that was drawn from a draft.

The rule is that of Sun et al., "Block verification accelerates speculative decoding", ICLR 2025
(arXiv:2403.10444), Algorithm 2. Token verification rejects a block's ending at its first bad token;
this rule looks at all of the block, and lets a token that the target likes more than the draft did
make up for one before it. With p and q the distributions of target and draft, X the block and

    w[0] = 1,  w[i] = min(w[i-1] * p(X[i]) / q(X[i]), 1)

the first i tokens are kept with probability w[i] in all, for every i: with h[K] = w[K] and

    s[i] = sum over x of max(w[i] * p(x | X[:i]) - q(x | X[:i]), 0)
    h[i] = s[i] / (s[i] + 1 - w[i])

each i is put to the test h[i] by a number of its own, and the largest that passes says how much is
kept. After it comes a token drawn from max(w[i] * p - q, 0), renormalized. That the result is
distributed as p, and that no rule of this kind accepts more in expectation, is established.

One thing goes wrong beyond what `exact` names: what happens after position i decides on i, so the
numbers used there must not be used again when those positions are drafted a second time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.speculate.rows import checked_block, draw


class BlockOdds(NamedTuple):
    """What decides on a block of K tokens."""

    keep: NDArray[np.float64]
    """h, float64 [K]: the chance that the test at each ending is passed."""
    remainders: list[NDArray[np.float64]]
    """For each i below K, what the token after i kept ones is drawn from: float64 [V], of any sum.
    """


def block_accept_reject(
    proposals: ArrayLike,
    draft_probs: ArrayLike | None,
    target_probs: ArrayLike,
    rng: np.random.Generator,
) -> tuple[int, int | None]:
    """Accept a prefix of the proposals, and draw the token that follows it.

    Arguments, result and errors are those of `exact.exact_accept_reject`; `rng` gives a number for
    each proposal and one for the token after them.
    """
    ids, draft, target = checked_block(proposals, draft_probs, target_probs)
    odds = block_odds(ids, draft, target)
    kept = 0
    for i, chance in enumerate(odds.keep, start=1):
        if rng.random() < chance:
            kept = i
    if kept < len(ids):
        return kept, draw(odds.remainders[kept], rng)
    return kept, draw(target[kept], rng) if kept < len(target) else None


def block_odds(
    ids: list[int], draft: NDArray[np.float64] | None, target: NDArray[np.float64]
) -> BlockOdds:
    """Return the chances and the remainders of a block.

    Args:
        ids: K tokens.
        draft: float64 [K, V], what each was drawn from; None for a point mass on each.
        target: float64 [K, V] or [K + 1, V].
    """
    keep = np.zeros(len(ids))
    remainders = []
    weight = 1.0
    for i, token in enumerate(ids):
        drawn_from = np.eye(1, target.shape[1], token)[0] if draft is None else draft[i]
        left = np.maximum(weight * target[i] - drawn_from, 0.0)
        if i:
            keep[i - 1] = _chance(float(left.sum()), weight)
        remainders.append(left if left.any() else target[i])
        weight = min(weight * target[i, token] / drawn_from[token], 1.0)
    if ids:
        keep[-1] = weight
    return BlockOdds(keep, remainders)


def _chance(left: float, weight: float) -> float:
    """Return s / (s + 1 - w); 1 where both are 0, as then the draft is the target."""
    return left / (left + 1.0 - weight) if left + 1.0 - weight > 0 else 1.0
