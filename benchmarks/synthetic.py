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

from fewbit.records.gate import Gate, SliceRule
from fewbit.records.measurement import AxisResult, Measure, Slice

Values = NDArray[np.float64]


class Part(Protocol):
    """The slices that one rule of a gate judges, with their true figure."""

    @property
    def name(self) -> str:
        """The rule's pattern, or the slice's name where a pattern fits several apart."""
        ...

    def drawn(self, rng: np.random.Generator) -> Iterator[Slice]:
        """Yield the slices with new items."""
        ...

    def at(self, figure: float) -> Part:
        """Return it with another true figure, as a slice on its margin varies."""
        ...


@dataclass(frozen=True)
class Clustered:
    """Slices, and which of all their items belong together."""

    name: str
    slices: tuple[Slice, ...]

    @cached_property
    def owners(self) -> NDArray[np.intp]:
        """Of every item the number of its cluster; one of the same name is one in all slices."""
        codes: dict[str, int] = {}
        names = (item.cluster for found in self.slices for item in found.items)
        return np.array([codes.setdefault(name, len(codes)) for name in names], np.intp)

    @property
    def count(self) -> int:
        """Clusters there are."""
        return int(self.owners.max()) + 1

    def filled(self, source: Sequence[float], candidate: Sequence[float]) -> Iterator[Slice]:
        """Yield the slices with these values for all their items, in order."""
        values = zip(source, candidate, strict=True)
        for found in self.slices:
            pairs = zip(found.items, values, strict=False)
            items = tuple(replaced(i, source=s, candidate=c) for i, (s, c) in pairs)
            yield replaced(found, items=items)


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

    def drawn(self, rng: np.random.Generator) -> Iterator[Slice]:
        owners, flips = self.owners, self.worse + self.better
        flipped = rng.random(len(owners)) < self._chances(rng, flips)[owners]
        worse = rng.random(len(owners)) < self.worse / flips
        failed = rng.random(len(owners)) < self._chances(rng, self.failing)[owners]
        source, candidate = np.where(flipped, ~worse, failed), np.where(flipped, worse, failed)
        yield from self.filled(source.astype(float).tolist(), candidate.astype(float).tolist())

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

    def drawn(self, rng: np.random.Generator) -> Iterator[Slice]:
        logs = self.spread * rng.standard_normal(self.count) - self.spread**2 / 2
        values = self.mean * np.exp(logs)[self.owners]
        yield from self.filled(np.zeros(len(values)).tolist(), values.tolist())

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

    def drawn(self, rng: np.random.Generator) -> Iterator[Slice]:
        noise = self.between * rng.standard_normal(self.count)[self.owners]
        noise += self.within * rng.standard_normal(len(self.owners))
        values = self.mean + noise
        yield from self.filled(np.zeros(len(values)).tolist(), values.tolist())

    def at(self, figure: float) -> Losses:
        ratio = self.slices[0].measure is Measure.PERPLEXITY
        return replace(self, mean=math.log(figure) if ratio else figure)


@dataclass(frozen=True)
class Ratios(Clustered):
    """Seconds or bytes: what both arms share varies, and what each has of its own."""

    ratio: float = 0.6
    shared: float = 0.2
    """Deviation of the logarithm of what both arms share in a turn."""
    own: float = 0.05

    def drawn(self, rng: np.random.Generator) -> Iterator[Slice]:
        pace = self.shared * rng.standard_normal(self.count)[self.owners]
        own = self.own * rng.standard_normal((2, len(self.owners)))
        source, candidate = np.exp(pace + own[0]), self.ratio * np.exp(pace + own[1])
        yield from self.filled(source.tolist(), candidate.tolist())

    def at(self, figure: float) -> Ratios:
        return replace(self, ratio=figure)


@dataclass(frozen=True)
class Truth:
    """A candidate whose true figures are all known."""

    name: str
    parts: tuple[Part, ...]

    def __call__(self, rng: np.random.Generator) -> list[AxisResult]:
        """Return what an evaluation of it might find."""
        slices = [found for part in self.parts for found in part.drawn(rng)]
        axes = dict.fromkeys(found.axis for found in slices)
        return [
            AxisResult(axis=a, slices=tuple(s for s in slices if s.axis == a), seconds=0.0)
            for a in axes
        ]

    def with_part(self, part: Part, name: str) -> Truth:
        """Return it under another name, with one part instead of its own."""
        parts = tuple(part if one.name == part.name else one for one in self.parts)
        return Truth(name, parts)


def good(slices: Sequence[Slice], gate: Gate) -> Truth:
    """Return what an 8-bit format does: every slice that has a margin, well inside of it.

    Args:
        slices: of the suite.
        gate: says which slices are judged as one.
    """
    together: dict[str, list[Slice]] = {}
    for found in slices:
        rule = _rule(gate, found.name)
        if rule is not None:
            together.setdefault(rule.match if rule.pool else found.name, []).append(found)
    parts = (_part(name, tuple(several)) for name, several in together.items())
    return Truth("8-bit, all axes", tuple(parts))


def _rule(gate: Gate, name: str) -> SliceRule | None:
    return next((rule for rule in gate.slices if fnmatchcase(name, rule.match)), None)


_KNOWN: Mapping[str, Mapping[str, float]] = {
    "tools/loops": {"failing": 0.15, "worse": 0.02, "better": 0.02},
    "answers/cap": {"failing": 0.45, "worse": 0.02, "better": 0.02},
    "tools/*": {"alike": 0.5},
    "language/perplexity": {"mean": 0.001, "between": 0.005},
    "long-context/recall": {"mean": 0.003, "between": 0.03, "within": 0.1},
    "memory/": {"shared": 0.01, "own": 0.01},
}
"""What is not as its kind mostly is, by the beginnings of names."""


def _part(name: str, slices: tuple[Slice, ...]) -> Part:
    measure = slices[0].measure
    known = next((v for k, v in _KNOWN.items() if name.startswith(k)), {})
    if measure is Measure.PROPORTION:
        return Asked(name, slices, **known)
    if measure is Measure.RATIO:
        return Ratios(name, slices, **known)
    if measure is Measure.PERPLEXITY or "recall" in name:
        return Losses(name, slices, **known)
    return Divergences(name, slices, **known)


def on_margin(truth: Truth, gate: Gate) -> Iterator[Truth]:
    """Yield for each part a truth in which it lies on its margin, and all else as in `truth`."""
    for part in truth.parts:
        rule = _rule_of(gate, part)
        moved = part.on(rule) if isinstance(part, Asked) else part.at(rule.margin)
        yield truth.with_part(moved, part.name)


def bad(truth: Truth, gate: Gate) -> Iterator[Truth]:
    """Yield what is bad in one part each: five times its margin, or half as much again of a ratio.

    Forty in a hundred answers, at least.
    """
    for part in truth.parts:
        margin = _rule_of(gate, part).margin
        figure = max(0.4, margin) if isinstance(part, Asked) else _beyond(part, margin)
        yield truth.with_part(part.at(figure), f"{part.name}, {_far(part, figure)}")


def _beyond(part: Part, margin: float) -> float:
    return 1.5 * margin if isinstance(part, Ratios) or margin >= 1.0 else 5 * margin


def _far(part: Part, figure: float) -> str:
    return f"{figure:.0%} worse" if isinstance(part, Asked) else f"{figure:.3g}"


def _rule_of(gate: Gate, part: Part) -> SliceRule:
    rule = _rule(gate, part.name)
    assert rule is not None
    return rule
