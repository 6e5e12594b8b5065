"""Means over the windows of one text with bootstrap intervals of 95%.

Windows are resampled, always the same ones, so everything measured on the same windows is paired:
a ratio or difference of two files has an interval of its own, much narrower than theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000

Values = NDArray[np.float64]
"""Mean divergences in nats, float64 [windows]."""


@dataclass(frozen=True)
class Figure:
    """A mean or ratio over windows, and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"


def mean(values: Values) -> Figure:
    """Return the mean over windows."""
    return _figure(values.mean(), values[_resamples(len(values))].mean(axis=1))


def ratio(ours: Values, theirs: Values) -> Figure:
    """Return the ratio of two means over the same windows."""
    chosen = _resamples(len(ours))
    return _figure(
        ours.mean() / theirs.mean(), ours[chosen].mean(axis=1) / theirs[chosen].mean(axis=1)
    )


def _resamples(count: int) -> NDArray[np.intp]:
    return np.random.Generator(np.random.Philox(0)).integers(0, count, (RESAMPLES, count))


def _figure(found: float, resampled: Values) -> Figure:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Figure(float(found), float(low), float(high))
