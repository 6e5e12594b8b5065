"""Which branches a draft has beside its chain: as many as are expected to pay.

A branch brings tokens where the chain's token at its depth is rejected and the branch's accepted;
it costs a row of the target's step for each of its tokens, and next to nothing to draft. With S_d
the chance that the chain's first d tokens stand, r_d that the next one is accepted and a_k that the
k-th other candidate is, given that all before it were rejected, the chance of the k-th branch at
depth d is S_d (1 - r_d) (1 - a_1) ... (1 - a_(k-1)) a_k. Rows are added in the order of their
chances while they raise the expected tokens per second, and chains with fewer tokens of their own
are looked at too: a row for a branch may be worth more than one for the chain's end.

As for lengths, all of it is settled before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fewbit.speculate.length import Prices

IMAGINED, IMAGINED_ACCEPTED = 4.0, 1.2
"""Other candidates that stand in, with those of them accepted, until real ones outweigh them."""

_KEEP = 0.98


@dataclass(frozen=True)
class TreeShape:
    """Branches beside a chain: how many at each depth, and their tokens at most."""

    siblings: tuple[int, ...] = ()
    reach: int = 1
    promise: float = 0.0
    """Tokens that are expected of them."""

    @property
    def rows(self) -> int:
        """Rows of the target's step, at most."""
        return sum(self.siblings) * self.reach


CHAIN = TreeShape()
"""No branches."""


def spread(branches: int, length: int, reach: int) -> TreeShape:
    """Return a shape with so many branches, whatever they promise.

    Branches of one token are spread over the chain's depths, the first ones having more; longer
    ones leave it at its beginning.
    """
    if not branches or not length or not reach:
        return CHAIN
    if reach > 1:
        return TreeShape((branches,), min(reach, length))
    own = min(length, branches)
    return TreeShape(tuple((branches - depth + own - 1) // own for depth in range(own)))


class SiblingAcceptance:
    """How often other candidates for a position were accepted, by rank; older counts weigh less."""

    def __init__(self) -> None:
        self._judged: list[float] = []
        self._accepted: list[float] = []

    def add(self, judged: int, *, accepted: bool) -> None:
        """Add a position at which so many were judged, of which the last may be accepted."""
        while len(self._judged) < judged:
            self._judged.append(0.0)
            self._accepted.append(0.0)
        for rank in range(len(self._judged)):
            here = accepted and rank == judged - 1
            self._judged[rank] = _KEEP * self._judged[rank] + (rank < judged)
            self._accepted[rank] = _KEEP * self._accepted[rank] + here

    def rates(self, ranks: int) -> list[float]:
        """Return the estimated acceptance by rank, given that all before were rejected."""
        unseen = [0.0] * (ranks - len(self._judged))
        counts = zip([*self._judged, *unseen], [*self._accepted, *unseen], strict=True)
        found = [
            (accepted + IMAGINED_ACCEPTED) / (judged + IMAGINED) for judged, accepted in counts
        ]
        return found[:ranks]


@dataclass(frozen=True)
class TreeChoice:
    """A chain's length and its branches, and what they promise."""

    length: int
    shape: TreeShape
    tokens: float
    """Expected of the step, of all sequences that decode."""
    seconds: float


def best_tree(
    curve: Sequence[float], rates: Sequence[float], prices: Prices, most: int, reach: int
) -> TreeChoice:
    """Return the chain and branches with the most expected tokens per second, of one sequence.

    Args:
        curve: S_1, S_2, ... of its chain, as long as that may be.
        rates: a_1, a_2, ... of other candidates.
        prices: of a step that it has alone, with rows for the longest chain and all branches.
        most: branches at most.
        reach: tokens of a branch at most; 1 for branches at any depth, more at the beginning only.
    """
    options = [_grown(curve, n, rates, prices, most, reach) for n in range(1, len(curve) + 1)]
    return max(options, key=lambda option: option.tokens / option.seconds)


def _grown(  # noqa: PLR0913, PLR0917
    curve: Sequence[float],
    length: int,
    rates: Sequence[float],
    prices: Prices,
    most: int,
    reach: int,
) -> TreeChoice:
    """Return a chain of this length with branches added while they raise the speed."""
    tokens, seconds = 1.0 + sum(curve[:length]), prices.of([length])
    rows, siblings = length, [0] * length
    chances = _chances(curve[: length if reach == 1 else 1], rates)
    reach = min(reach, length)
    for chance, depth in chances[:most]:
        gained = chance * _tokens_of_branch(curve, reach)
        added = prices.step[rows + reach] - prices.step[rows] + reach * prices.row[0]
        if (tokens + gained) * seconds <= tokens * (seconds + added):
            break
        tokens, seconds, rows = tokens + gained, seconds + added, rows + reach
        siblings[depth] += 1
    while siblings and not siblings[-1]:
        siblings.pop()
    more = tokens - 1.0 - sum(curve[:length])
    return TreeChoice(length, TreeShape(tuple(siblings), reach, more), tokens, seconds)


def _chances(curve: Sequence[float], rates: Sequence[float]) -> list[tuple[float, int]]:
    """Return the chance and the depth of each branch, the likelier first, by rank at a depth."""
    found = []
    before = 1.0
    for depth, here in enumerate(curve):
        left, lowest = before - here, 1.0
        for rate in rates:
            # A later rank never comes before an earlier one, whatever was counted of them.
            lowest = min(lowest, left * rate)
            found.append((lowest, depth))
            left *= 1 - rate
        before = here
    return sorted(found, key=lambda item: (-item[0], item[1]))


def _tokens_of_branch(curve: Sequence[float], reach: int) -> float:
    """Return the tokens expected of a branch whose first is accepted: the rest fares as a chain."""
    return 1.0 + sum(curve[: reach - 1])
