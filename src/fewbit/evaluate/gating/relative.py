"""A difference of two rates held to a margin that grows with the rate it is compared with.

"At most m more failures, and a share r of those that the source has itself" holds a difference D
of rates to m + r P, where P, the source's own rate, is measured too. So D - r P is held to m. Its
interval is made of those of D (Tango's) and P (Wilson's) by the method of variance estimates
recovery (Zou and Donner, "Construction of confidence limits about effect measures", Statistics in
Medicine 27, 2008), and moved by the measured r P, so that it stands around D beside m + r P.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fewbit.evaluate.gating.bootstrap import student_quantile, student_tail
from fewbit.evaluate.gating.proportions import PairedCounts, design_effect
from fewbit.records.interval import Interval

_NORMAL = NormalDist()

_MOST, _STEPS = 40.0, 1 << 20
"""Deviates that a bound is looked for in, and into how many steps these are cut."""


@dataclass(frozen=True)
class Allowed:
    """A difference of rates, with the noise of the allowance in its margin."""

    difference: PairedCounts
    share: float
    """Of the rate that is allowed on top."""
    rate: float
    """Of what the difference is taken from."""
    items: float
    """Under the rate; clustered ones count for less than one."""
    correlation: float
    """Of the difference with the rate."""

    @property
    def value(self) -> float:
        """The difference."""
        return self.difference.value

    @property
    def allowance(self) -> float:
        """What the margin grows by."""
        return self.share * self.rate

    def interval(self, level: float) -> Interval:
        """Return the difference with an interval to be held to the margin and its allowance."""
        low, high = self._around(self._quantile((1.0 + level) / 2.0))
        return Interval(value=self.value, low=low, high=high, level=level)

    def chance_under(self, bound: float) -> float:
        """Return the p-value of "the true difference less its allowance is that of the bound"."""
        score, degrees = self.deviate(bound), self.difference.degrees
        return _NORMAL.cdf(score) if degrees is None else student_tail(score, degrees)

    def deviate(self, bound: float) -> float:
        """Return how far a bound lies above the difference, in normal deviates."""
        side, sign = (1, 1.0) if bound >= self.value else (0, -1.0)

        def reached(step: int) -> bool:
            return sign * (self._around(_MOST * step / _STEPS)[side] - bound) >= 0.0

        return sign * _MOST * bisect_left(range(_STEPS), x=True, key=reached) / _STEPS

    def _quantile(self, tail: float) -> float:
        degrees = self.difference.degrees
        return _NORMAL.inv_cdf(tail) if degrees is None else student_quantile(tail, degrees)

    def _around(self, deviates: float) -> tuple[float, float]:
        """Return the bounds so many deviates away."""
        low, high = self.difference.bounds(deviates)
        least, most = wilson(self.rate, self.items, deviates)
        below = self._joined(self.value - low, self.share * (most - self.rate))
        above = self._joined(high - self.value, self.share * (self.rate - least))
        return self.value - below, self.value + above

    def _joined(self, one: float, other: float) -> float:
        return math.sqrt(max(one**2 + other**2 - 2.0 * self.correlation * one * other, 0.0))


def allowed(
    counts: PairedCounts,
    differences: NDArray[np.float64],
    base: NDArray[np.float64],
    clusters: NDArray[np.intp],
    share: float,
) -> Allowed:
    """Return a difference of rates that is allowed a share of the base's own rate.

    Args:
        counts: the difference.
        differences: float64 [items], what it is of: -1, 0 or 1.
        base: float64 [items], 0 or 1.
        clusters: intp [items], from 0 up.
        share: positive.
    """
    effect = design_effect(base, clusters) if np.bincount(clusters).max() > 1 else 1.0
    return Allowed(
        difference=counts,
        share=share,
        rate=float(base.mean()),
        items=len(base) / effect,
        correlation=_correlation(differences, base, clusters),
    )


def wilson(rate: float, items: float, deviates: float) -> tuple[float, float]:
    """Return the score interval of a rate (Wilson, JASA 22, 1927)."""
    z = deviates**2 / items
    middle = (rate + z / 2.0) / (1.0 + z)
    half = math.sqrt(rate * (1.0 - rate) * z + z**2 / 4.0) / (1.0 + z)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _correlation(
    differences: NDArray[np.float64], base: NDArray[np.float64], clusters: NDArray[np.intp]
) -> float:
    """Return it over clusters; -1, the widest, where one of both does not vary."""
    sums = [np.bincount(clusters, weights=values - values.mean()) for values in (differences, base)]
    spread = math.sqrt(float((sums[0] ** 2).sum()) * float((sums[1] ** 2).sum()))
    return float((sums[0] * sums[1]).sum()) / spread if spread else -1.0
