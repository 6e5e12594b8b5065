"""A paired difference of two proportions: Tango's score test and its interval.

Of n items that two arms were asked, b were failed by the first alone and c by the second alone; the
difference of their rates of failure is (b - c) / n. Tango ("Equivalence test and confidence
interval for the difference in proportions for the paired-sample design", Statistics in Medicine 17,
1998) tests a difference d by

    T(d) = (b - c - n d) / sqrt(n (2 q + d (1 - d))),

q the likeliest chance of an item of the second kind, given d. The interval has all d with |T(d)|
under the quantile. Without any b or c it is not a point: z^2 / (n + z^2) on either side.

Items of one cluster tell less than as many independent ones. The counts are divided by the design
effect, the variance of the difference between clusters over that of independent items (Korn and
Graubard, "Confidence intervals for proportions with small expected number of positive counts
estimated from survey data", Survey Methodology 24, 1998).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from fewbit.evaluate.gating.bootstrap import student_quantile, student_tail
from fewbit.records.interval import Interval

_NORMAL = NormalDist()

_STEPS = 1 << 50
"""Into which what may hold a bound is cut; bisection finds the step that it is in."""


@dataclass(frozen=True)
class PairedCounts:
    """Items of two arms; real numbers, since clustered items count for less than one."""

    items: float
    first_alone: float
    """Items that only the first arm failed."""
    second_alone: float
    degrees: int | None = None
    """Of freedom, where clusters say how much items vary; None for independent items."""

    @property
    def value(self) -> float:
        """The first arm's rate of failure less the second's."""
        return (self.first_alone - self.second_alone) / self.items

    def interval(self, level: float) -> Interval:
        """Return the difference with Tango's interval."""
        tail = (1.0 + level) / 2.0
        z = _NORMAL.inv_cdf(tail) if self.degrees is None else student_quantile(tail, self.degrees)
        low, high = self.bounds(z)
        return Interval(value=self.value, low=low, high=high, level=level)

    def bounds(self, deviates: float) -> tuple[float, float]:
        """Return the differences whose scores lie so many deviates from that of the one found."""
        value = self.value
        low = -1.0 if value == -1.0 else self._where(deviates, -1.0, value)
        return low, 1.0 if value == 1.0 else self._where(-deviates, value, 1.0)

    def chance_under(self, bound: float) -> float:
        """Return the p-value of "the true difference is `bound` or less"."""
        score = self.deviate(bound)
        return _NORMAL.cdf(score) if self.degrees is None else student_tail(score, self.degrees)

    def deviate(self, bound: float) -> float:
        """Return how far a bound lies above the difference, in normal deviates: -T(bound)."""
        return -self._score(bound)

    def _where(self, wanted: float, low: float, high: float) -> float:
        """Return the difference whose score is `wanted`; scores fall from `low` to `high`."""

        def at(step: int) -> float:
            return low + (high - low) * (step / _STEPS)

        return at(bisect_left(range(_STEPS), -wanted, key=lambda step: -self._score(at(step))))

    def _score(self, difference: float) -> float:
        n, b, c, d = self.items, self.first_alone, self.second_alone, difference
        excess = b - c - n * d
        if excess == 0.0:
            return 0.0
        middle = (2 * n - b + c) * d - b - c
        root = math.sqrt(max(middle**2 + 8 * n * c * d * (1 - d), 0.0))
        chance = (root - middle) / (4 * n)
        variance = n * (2 * chance + d * (1 - d))
        return math.copysign(math.inf, excess) if variance <= 0.0 else excess / math.sqrt(variance)


def mcnemar(first_alone: int, second_alone: int) -> float:
    """Return the exact two-sided p-value of "the two arms fail equally often".

    It describes and judges nothing: that a difference was not found is no evidence of none.
    """
    of = first_alone + second_alone
    return min(1.0, 2.0 * float(bdtr(min(first_alone, second_alone), of, 0.5)))


def paired_counts(differences: NDArray[np.float64], clusters: NDArray[np.intp]) -> PairedCounts:
    """Count items by which arm alone failed them, less by the design effect of their clusters.

    Args:
        differences: float64 [items], the first arm's failure (0 or 1) less the second's.
        clusters: intp [items], from 0 up.
    """
    sizes = np.bincount(clusters)
    first, second = (float((differences == sign).sum()) for sign in (1.0, -1.0))
    items = float(len(differences))
    if sizes.max() == 1:
        return PairedCounts(items, first, second)
    effect = design_effect(differences, clusters)
    return PairedCounts(items / effect, first / effect, second / effect, len(sizes) - 1)


def design_effect(differences: NDArray[np.float64], clusters: NDArray[np.intp]) -> float:
    """Return by how much the variance of a mean exceeds that of independent items; at least 1.

    Where nothing differs, clusters cannot be seen to matter, nor not to: the most that they can.
    """
    sizes = np.bincount(clusters).astype(np.float64)
    items, count = sizes.sum(), len(sizes)
    most = float((sizes**2).sum() / items)
    deviation = differences - differences.mean()
    spread = float((deviation**2).sum())
    if spread == 0.0 or count < 2:
        return most
    between = float((np.bincount(clusters, weights=deviation) ** 2).sum()) * count / (count - 1)
    return min(max(1.0, between / spread), most)
