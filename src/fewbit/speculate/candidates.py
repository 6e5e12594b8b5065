"""Several candidates for one position, drawn without replacement: the step of a draft tree.

A tree proposes more than one token after the same prefix. They are drawn from q one after another,
each from what the ones before left of it, and judged in that order: the first by min(1, p / q);
after a rejection p becomes max(p - q, 0) and q loses the rejected token, both renormalized
(recursive rejection sampling without replacement; Jeon et al., "Recursive speculative decoding",
2024, arXiv:2402.14160; Yang et al., "Multi-candidate speculative decoding", 2024,
arXiv:2401.06706). What is emitted is distributed as p: established, as each judgement is the rule
of `exact` for the remainders of the one before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.errors import UsageError
from fewbit.speculate.rows import checked_block, draw, remainder


def candidates_accept_reject(
    candidates: ArrayLike,
    draft_probs: ArrayLike,
    target_probs: ArrayLike,
    rng: np.random.Generator,
) -> tuple[int | None, int]:
    """Accept at most one of the candidates for a position, or draw a token in their place.

    Args:
        candidates: M different token ids, in the order in which they were drawn from `draft_probs`
            without replacement, independently of `rng`.
        draft_probs: [V], what the first was drawn from.
        target_probs: [V], the target's distribution at the position.
        rng: one number decides on each candidate that is reached, one more draws the correction.

    Returns:
        Which candidate was accepted, None for none of them; and the token that is emitted.

    Raises:
        UsageError: shapes that do not fit, an id out of range or given twice, a row that is no
            distribution, or a candidate that the draft gives no probability.
        NumericalError: a probability is not finite.
    """
    count = np.size(candidates)
    ids, drafts, targets = checked_block(
        candidates, _repeated(draft_probs, count), _repeated(target_probs, max(count, 1))
    )
    if len(set(ids)) != count:
        raise UsageError(f"candidates are {ids}; drawn without replacement each comes once.")
    target = targets[0]
    draft = drafts[0].copy() if drafts is not None and count else target
    for i, token in enumerate(ids):
        if rng.random() * draft[token] < target[token]:
            return i, token
        left = remainder(target, draft, token)
        target = left / left.sum()
        draft[token] = 0.0
        if not draft.any():
            break
        draft /= draft.sum()
    return None, draw(target, rng)


def _repeated(row: ArrayLike, count: int) -> NDArray[np.float64]:
    """Return a row [V] as `count` equal ones."""
    return np.repeat(np.asarray(row, np.float64)[None], count, axis=0)
