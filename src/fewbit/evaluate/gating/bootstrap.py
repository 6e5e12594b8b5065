"""Confidence intervals from a bootstrap over documents.

Positions of one document resemble each other, so documents are drawn with replacement, never
positions. Means get studentized intervals (bootstrap-t; Hall, "Theoretical comparison of bootstrap
confidence intervals", Annals of Statistics 16, 1988), whose upper ends hold where divergences are
skewed; shares, and what has too few documents for that, BCa intervals (Efron, "Better bootstrap
confidence intervals", JASA 82, 1987). Both are widened for few documents by Hesterberg's expansion
("What teachers should know about the bootstrap", The American Statistician 69, 2015): alpha becomes
Phi(-sqrt(n / (n - 1)) t), t the Student quantile of alpha with n - 1 degrees. What is left of the
error of skewed documents falls with 1 / n (Hall 1988): an end of nominally 2.5% missed log-normal
documents (sigma 0.7) in 3.6, 3.7 and 3.5% of sets of 12, 18 and 40. So alpha is divided by
1 + 10 / n, with which it misses 2.1, 2.4 and 2.9%. (BCa alone has 8.3% and 4.9% of 12 and 40, the
plain percentile interval 13% and 5.1%.) Nothing helps where one document in ten is four times as
large as the others and a set of 12 has none of them: 12% are missed. With fewer than four documents
no interval is given.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from fewbit.keyed_random import Purpose
from fewbit.records.figures import ratio_of
from fewbit.records.interval import Interval

MINIMUM_DOCUMENTS = 4
"""Of fewer documents no interval is given."""

RESAMPLES = 4000
_QUANTILE_RESAMPLES = 1000
_NORMAL = NormalDist()

_TAIL = 10
"""Draws at either end of a bootstrap distribution that are too few to read a level from."""

_NO_DEVIATION = 1e-9
"""Of the deviation of all documents: what is less is rounding."""

_WITHOUT_DEVIATION = 0.001
"""Share of draws that may lack a deviation, and are left out; the tails are ten times that."""

_BLOCKS = 32
"""Products this small wake no threads of BLAS, which cost more than they bring here."""

_SKEW = 10.0
"""By so much over the number of documents an end errs more often than it says where documents are
skewed, unless that is allowed for (benchmarks/coverage.py)."""

_FAR = 40.0
"""Normal deviates beyond which nothing changes any more."""


def resample(documents: int, *, seed: int = 0, count: int = RESAMPLES) -> NDArray[np.float64]:
    """Return how often each document is drawn in each resample, float64 [count, documents].

    The draws are a pure function of the arguments: NumPy's Philox is the generator of
    `keyed_random`, keyed by (seed, Purpose.BOOTSTRAP).
    """
    key = np.array([seed, Purpose.BOOTSTRAP], np.uint64)
    draws = np.random.Generator(np.random.Philox(key=key)).integers(
        documents, size=(count, documents)
    )
    rows = np.arange(count)[:, None] * documents
    counts = np.bincount((draws + rows).reshape(-1), minlength=count * documents)
    return counts.reshape(count, documents).astype(np.float64)


@dataclass(frozen=True)
class Bootstrap:
    """A ratio of sums, and how it varies when documents are drawn anew."""

    value: float
    resampled: NDArray[np.float64]
    """float64 [resamples], sorted."""
    bias: float
    """BCa's z0, in normal deviates."""
    acceleration: float
    documents: int

    @property
    def varies(self) -> bool:
        """Whether resampling moves the figure at all."""
        return bool(self.resampled[0] != self.resampled[-1])

    def interval(self, level: float) -> Interval:
        """Return the BCa interval, expanded for few documents; a point where nothing varies."""
        if not self.varies:
            return Interval(value=self.value, low=self.value, high=self.value, level=level)
        tail = _NORMAL.inv_cdf(expanded_alpha(self.documents, level))
        low, high = np.quantile(self.resampled, [self._corrected(tail), self._corrected(-tail)])
        return Interval(value=self.value, low=float(low), high=float(high), level=level)

    def chance_under(self, bound: float) -> float:
        """Return the p-value of "the true figure is `bound` or less", by inverting the interval.

        It is the error, one-sided, at which the lower end of the interval would be `bound`.
        """
        if not self.varies:
            return float(self.value <= bound)
        return _error_of(self.deviate(bound), self.documents)

    def deviate(self, bound: float) -> float:
        """Return how far a bound lies above the figure, in normal deviates, by BCa's measure.

        Beyond the last draws that count it goes on along the tangent: the inverse of BCa's
        correction never exceeds one over the acceleration, about ten deviates of five documents,
        so that nothing were far enough away to be rejected.
        """
        place = _place(self.resampled, bound)
        last = -_NORMAL.inv_cdf(_TAIL / len(self.resampled))
        seen = max(-last, min(last, place))
        beyond = seen - self.bias
        room = 1.0 + self.acceleration * beyond
        if room <= 0.0:
            return math.copysign(_FAR, beyond)
        found = beyond / room - self.bias + (place - seen) / room**2
        return max(-_FAR, min(_FAR, found))

    def _corrected(self, deviate: float) -> float:
        """Return the level of the bootstrap distribution that BCa reads for a nominal deviate."""
        shifted = self.bias + deviate
        room = 1.0 - self.acceleration * shifted
        if room <= 0.0:  # beyond what the correction can say: the outermost draw
            return float(shifted > 0.0)
        return _NORMAL.cdf(self.bias + shifted / room)


