"""Item sets drawn anew from what was measured, and how often the gate says what of them.

What was measured on a candidate serves as the population: its figures are then the true ones. Sets
of as many clusters as an evaluation has are drawn from it with replacement, the same clusters for
all slices of an axis, and each set is judged as an evaluation is. At the margin the margin itself
is the population's figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from scipy.stats import binomtest

from fewbit.evaluate.estimates import Draws
from fewbit.evaluate.gate import judge
from fewbit.records.gate import Gate
from fewbit.records.measurement import AxisResult, Item, Slice
from fewbit.records.outcome import Outcome

SETS = 400


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


def judged(
    axes: Sequence[AxisResult],
    gate: Gate,
    sizes: Mapping[str, int],
    sets: int = SETS,
    seed: int = 0,
) -> Rates:
    """Return the verdicts on sets drawn anew.

    Args:
        axes: what was measured: the population.
        gate: the margins.
        sizes: how many clusters an evaluation has, by axis; others have what was measured.
        sets: how many sets.
        seed: of the draws.
    """
    populations = [Population(axis, sizes.get(axis.axis)) for axis in axes]
    return verdicts(lambda rng: [p.drawn(rng) for p in populations], gate, sets, seed)


def verdicts(
    draw: Callable[[np.random.Generator], Sequence[AxisResult]],
    gate: Gate,
    sets: int = SETS,
    seed: int = 0,
) -> Rates:
    """Return the verdicts on sets, each as `draw` gives it."""
    rng, draws = np.random.default_rng([seed, 2026]), Draws()
    return Rates(Counter(judge(draw(rng), gate, draws)[1].outcome for _ in range(sets)))


class Population:
    """The items of an axis by cluster."""

    def __init__(self, axis: AxisResult, size: int | None) -> None:
        self._axis = axis
        names = sorted({item.cluster for found in axis.slices for item in found.items})
        self._clusters = [
            [[i for i in found.items if i.cluster == name] for found in axis.slices]
            for name in names
        ]
        self._size = size or len(names)

    def drawn(self, rng: np.random.Generator) -> AxisResult:
        """Return a set: clusters drawn with replacement, each time as another one."""
        if not self._clusters:
            return self._axis
        items: list[list[Item]] = [[] for _ in self._axis.slices]
        for number, at in enumerate(rng.integers(len(self._clusters), size=self._size).tolist()):
            for into, found in zip(items, self._clusters[at], strict=True):
                into.extend(replace(item, cluster=str(number)) for item in found)
        return replace(self._axis, slices=tuple(map(_with, self._axis.slices, items)))


def _with(found: Slice, items: list[Item]) -> Slice:
    return replace(found, items=tuple(items))


def at_margin(axes: Sequence[AxisResult], gate: Gate, name: str) -> Gate:
    """Return the gate with the margin of one slice set to the population's own figure.

    So the truth lies on the margin to the last bit, whatever the distribution of the items.
    """
    judgements, _ = judge(axes, gate)
    one = next(found for found in judgements if found.slice == name and found.margin is not None)
    figure = (one.excess or one.figure).value
    rules = tuple(
        replace(rule, margin=figure) if rule.match == name else rule for rule in gate.slices
    )
    return replace(gate, slices=rules)
