"""Item sets drawn anew from what was measured, and how often the gate says what of them.

What was measured on a candidate serves as the population: its figures are then the true ones. Sets
of as many clusters as an evaluation has are drawn from it with replacement, the same clusters for
all slices of an axis, and each set is judged as an evaluation is. At the margin the margin itself
is the population's figure.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from msgspec.structs import replace
from scipy.stats import binomtest

from fewbit.evaluate.gating.declared import subjects
from fewbit.evaluate.gating.estimates import Draws
from fewbit.evaluate.gating.gate import judge
from fewbit.records.gate import Gate
from fewbit.records.measurement import AxisResult, Item, Slice
from fewbit.records.outcome import Outcome

SETS = 1000
"""Judged of each candidate: a rate of 2.5% is then told from 4%."""


@dataclass(frozen=True)
class Rates:
    """How often each verdict was given on sets of items."""

    counts: Mapping[Outcome, int]

    @property
    def sets(self) -> int:
        """How many were judged."""
        return sum(self.counts.values())

    def __add__(self, other: Rates) -> Rates:
        return Rates({o: self.counts.get(o, 0) + other.counts.get(o, 0) for o in Outcome})

    def share(self, outcome: Outcome) -> float:
        return self.counts.get(outcome, 0) / self.sets

    def describe(self, outcome: Outcome) -> str:
        """Return a rate with its exact binomial interval of 95%."""
        found = binomtest(self.counts.get(outcome, 0), self.sets).proportion_ci(method="exact")
        return f"{self.share(outcome):6.1%} [{found.low:.1%}, {found.high:.1%}]"


def always(outcome: Outcome, sets: int) -> Rates:
    """Return the rates of what does not depend on the items."""
    return Rates({outcome: sets})


Draw = Callable[[np.random.Generator], Sequence[AxisResult]]
"""Returns the items of one set."""


@dataclass(frozen=True)
class Resampled:
    """Sets drawn anew from what was measured.

    Clusters are drawn with replacement, as many of each domain as were measured.
    """

    populations: tuple[Population, ...]

    @classmethod
    def of(cls, axes: Sequence[AxisResult], gate: Gate) -> Resampled:
        """Return the draw of what a gate holds to a margin."""
        return cls(tuple(map(Population, held(axes, gate))))

    def __call__(self, rng: np.random.Generator) -> list[AxisResult]:
        return [population.drawn(rng) for population in self.populations]


def verdicts(draw: Draw, gate: Gate, sets: int = SETS, seed: int = 0) -> Rates:
    """Return the verdicts on sets, each as `draw` gives it.

    Args:
        draw: returns a set.
        gate: the margins.
        sets: how many.
        seed: of the draws.
    """
    rng, draws = np.random.default_rng([seed, 2026]), Draws()
    return Rates(Counter(judge(draw(rng), gate, draws)[1].outcome for _ in range(sets)))


Cluster = list[list[Item]]
"""The items of a cluster, slice by slice."""


class Population:
    """The items of an axis by cluster, clusters of the same slices together.

    Each such stratum is drawn for itself, so that a set has as many clusters in every slice.
    """

    def __init__(self, axis: AxisResult) -> None:
        self._axis = axis
        clusters: dict[str, Cluster] = {}
        for at, found in enumerate(axis.slices):
            for item in found.items:
                empty: Cluster = [[] for _ in axis.slices]
                clusters.setdefault(item.cluster, empty)[at].append(item)
        self._strata: dict[tuple[bool, ...], list[Cluster]] = {}
        for cluster in clusters.values():
            self._strata.setdefault(tuple(map(bool, cluster)), []).append(cluster)

    def drawn(self, rng: np.random.Generator) -> AxisResult:
        """Return a set: clusters drawn with replacement, each time as another one."""
        items: Cluster = [[] for _ in self._axis.slices]
        number = itertools.count()
        for clusters in self._strata.values():
            for at in rng.integers(len(clusters), size=len(clusters)).tolist():
                name = str(next(number))
                for into, found in zip(items, clusters[at], strict=True):
                    into.extend(replace(item, cluster=name) for item in found)
        return replace(self._axis, slices=tuple(map(_with, self._axis.slices, items)))


def _with(found: Slice, items: list[Item]) -> Slice:
    return replace(found, items=tuple(items))


def held(axes: Sequence[AxisResult], gate: Gate) -> list[AxisResult]:
    """Return what decides a verdict: slices with a margin, their items against what it is held to.

    Verdicts are the same, and found in a fraction of the time.
    """
    kept = {
        one.slice.name: one.rule is None or one.rule.excess
        for one in subjects(axes, gate)
        if one.rule is not None or _pooled(one.slice.name, gate)
    }
    return [
        replace(
            axis,
            slices=tuple(
                _against_floor(found) if kept[found.name] else found
                for found in axis.slices
                if found.name in kept
            ),
        )
        for axis in axes
    ]


def _pooled(name: str, gate: Gate) -> bool:
    return any(rule.pool and fnmatchcase(name, rule.match) for rule in gate.slices)


def _against_floor(found: Slice) -> Slice:
    if any(item.floor is None for item in found.items):
        return found
    return _with(found, [replace(i, source=i.floor, floor=None) for i in found.items])


def at_margin(axes: Sequence[AxisResult], gate: Gate, name: str) -> Gate:
    """Return the gate with the margin of one slice set to the population's own figure.

    So the truth lies on the margin to the last bit, whatever the distribution of the items.
    """
    judgements, _ = judge(axes, gate)
    one = next(found for found in judgements if found.slice == name and found.margin is not None)
    figure = (one.excess or one.figure).value

    rule = next(rule for rule in gate.slices if fnmatchcase(name, rule.match))
    grown = (one.margin or 0.0) - rule.margin  # by the rate of the source itself
    moved = replace(rule, match=name, margin=figure - grown)
    return replace(gate, slices=(moved, *(r for r in gate.slices if r.match != name)))