@dataclass(frozen=True)
class Studentized:
    """A ratio of sums and its deviation, and how far draws lie from it in deviations of their own.

    Where documents are skewed, sets without the large ones have a small mean and a small deviation
    too; that is what tells how far the truth may lie above.
    """

    value: float
    deviation: float
    """Standard error of the value, from the residuals of documents."""
    resampled: NDArray[np.float64]
    """float64 [resamples], sorted: (a draw's ratio - value) / the draw's deviation."""
    documents: int

    def interval(self, level: float) -> Interval:
        """Return the interval, expanded for few documents."""
        alpha = expanded_alpha(self.documents, level)
        low, high = np.quantile(self.resampled, [alpha, 1.0 - alpha])
        return Interval(
            value=self.value,
            low=self.value - float(high) * self.deviation,
            high=self.value - float(low) * self.deviation,
            level=level,
        )

    def chance_under(self, bound: float) -> float:
        """Return the p-value of "the true figure is `bound` or less", by inverting the interval."""
        return _error_of(self.deviate(bound), self.documents)

    def deviate(self, bound: float) -> float:
        """Return how far a bound lies above the figure, in normal deviates."""
        return -_place(self.resampled, (self.value - bound) / self.deviation)


def bootstrap_ratio(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], draws: NDArray[np.float64]
) -> Bootstrap:
    """Return sum(numerators) / sum(denominators) over documents, resampled.

    Args:
        numerators: float64 [documents], such as a document's summed divergence; at least two.
        denominators: float64 [documents], positive, such as its number of positions.
        draws: from `resample`.
    """
    top, bottom = float(numerators.sum()), float(denominators.sum())
    value = top / bottom
    resampled = np.sort((draws @ numerators) / (draws @ denominators))
    without = (top - numerators) / (bottom - denominators)
    deviation = without.mean() - without
    spread = float((deviation**2).sum()) ** 1.5
    below = min(max(_below(resampled, value), 1.0), len(resampled) - 1.0)
    return Bootstrap(
        value=value,
        resampled=resampled,
        bias=_NORMAL.inv_cdf(below / len(resampled)),
        acceleration=float((deviation**3).sum()) / (6.0 * spread) if spread else 0.0,
        documents=len(numerators),
    )


