"""Activation-aware scaling (AWQ, Lin et al. 2023): protect the channels that matter.

Multiplying a column by s and dividing its input by s leaves a layer's output as it is, but the
rounding error of the column counts 1 / s as much, as long as the column does not set its group's
scale. So columns whose inputs are large get larger factors: s = mean|x|^alpha / mean|w|^beta, with
alpha and beta searched per site. The objective is the error of the outputs, tr(D H D^T) with
D = Q(W s) / s - W summed over all matrices that read the site, so correlated inputs count as they
do. The paper searches alpha alone, with beta = 0 or beta = 1 - alpha; the plane contains both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.methods.scaling import (
    Consumer,
    Rounding,
    Scaling,
    channel_means,
    floored_logarithms,
    output_error,
    rounded,
    sound_factors,
    unscaled,
)
from fewbit.methods.statistics import InputStatistics

_Point: TypeAlias = tuple[float, float]

_ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
_BETAS = (0.0, 0.5, 1.0)
_FINER = (0.25, 0.125)
"""Steps of the search around the best point of the grid so far."""
SEARCH_ROWS = 128
"""Rows of a matrix, evenly spaced, that the search looks at; what it finds is compared with no
scaling on all rows before it is taken."""


def search_awq(
    consumers: Sequence[Consumer],
    statistics: InputStatistics,
    channel_of: NDArray[np.intp],
    rounding: Rounding = rounded,
) -> Scaling:
    """Return the factors of least output error; no scaling is among the candidates and wins ties.

    Args:
        consumers: the matrices that read the site.
        statistics: of their common input.
        channel_of: [inputs], the channel of each input; several inputs may repeat one.
        rounding: how a weight is rounded during the search.

    Raises:
        UnsupportedError, UsageError, NumericalError: as the rounding.
    """
    sampled = [replace(c, weight=_sample(c.weight)) for c in consumers if c.form is not None]
    search = _Search(sampled, statistics, channel_of, rounding)
    point = search.best()
    factors = search.factors(point)
    whole = _Search([c for c in consumers if c.form is not None], statistics, channel_of, rounding)
    before = whole.error(np.ones_like(factors))
    after = whole.error(factors)
    if not after < before:
        return unscaled(len(factors), before)
    return Scaling(factors, f"alpha {point[0]:g}, beta {point[1]:g}", before, after)


class _Search:
    """Evaluates points (alpha, beta) on given matrices, each point once."""

    def __init__(
        self,
        consumers: Sequence[Consumer],
        statistics: InputStatistics,
        channel_of: NDArray[np.intp],
        rounding: Rounding,
    ) -> None:
        self._consumers = consumers
        self._statistics = statistics
        self._channel_of = channel_of
        self._rounding = rounding
        self._inputs = floored_logarithms(channel_means(statistics.absolute, channel_of))
        self._known: dict[_Point, float] = {}

    def factors(self, point: _Point) -> NDArray[np.float32]:
        """Return s = mean|x|^alpha / mean|w|^beta, normalized."""
        return sound_factors(point[0] * self._inputs - point[1] * self._weights())

    def error(self, factors: NDArray[np.float32]) -> float:
        """Return the output error over all matrices with these factors."""
        spread = factors[self._channel_of]
        total = 0.0
        for consumer in self._consumers:
            assert consumer.form is not None
            found = self._rounding(consumer.weight * spread, consumer.form) / spread
            total += output_error(found - consumer.weight, self._statistics)
        return total

    def best(self) -> _Point:
        """Return the point of least error: a coarse grid, then ever smaller steps around it."""
        best = min(((a, b) for a in _ALPHAS for b in _BETAS), key=self._at)
        for step in _FINER:
            around = [(best[0] + step * i, best[1] + step * j) for i, j in _NEIGHBOURS]
            best = min([best, *(p for p in around if min(p) >= 0)], key=self._at)
        return best

    def _at(self, point: _Point) -> float:
        if point not in self._known:
            self._known[point] = self.error(self.factors(point))
        return self._known[point]

    def _weights(self) -> NDArray[np.float64]:
        """Return the logarithm of each channel's mean |w| over all rows of all matrices."""
        rows = sum(len(c.weight) for c in self._consumers)
        total = sum(np.abs(c.weight).sum(axis=0, dtype=np.float64) for c in self._consumers)
        return floored_logarithms(channel_means(np.asarray(total) / rows, self._channel_of))


_NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (1, 1), (-1, 1), (1, -1))


def _sample(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return at most `SEARCH_ROWS` rows, evenly spaced."""
    if len(weight) <= SEARCH_ROWS:
        return weight
    return weight[np.linspace(0, len(weight) - 1, SEARCH_ROWS).astype(np.intp)]
