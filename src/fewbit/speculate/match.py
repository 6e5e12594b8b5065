"""Sample and match: the target draws as it would alone, and a draft is right where it said so.

With point masses this accepts a token with exactly the target's probability of it, as rejection
does. With coupled sampling the draft draws by the very number that the target will draw by, through
its own distribution; the better the two agree, the more often they draw the same token. In either
case the output is what the target draws alone from its own numbers, so it cannot depend on the
draft: a request with a seed says the same with any draft or with none.
"""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from fewbit.errors import UsageError
from fewbit.speculate.rows import checked_block, pick


def sample_and_match(
    proposals: ArrayLike, target_probs: ArrayLike, uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """Accept proposals while they are what the target draws, and return what it draws then.

    Args:
        proposals: K token ids.
        target_probs: [K + 1, V] or [K, V], the target's distribution at each position, given the
            proposals before it.
        uniforms: the number in [0, 1) of each row, by which plain decoding draws there.

    Returns:
        How many proposals are accepted, and the token after them; None where all K were accepted
        and `target_probs` has K rows.

    Raises:
        UsageError: shapes that do not fit, an id out of range, or a row that is no distribution.
        NumericalError: a probability is not finite.
    """
    ids, _, target = checked_block(proposals, None, target_probs)
    if len(uniforms) != len(target):
        raise UsageError(
            f"there are {len(uniforms)} numbers for {len(target)} rows of target_probs; give one "
            "for each."
        )
    for i, (row, uniform) in enumerate(zip(target, uniforms, strict=True)):
        token = pick(row, uniform)
        if i == len(ids) or token != ids[i]:
            return i, token
    return len(ids), None
