"""Items drawn from distributions whose truth is known, as many as the built-in suite has.

They test what no model can be made to show: a true figure on its margin to the last bit, new items
in every set instead of old ones drawn again, and every kind of slice. How many items a slice has,
and which of them are one cluster, is read from the suite (built_in.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Protocol

import numpy as np
from msgspec.structs import replace as replaced
from numpy.typing import NDArray

from fewbit.evaluate.gating.declared import subjects
from fewbit.records.gate import Gate, SliceRule
from fewbit.records.measurement import AxisResult, Measure, Slice

Values = NDArray[np.float64]


class Part(Protocol):
    """What one rule of a gate judges as one, with its true figure."""

    @property
    def slice(self) -> Slice:
        """With the items that are drawn."""
        ...

    def drawn(self, rng: np.random.Generator) -> Slice:
        """Return the slice with new values."""
        ...

    def at(self, figure: float) -> Part:
        """Return it with another true figure."""
        ...


@dataclass(frozen=True)
class Clustered:
    """A slice, and which of its items belong together."""

    slice: Slice

    @cached_property
    def owners(self) -> NDArray[np.intp]:
        """Of every item the number of its cluster."""
        codes: dict[str, int] = {}
        names = (item.cluster for item in self.slice.items)
        return np.array([codes.setdefault(name, len(codes)) for name in names], np.intp)

    @property
    def count(self) -> int:
        """Clusters there are."""
        return int(self.owners.max()) + 1

    def filled(self, source: Values, candidate: Values) -> Slice:
        """Return the slice with these values for its items, in order."""
        rows = zip(self.slice.items, source.tolist(), candidate.tolist(), strict=True)
        items = tuple(replaced(i, source=float(s), candidate=float(c)) for i, s, c in rows)
        return replaced(self.slice, items=items)


@dataclass(frozen=True)
class Asked(Clustered):
    """Items that fail or do not; some clusters fail more than others (a beta distribution)."""

    failing: float = 0.3
    """The source's rate."""
    worse: float = 0.01
    """Items that only the candidate fails."""
    better: float = 0.01
    """Items that only the source fails."""
    alike: float = 0.1
    """Correlation of what happens to two items of a cluster."""

    def drawn(self, rng: np.random.Generator) -> Slice:
        owners, flips = self.owners, self.worse + self.better
        flipped = rng.random(len(owners)) < self._chances(rng, flips)[owners]
        worse = rng.random(len(owners)) < self.worse / flips
        failed = rng.random(len(owners)) < self._chances(rng, self.failing)[owners]
        return self.filled(np.where(flipped, ~worse, failed), np.where(flipped, worse, failed))

    def _chances(self, rng: np.random.Generator, mean: float) -> Values:
        total = 1 / self.alike - 1
        return rng.beta(mean * total, (1 - mean) * total, self.count)

    def at(self, figure: float) -> Asked:
        return replace(self, worse=self.better + figure)

    def on(self, rule: SliceRule) -> Asked:
        """Return it on a rule's margin, and on what that grows by with the source's own rate.

        That rate is (1 - flips) failing + better, in which the flips are twice `better` and the
        difference that is looked for.
        """
        unmoved = (1 - 2 * self.better) * self.failing + self.better
        grown = rule.margin + rule.relative * unmoved
        return self.at(grown / (1 + rule.relative * self.failing))


@dataclass(frozen=True)
class Divergences(Clustered):
    """Nats of documents, log-normal around a true mean."""

    mean: float = 0.003
    spread: float = 0.5
    """Of the logarithm of a document's divergence."""

    def drawn(self, rng: np.random.Generator) -> Slice:
        logs = self.spread * rng.standard_normal(self.count) - self.spread**2 / 2
        values = self.mean * np.exp(logs)[self.owners]
        return self.filled(np.zeros(len(values)), values)

    def at(self, figure: float) -> Divergences:
        return replace(self, mean=figure)


@dataclass(frozen=True)
class Losses(Clustered):
    """Differences of losses in nats, normal around a true one; perplexities are ratios of them."""

    mean: float = 0.001
    between: float = 0.005
    """Deviation of clusters."""
    within: float = 0.0
    """Deviation of items of one cluster."""

    def drawn(self, rng: np.random.Generator) -> Slice:
        noise = self.between * rng.standard_normal(self.count)[self.owners]
        noise += self.within * rng.standard_normal(len(self.owners))
        values = self.mean + noise
        return self.filled(np.zeros(len(values)), values)

    def at(self, figure: float) -> Losses:
        ratio = self.slice.measure is Measure.PERPLEXITY
        return replace(self, mean=math.log(figure) if ratio else figure)


