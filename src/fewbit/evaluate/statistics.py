"""Confidence intervals from a bootstrap over documents.

Positions of one document resemble each other, so documents are drawn with replacement, never
positions. Means and ratios get BCa intervals (Efron, "Better bootstrap confidence intervals", JASA
82, 1987) with the level widened for few documents by Hesterberg's expansion ("What teachers should
know about the bootstrap", The American Statistician 69, 2015): alpha becomes
Phi(-sqrt(n / (n - 1)) t), t the Student quantile of alpha with n - 1 degrees. On log-normal
documents (sigma 0.7) that covers 92% of the time with 20 and 94% with 40 documents, where the
plain percentile interval covers 89% and 92%. With fewer than four documents no interval is given.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fewbit.keyed_random import Purpose
from fewbit.records.interval import Interval

MINIMUM_DOCUMENTS = 4
"""Of fewer documents no interval is given."""

RESAMPLES = 4000
_QUANTILE_RESAMPLES = 1000
_NORMAL = NormalDist()


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


def ratio_interval(
    numerators: NDArray[np.float64],
    denominators: NDArray[np.float64],
    draws: NDArray[np.float64],
    level: float,
) -> Interval:
    """Return sum(numerators) / sum(denominators) over documents with its BCa interval.

    Args:
        numerators: float64 [documents], such as a document's summed divergence.
        denominators: float64 [documents], positive, such as its number of positions.
        draws: from `resample`.
        level: confidence, such as 0.95.
    """
    top, bottom = float(numerators.sum()), float(denominators.sum())
    value = top / bottom
    if len(numerators) < MINIMUM_DOCUMENTS:
        return Interval(value=value, level=level)
    resampled = np.sort((draws @ numerators) / (draws @ denominators))
    if resampled[0] == resampled[-1]:
        return Interval(value=value, low=value, high=value, level=level)
    without = (top - numerators) / (bottom - denominators)
    alpha = expanded_alpha(len(numerators), level)
    low, high = _bca_levels(resampled, value, without, alpha)
    return Interval(
        value=value,
        low=float(np.quantile(resampled, low)),
        high=float(np.quantile(resampled, high)),
        level=level,
    )


def exponential(interval: Interval) -> Interval:
    """Return the interval of exp of a figure; BCa intervals respect monotone maps."""
    low, high = interval.low, interval.high
    return Interval(
        value=math.exp(interval.value),
        low=None if low is None else math.exp(low),
        high=None if high is None else math.exp(high),
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
    interval = ratio_interval(successes, trials, draws, level)
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
    t = student_quantile((1.0 + level) / 2.0, documents - 1)
    return _NORMAL.cdf(-math.sqrt(documents / (documents - 1)) * t)


def student_quantile(probability: float, degrees: int) -> float:
    """Return Student's t quantile by its Cornish-Fisher series (Abramowitz and Stegun, 26.7.5).

    From 4 degrees on the error is below 0.5% at the 97.5% point, at 3 degrees 1%.
    """
    z = _NORMAL.inv_cdf(probability)
    terms = (
        (z**3 + z) / 4.0,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96.0,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160.0,
    )
    return z + math.fsum(term / float(degrees) ** (i + 1) for i, term in enumerate(terms))


def _bca_levels(
    resampled: NDArray[np.float64], value: float, without: NDArray[np.float64], alpha: float
) -> tuple[float, float]:
    """Return the two levels of the sorted bootstrap distribution that BCa reads.

    Args:
        resampled: float64 [count], sorted.
        value: the statistic itself.
        without: float64 [documents], the statistic with each document left out.
        alpha: nominal tail probability.
    """
    count = len(resampled)
    below = (np.searchsorted(resampled, value) + np.searchsorted(resampled, value, "right")) / 2
    bias = _NORMAL.inv_cdf(min(max(float(below), 1.0), count - 1.0) / count)
    deviation = without.mean() - without
    spread = float((deviation**2).sum()) ** 1.5
    acceleration = float((deviation**3).sum()) / (6.0 * spread) if spread else 0.0

    def corrected(z: float) -> float:
        shifted = bias + z
        return _NORMAL.cdf(bias + shifted / (1.0 - acceleration * shifted))

    tail = _NORMAL.inv_cdf(alpha)
    return corrected(tail), corrected(-tail)


def _quantiles(
    ordered: NDArray[np.float64], weights: NDArray[np.float64], quantiles: tuple[float, ...]
) -> NDArray[np.float64]:
    """Return the quantiles of sorted values under each row of weights, [rows, quantiles]."""
    cumulative = np.cumsum(weights, axis=1)
    wanted = cumulative[:, -1:] * np.array(quantiles)
    places = [np.argmax(cumulative >= wanted[:, i : i + 1], axis=1) for i in range(len(quantiles))]
    return np.asarray(ordered[np.stack(places, axis=1)])
