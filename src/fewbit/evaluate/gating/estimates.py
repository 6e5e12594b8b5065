"""Items of a slice become figures that can be held to a margin: each kind by what covers best.

Means and perplexities are resampled by cluster with their deviations, since divergences are skewed;
ratios of seconds and bytes, of a few turns, by BCa. A difference of proportions is Tango's,
less by the design effect of its clusters: resampling cannot vary where no item differs, and hardly
varies where few do. Simulated coverage of all of them stands in docs/log.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import FaultError, NumericalError
from fewbit.evaluate.gating.bootstrap import (
    MINIMUM_DOCUMENTS,
    bootstrap_ratio,
    exponential,
    resample,
    studentized_ratio,
)
from fewbit.evaluate.gating.proportions import paired_counts
from fewbit.evaluate.gating.relative import allowed
from fewbit.records.figures import ratio_of
from fewbit.records.interval import Interval
from fewbit.records.measurement import Item, Measure, Slice

Values = NDArray[np.float64]


class Estimate(Protocol):
    """A figure with all that a gate asks of it."""

    @property
    def value(self) -> float:
        """The figure."""
        ...

    def interval(self, level: float) -> Interval:
        """Return the two-sided interval."""
        ...

    def chance_under(self, bound: float) -> float:
        """Return the one-sided p-value of "the true figure is `bound` or less"."""
        ...

    def deviate(self, bound: float) -> float:
        """Return how far a bound lies above the figure, in normal deviates.

        It grows with the root of the number of items, which tells how many would decide.
        """
        ...


@dataclass(frozen=True)
class Estimates:
    """A slice's figures, and how much they stand on."""

    figure: Estimate
    """The candidate against the source."""
    floor: Estimate | None
    """The perturbed source against the source."""
    excess: Estimate | None
    """The candidate against the perturbed source; None where some item lacks it."""
    items: int
    clusters: int


class Draws:
    """The draws of a bootstrap by number of clusters, made once: figures are resampled alike."""

    def __init__(self) -> None:
        self._made: dict[int, Values] = {}

    def of(self, clusters: int) -> Values:
        """Return float64 [resamples, clusters] of `statistics.resample`."""
        if clusters not in self._made:
            self._made[clusters] = resample(clusters)
        return self._made[clusters]


def estimate(measured: Slice, draws: Draws, share: float = 0.0) -> Estimates:
    """Return the figures of a slice of at least one item.

    Args:
        measured: the slice.
        draws: of the bootstrap.
        share: of a proportion's own rate on the other arm that its margin allows on top.

    Raises:
        NumericalError: a value is NaN or infinite; names slice, item and arm.
        FaultError: a value that the slice's measure does not allow.
    """
    columns = _columns(measured)
    source, candidate, floor = columns.source, columns.candidate, columns.floor

    def against(harmed: Values, base: Values) -> Estimate:
        return _estimate(measured.measure, columns, harmed, base, draws, share)

    return Estimates(
        figure=against(candidate, source),
        floor=None if floor is None else against(floor, source),
        excess=None if floor is None else against(candidate, floor),
        items=len(measured.items),
        clusters=columns.count,
    )


@dataclass(frozen=True)
class _Columns:
    """Items as arrays."""

    clusters: NDArray[np.intp]
    count: int
    weights: Values
    source: Values
    candidate: Values
    floor: Values | None


def _columns(measured: Slice) -> _Columns:
    items = measured.items
    codes: dict[str, int] = {}
    clusters = [codes.setdefault(item.cluster, len(codes)) for item in items]
    floors = [item.floor for item in items if item.floor is not None]
    found = _Columns(
        clusters=np.array(clusters, np.intp),
        count=len(codes),
        weights=np.array([item.weight for item in items]),
        source=np.array([item.source for item in items]),
        candidate=np.array([item.candidate for item in items]),
        floor=np.array(floors) if len(floors) == len(items) else None,
    )
    _require_allowed(measured, found)
    return found