@dataclass(frozen=True)
class Ratios(Clustered):
    """Seconds or bytes: what both arms share varies, and what each has of its own."""

    ratio: float = 0.6
    shared: float = 0.2
    """Deviation of the logarithm of what both arms share in a turn."""
    own: float = 0.05

    def drawn(self, rng: np.random.Generator) -> Slice:
        pace = self.shared * rng.standard_normal(self.count)[self.owners]
        own = self.own * rng.standard_normal((2, len(self.owners)))
        return self.filled(np.exp(pace + own[0]), self.ratio * np.exp(pace + own[1]))

    def at(self, figure: float) -> Ratios:
        return replace(self, ratio=figure)


@dataclass(frozen=True)
class Truth:
    """A candidate whose true figures are all known."""

    name: str
    parts: tuple[Part, ...]

    def __call__(self, rng: np.random.Generator) -> list[AxisResult]:
        """Return what an evaluation of it might find."""
        slices = [part.drawn(rng) for part in self.parts]
        axes = dict.fromkeys(found.axis for found in slices)
        return [
            AxisResult(axis=a, slices=tuple(s for s in slices if s.axis == a), seconds=0.0)
            for a in axes
        ]

    def with_part(self, part: Part, name: str) -> Truth:
        """Return it under another name, with one part instead of its own."""
        parts = tuple(part if one.slice.name == part.slice.name else one for one in self.parts)
        return Truth(name, parts)


def good(slices: Sequence[Slice], gate: Gate) -> Truth:
    """Return what an 8-bit format does: every slice that has a margin, well inside of it.

    Args:
        slices: of the suite.
        gate: says which slices are judged as one.
    """
    axis = AxisResult(axis="suite", slices=tuple(slices), seconds=0.0)
    judged = (one.slice for one in subjects([axis], gate) if one.rule is not None)
    return Truth("8-bit, all axes", tuple(map(_part, judged)))


def each_apart(gate: Gate) -> Gate:
    """Return a gate that says of a truth what the other would: slices judged as one are one."""
    return replaced(gate, slices=tuple(replaced(rule, pool=False) for rule in gate.slices))


_KNOWN: Mapping[str, Mapping[str, float]] = {
    "tools/loops": {"failing": 0.15, "worse": 0.02, "better": 0.02},
    "answers/cap": {"failing": 0.45, "worse": 0.02, "better": 0.02},
    "tools/*": {"alike": 0.5},
    "language/kl": {"spread": 0.4},
    "language/perplexity": {"mean": 0.001, "between": 0.005},
    "long-context/recall": {"mean": 0.003, "between": 0.03, "within": 0.1},
    "memory/": {"shared": 0.01, "own": 0.01},
}
"""What is not as its kind mostly is, by the beginnings of names."""


def _part(found: Slice) -> Part:
    known = next((v for k, v in _KNOWN.items() if found.name.startswith(k)), {})
    if found.measure is Measure.PROPORTION:
        return Asked(found, **known)
    if found.measure is Measure.RATIO:
        return Ratios(found, **known)
    if found.measure is Measure.PERPLEXITY or "recall" in found.name:
        return Losses(found, **known)
    return Divergences(found, **known)


def on_margin(truth: Truth, gate: Gate) -> Iterator[Truth]:
    """Yield for each rule a truth in which the first slice that it fits lies on its margin.

    Beside it there is only what must be measured, as in `truth`: other slices, well inside their
    margins, could only make an acceptance rarer.
    """
    needed = [part for part in truth.parts if not rule_of(gate, part).optional]
    for part in _first_of_each_rule(truth, gate):
        rule = rule_of(gate, part)
        moved = part.on(rule) if isinstance(part, Asked) else part.at(rule.margin)
        others = (one for one in needed if one is not part)
        yield Truth(part.slice.name, (*others, moved))


def bad(truth: Truth, gate: Gate) -> Iterator[Truth]:
    """Yield what is bad in one part each.

    Forty answers in a hundred are worse, ratios half as much again as their margin, and all else is
    five times its margin. Everything is measured, as in `truth`: Holm's correction over all of it
    makes a rejection rarer.
    """
    for part in _first_of_each_rule(truth, gate):
        margin = rule_of(gate, part).margin
        if isinstance(part, Asked):
            moved, far = part.at(0.4), "40% worse"
        else:
            figure = 1.5 * margin if margin >= 1.0 else 5 * margin
            moved, far = part.at(figure), f"{figure:.3g}"
        yield truth.with_part(moved, f"{part.slice.name}, {far}")


def _first_of_each_rule(truth: Truth, gate: Gate) -> Iterator[Part]:
    """Yield the parts that rules judge, of several that one rule judges apart the first."""
    seen = set()
    for part in truth.parts:
        rule = rule_of(gate, part)
        if rule not in seen:
            seen.add(rule)
            yield part


def rule_of(gate: Gate, part: Part) -> SliceRule:
    """Return the rule that judges a part."""
    return next(rule for rule in gate.slices if fnmatchcase(part.slice.name, rule.match))