def studentized_ratio(
    numerators: NDArray[np.float64], denominators: NDArray[np.float64], draws: NDArray[np.float64]
) -> Studentized | Bootstrap:
    """Return sum(numerators) / sum(denominators) over documents, resampled with its deviation.

    Where some draws have no deviation, of a handful of documents or of few that differ, the tails
    are unknown, and BCa's bootstrap is returned.

    Args:
        numerators: float64 [documents], such as a document's summed divergence; at least two.
        denominators: float64 [documents], positive, such as its number of positions.
        draws: from `resample`.
    """
    n, d = numerators, denominators
    columns = np.stack([n, d, n * n, n * d, d * d], axis=1)
    sums = np.concatenate([block @ columns for block in np.array_split(draws, _BLOCKS)])
    value = float(n.sum()) / float(d.sum())
    ratios = sums[:, 0] / sums[:, 1]
    squares = sums[:, 2] - 2 * ratios * sums[:, 3] + ratios**2 * sums[:, 4]
    deviations = np.sqrt(np.maximum(squares, 0.0)) / sums[:, 1]
    deviation = math.sqrt(float(((n - value * d) ** 2).sum())) / float(d.sum())
    without = deviations <= _NO_DEVIATION * deviation
    if deviation == 0.0 or without.mean() > _WITHOUT_DEVIATION:
        return bootstrap_ratio(n, d, draws)
    away = (ratios - value)[~without] / deviations[~without]
    return Studentized(value, deviation, np.sort(away), len(n))


def ratio_interval(
    numerators: NDArray[np.float64],
    denominators: NDArray[np.float64],
    draws: NDArray[np.float64],
    level: float,
) -> Interval:
    """Return sum(numerators) / sum(denominators) over documents with its studentized interval.

    Args:
        numerators: float64 [documents], such as a document's summed divergence.
        denominators: float64 [documents], positive, such as its number of positions.
        draws: from `resample`.
        level: confidence, such as 0.95.
    """
    if len(numerators) < MINIMUM_DOCUMENTS:
        return Interval(value=float(numerators.sum()) / float(denominators.sum()), level=level)
    return studentized_ratio(numerators, denominators, draws).interval(level)


def exponential(interval: Interval) -> Interval:
    """Return the interval of exp of a figure; BCa intervals respect monotone maps."""
    low, high = interval.low, interval.high
    return Interval(
        value=ratio_of(interval.value),
        low=None if low is None else ratio_of(low),
        high=None if high is None else ratio_of(high),
        level=interval.level,
    )


def proportion_interval(
    successes: NDArray[np.float64],
    trials: NDArray[np.float64],
    draws: NDArray[np.float64],
    level: float,
) -> Interval:
    """Return a share with its interval; "no failure in n" is bounded, not read as certainty.

    Without any failure, or any success, resampling cannot vary: the other bound is then the exact
    binomial one, (1 - level)^(1/n) away from the end, for n independent trials.
    """
    if len(successes) < MINIMUM_DOCUMENTS:
        return Interval(value=float(successes.sum()) / float(trials.sum()), level=level)
    interval = bootstrap_ratio(successes, trials, draws).interval(level)
    unseen = 1.0 - (1.0 - level) ** (1.0 / float(trials.sum()))
    if interval.value == 1.0:
        return Interval(value=1.0, low=1.0 - unseen, high=1.0, level=level)
    if interval.value == 0.0:
        return Interval(value=0.0, low=0.0, high=unseen, level=level)
    return interval