def _require_allowed(measured: Slice, columns: _Columns) -> None:
    """Refuse values that no figure can be made of."""
    arms = {"source": columns.source, "candidate": columns.candidate, "floor": columns.floor}
    for arm, values in arms.items():
        if values is None:
            continue
        if not np.isfinite(values).all():
            item = _first(measured.items, ~np.isfinite(values))
            raise NumericalError(
                f"The {arm} has a value that is not finite at '{item.name}' of {measured.name}; "
                "it is never left out of a figure."
            )
        if measured.measure is Measure.PROPORTION and not np.isin(values, (0.0, 1.0)).all():
            item = _first(measured.items, ~np.isin(values, (0.0, 1.0)))
            raise FaultError(
                f"The {arm} has a value other than 0 and 1 at '{item.name}' of {measured.name}, "
                "which is a proportion."
            )
    if not (np.isfinite(columns.weights) & (columns.weights > 0.0)).all():
        raise FaultError(f"{measured.name} has an item whose weight is not positive.")
    if measured.measure is Measure.RATIO and not (columns.source > 0.0).all():
        raise FaultError(f"{measured.name} is a ratio and has a source value that is not positive.")


def _first(items: Sequence[Item], wrong: NDArray[np.bool_]) -> Item:
    return items[int(np.argmax(wrong))]


def _estimate(  # noqa: PLR0913, PLR0917
    measure: Measure,
    columns: _Columns,
    harmed: Values,
    base: Values,
    draws: Draws,
    share: float,
) -> Estimate:
    weights = columns.weights
    if measure is Measure.RATIO:
        return _resampled(bootstrap_ratio, columns, harmed, base, draws)
    even = bool((weights == weights[0]).all())
    alone = columns.count == len(weights)
    if measure is Measure.PROPORTION and even and (alone or columns.count >= MINIMUM_DOCUMENTS):
        counts = paired_counts(harmed - base, columns.clusters)
        return allowed(counts, harmed - base, base, columns.clusters, share) if share else counts
    resampled = bootstrap_ratio if measure is Measure.PROPORTION else studentized_ratio
    found = _resampled(resampled, columns, weights * (harmed - base), weights, draws)
    return Exponential(found) if measure is Measure.PERPLEXITY else found


def _resampled(
    how: Callable[[Values, Values, Values], Estimate],
    columns: _Columns,
    numerators: Values,
    denominators: Values,
    draws: Draws,
) -> Estimate:
    top, bottom = (
        np.bincount(columns.clusters, weights=values).astype(np.float64)
        for values in (numerators, denominators)
    )
    if columns.count < MINIMUM_DOCUMENTS:
        return Unbounded(float(top.sum() / bottom.sum()))
    return how(top, bottom, draws.of(columns.count))


@dataclass(frozen=True)
class Unbounded:
    """A figure over so few clusters that nothing bounds it."""

    value: float

    def interval(self, level: float) -> Interval:
        """Return the figure without bounds."""
        return Interval(value=self.value, level=level)

    def chance_under(self, bound: float) -> float:
        """Return 1: nothing is ruled out."""
        return 1.0

    def deviate(self, bound: float) -> float:
        """Return 0: no bound is far away."""
        return 0.0


@dataclass(frozen=True)
class Exponential:
    """exp of an estimate of logarithms; all that it tells respects monotone maps."""

    logarithm: Estimate

    @property
    def value(self) -> float:
        """The ratio."""
        return ratio_of(self.logarithm.value)

    def interval(self, level: float) -> Interval:
        """Return the interval of the ratio."""
        return exponential(self.logarithm.interval(level))

    def chance_under(self, bound: float) -> float:
        """Return the p-value of "the true ratio is `bound` or less", `bound` positive."""
        if bound <= 0.0:  # no ratio is
            return 0.0
        return self.logarithm.chance_under(math.log(bound))

    def deviate(self, bound: float) -> float:
        """Return how far a positive bound lies above the ratio, in normal deviates."""
        if bound <= 0.0:
            return -math.inf
        return self.logarithm.deviate(math.log(bound))
