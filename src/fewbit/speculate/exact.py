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
from numpy.typing import ArrayLike

from fewbit.speculate.rows import checked_block, draw, remainder


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
    ids, draft, target = checked_block(proposals, draft_probs, target_probs)
    for i, token in enumerate(ids):
        chance = target[i, token]
        drawn_from = 1.0 if draft is None else draft[i, token]
        if chance < drawn_from and rng.random() * drawn_from >= chance:
            return i, draw(remainder(target[i], None if draft is None else draft[i], token), rng)
    if len(target) == len(ids):
        return len(ids), None
    return len(ids), draw(target[-1], rng)