def quantile_intervals(
    values: NDArray[np.float64],
    owners: NDArray[np.intp],
    quantiles: tuple[float, ...],
    draws: NDArray[np.float64],
    level: float,
) -> tuple[Interval, ...]:
    """Return quantiles over positions, with expanded percentile intervals over documents.

    BCa is not used: the jackknife that it needs is not consistent for quantiles.

    Args:
        values: float64 [positions].
        owners: intp [positions], the document of each.
        quantiles: each in (0, 1]; the q-quantile is the smallest value that at least a share q of
            the positions do not exceed.
        draws: from `resample`; the first 1,000 are used.
        level: confidence.
    """
    order = np.argsort(values, kind="stable")
    ordered, owners = values[order], owners[order]
    points = [float(v) for v in _quantiles(ordered, np.ones((1, len(values))), quantiles)[0]]
    documents = draws.shape[1]
    if documents < MINIMUM_DOCUMENTS:
        return tuple(Interval(value=point, level=level) for point in points)
    found = np.concatenate(
        [
            _quantiles(ordered, block[:, owners], quantiles)
            for block in np.array_split(draws[:_QUANTILE_RESAMPLES], 50)
        ]
    )
    alpha = expanded_alpha(documents, level)
    lows, highs = np.quantile(found, [alpha, 1.0 - alpha], axis=0)
    return tuple(
        Interval(value=point, low=float(low), high=float(high), level=level)
        for point, low, high in zip(points, lows, highs, strict=True)
    )


def expanded_alpha(documents: int, level: float) -> float:
    """Return the tail probability to read from a bootstrap distribution of few documents."""
    error = (1.0 - level) / 2.0 / _allowance(documents)
    t = -student_quantile(error, documents - 1)
    return max(_NORMAL.cdf(-math.sqrt(documents / (documents - 1)) * t), sys.float_info.min)


def _error_of(deviate: float, documents: int) -> float:
    """Return the error, one-sided, of a lower end so many normal deviates above the figure.

    The inverse of `expanded_alpha`, on either side; it is a half where the allowance is wider than
    the distance.
    """
    distance = abs(deviate) * math.sqrt((documents - 1) / documents)
    error = min(0.5, student_tail(-distance, documents - 1) * _allowance(documents))
    return error if deviate < 0.0 else 1.0 - error


def _allowance(documents: int) -> float:
    return 1.0 + _SKEW / documents


def student_quantile(probability: float, degrees: int) -> float:
    """Return Student's t quantile."""
    return float(stdtrit(degrees, probability))


def student_tail(t: float, degrees: int) -> float:
    """Return the chance that Student's t is at most `t`."""
    return float(stdtr(degrees, t))


def _place(ordered: NDArray[np.float64], at: float) -> float:
    """Return where a value lies in sorted draws, in normal deviates.

    Outside the draws but for `_TAIL` of them, along the line through the distribution's normal
    plot at one deviation and at the last draws counted: beyond them nothing is known, and far
    outside it must matter how far.
    """
    count = len(ordered)
    below = _below(ordered, at)
    if _TAIL <= below <= count - _TAIL:
        return _NORMAL.inv_cdf(below / count)
    sign = 1.0 if below > _TAIL else -1.0
    last = sign * -_NORMAL.inv_cdf(_TAIL / count)
    outer, inner = np.quantile(ordered, [_NORMAL.cdf(last), _NORMAL.cdf(sign)])
    if outer == inner:
        return sign * _FAR
    found = last + (at - float(outer)) / (float(outer - inner) / (last - sign))
    return max(-_FAR, min(_FAR, found))


def _below(ordered: NDArray[np.float64], value: float) -> float:
    """Return how many of sorted values lie below one; of those equal to it, half."""
    places = np.searchsorted(ordered, value), np.searchsorted(ordered, value, "right")
    return float(sum(places)) / 2


def _quantiles(
    ordered: NDArray[np.float64], weights: NDArray[np.float64], quantiles: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return the quantiles of sorted values under each row of weights, [rows, quantiles]."""
    cumulative = np.cumsum(weights, axis=1)
    wanted = cumulative[:, -1:] * np.array(quantiles)
    places = [np.argmax(cumulative >= wanted[:, i : i + 1], axis=1) for i in range(len(quantiles))]
    return np.asarray(ordered[np.stack(places, axis=1)])
