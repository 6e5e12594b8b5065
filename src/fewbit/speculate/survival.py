"""How likely a drafted token is to be accepted, by its position in the block, as seen so far.

Acceptance has one meaning everywhere in this project: at position i of a block, the share of blocks
whose token at i was accepted among those whose tokens before i all were, so that the target judged
it. The product over the first positions is the survival: the chance that a block's first i tokens
all stand.
"""

from __future__ import annotations

from collections.abc import Sequence

IMAGINED, IMAGINED_ACCEPTED = 4.0, 3.0
"""Tokens that stand in, with those of them accepted, until real ones outweigh them."""

_POOL_WEIGHT = 2.0
"""How many observations of its own outweigh what a sequence inherits from the others."""

_OVERALL_WEIGHT = 4.0
"""How many observations of a position outweigh what all positions together show. One rejection at
a position that is then no longer tried must not keep drafts short, as with a weight of 1 it did for
fifty blocks."""


class Acceptance:
    """Judged and accepted tokens by position; what was seen long ago counts less.

    Args:
        longest: positions.
        keep: the weight of everything seen before, each time a block is added. All positions fade
            together, those not reached too: what was known of them may have changed since.
    """

    def __init__(self, longest: int, keep: float) -> None:
        self.judged = [0.0] * longest
        self.accepted = [0.0] * longest
        self.blocks = 0
        self._keep = keep

    def add(self, judged: int, accepted: int) -> None:
        """Add a block of which that many tokens were judged and accepted."""
        keep = self._keep
        self.blocks += 1
        self.judged = [
            keep * seen + (1.0 if i < judged else 0.0) for i, seen in enumerate(self.judged)
        ]
        self.accepted = [
            keep * seen + (1.0 if i < accepted else 0.0) for i, seen in enumerate(self.accepted)
        ]

    def fade(self) -> None:
        """Let what was seen count less, as a block does, without adding one."""
        self.judged = [self._keep * seen for seen in self.judged]
        self.accepted = [self._keep * seen for seen in self.accepted]

    def rates(self, inherited: Sequence[float], weight: float) -> list[float]:
        """Return the estimated acceptance at each position; `inherited` counts as `weight` seen."""
        return [
            (accepted + weight * rate) / (judged + weight)
            for judged, accepted, rate in zip(self.judged, self.accepted, inherited, strict=True)
        ]

    def overall(self) -> float:
        """Return the estimate over all positions together."""
        judged = sum(self.judged) + IMAGINED
        return (sum(self.accepted) + IMAGINED_ACCEPTED) / judged


class SequenceSurvival:
    """One sequence's survival by position, with a prior from all sequences of its engine."""

    def __init__(self, pool: Acceptance, own: Acceptance) -> None:
        self._pool = pool
        self._own = own

    def add(self, judged: int, accepted: int) -> None:
        """Add a block, to the sequence's own and to the pool's."""
        self._own.add(judged, accepted)
        self._pool.add(judged, accepted)

    def fade(self) -> None:
        """Let what the sequence has shown count less: it went on with other drafts."""
        self._own.fade()

    def rates(self) -> list[float]:
        """Return the estimated acceptance by position."""
        overall = [self._pool.overall()] * len(self._pool.judged)
        return self._own.rates(self._pool.rates(overall, _OVERALL_WEIGHT), _POOL_WEIGHT)

    def curve(self, longest: int) -> list[float]:
        """Return the survival of the first `longest` positions; it never rises."""
        found, alive = [], 1.0
        for rate in self.rates()[:longest]:
            alive *= rate
            found.append(alive)
        return found
