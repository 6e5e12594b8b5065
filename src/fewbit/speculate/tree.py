"""Draft trees: a chain of tokens and branches that leave it, judged as one.

After the first `depth` tokens of the chain a branch proposes others in place of the chain's next.
All candidates for one position are judged in turn; where one is accepted the walk goes on behind
it, and where none is a token is drawn in their place. Token by token this is exact, because each
step is: by `candidates` where they were drawn without replacement, by comparison with the target's
own token (sample and match) where they were not drawn at all, or with the target's number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fewbit.sampling import Branch, tree_rows
from fewbit.speculate.candidates import candidates_accept_reject
from fewbit.speculate.rows import draw, pick


def tree_accept_reject(
    chain: Sequence[int],
    branches: Sequence[Branch],
    draft_probs: ArrayLike,
    target_probs: ArrayLike,
    rng: np.random.Generator,
) -> tuple[list[int], int | None]:
    """Accept the way to one node of a tree, and draw the token that follows it.

    Args:
        chain: K token ids; `chain[i]` was drawn from `draft_probs[i]`.
        branches: of one token each, those of depth i drawn in their order without replacement from
            what `draft_probs[i]` leaves without `chain[i]`; depths below K.
        draft_probs: [K, V].
        target_probs: [K + 1 + branches, V], the target's distribution after each of the chain's
            tokens, before the first included, and then after each branch's.
        rng: one number decides on each candidate that is reached, one more draws the last token.

    Returns:
        The accepted tokens and the one after them; and the branch that they end on, None for the
        chain.

    Raises:
        UsageError, NumericalError: as `candidates_accept_reject`.
    """
    draft, target = np.asarray(draft_probs, np.float64), np.asarray(target_probs, np.float64)
    for depth, first in enumerate(chain):
        own = [i for i, branch in enumerate(branches) if branch.depth == depth]
        candidates = [first, *(branches[i].tokens[0] for i in own)]
        which, token = candidates_accept_reject(candidates, draft[depth], target[depth], rng)
        if which is None:
            return [*chain[:depth], token], None
        if which > 0:
            branch = own[which - 1]
            return [*chain[:depth], token, draw(target[len(chain) + 1 + branch], rng)], branch
    return [*chain, draw(target[len(chain)], rng)], None


def tree_match(
    chain: Sequence[int],
    branches: Sequence[Branch],
    target_probs: ArrayLike,
    uniforms: Sequence[float],
) -> tuple[list[int], int | None]:
    """Follow a tree while it has what the target draws; return its tokens, the last one its own.

    Args:
        chain: K token ids.
        branches: of any number of tokens each.
        target_probs: [rows, V], the target's distribution after each of the chain's tokens, before
            the first included, and then after each token of the branches, in their order.
        uniforms: the number in [0, 1) of each position, by which plain decoding draws there.

    Returns:
        The tokens, and the branch that those of the tree end on, None for the chain.
    """
    target = np.asarray(target_probs, np.float64)
    found: list[int] = []
    branch: int | None = None
    along, taken, row = tuple(chain), 0, 0
    while True:
        token = pick(target[row], uniforms[len(found)])
        found.append(token)
        if taken < len(along) and token == along[taken]:
            taken, row = taken + 1, row + 1
            continue
        if branch is not None:
            return found, branch
        for i, other in enumerate(branches):
            if other.depth == taken and other.tokens[0] == token:
                branch = i
        if branch is None:
            return found, None
        along, taken = branches[branch].tokens, 1
        row = 1 + tree_rows(chain, branches[:branch])
