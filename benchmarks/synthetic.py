"""Items drawn from distributions whose truth is known, as many as an evaluation by default has.

They test what no model can be made to show: a true figure on its margin to the last bit, new items
in every set instead of old ones drawn again, and every kind of slice. Items that an arm fails are
drawn by cluster, so that some clusters fail more than others (a beta distribution of chances).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fewbit.records.measurement import AxisResult, Item, Measure, Slice


@dataclass(frozen=True)
class Asked:
    """A slice of items that fail or do not."""

    name: str
    clusters: int
    size: int
    failing: float = 0.3
    """The source's rate."""
    worse: float = 0.01
    """Items that only the candidate fails."""
    better: float = 0.01
    """Items that only the source fails."""
    alike: float = 0.1
    """Correlation of what happens to two items of a cluster."""

    def drawn(self, rng: np.random.Generator) -> Slice:
        """Return items of new clusters."""
        shape = self.clusters, self.size
        flips = self.worse + self.better
        flipped = rng.random(shape) < _chances(rng, flips, self.alike, self.clusters)
        worse = rng.random(shape) < self.worse / flips
        source = rng.random(shape) < _chances(rng, self.failing, self.alike, self.clusters)
        source = np.where(flipped, ~worse, source)
        candidate = np.where(flipped, worse, source)
        return _slice(self.name, Measure.PROPORTION, source, candidate)


def _chances(rng: np.random.Generator, mean: float, alike: float, clusters: int) -> np.ndarray:
    total = 1 / alike - 1
    return rng.beta(mean * total, (1 - mean) * total, (clusters, 1))


def _slice(name: str, measure: Measure, source: np.ndarray, candidate: np.ndarray) -> Slice:
    rows = zip(source.tolist(), candidate.tolist(), strict=True)
    items = tuple(
        Item(name=f"{c}/{i}", cluster=str(c), source=float(s), candidate=float(k))
        for c, (sources, candidates) in enumerate(rows)
        for i, (s, k) in enumerate(zip(sources, candidates, strict=True))
    )
    axis = name.partition("/")[0]
    return Slice(name=name, axis=axis, measure=measure, unit="", title="drawn", items=items)


@dataclass(frozen=True)
class Text:
    """Documents: divergences are log-normal, losses normal around a true difference."""

    documents: int = 40
    divergence: float = 0.003
    """The true mean, nats."""
    spread: float = 0.5
    """Of the logarithm of a document's divergence."""
    loss: float = 0.001
    """The true difference of losses, nats."""

    def drawn(self, rng: np.random.Generator) -> Iterator[Slice]:
        """Yield the two slices of the language axis."""
        shape = self.documents, 1
        logs = self.spread * rng.standard_normal(shape) - self.spread**2 / 2
        divergence = self.divergence * np.exp(logs)
        noise = math.sqrt(self.divergence / 100) * rng.standard_normal(shape)
        yield _slice("language/kl", Measure.MEAN, np.zeros(shape), divergence)
        zero = np.zeros(shape)
        yield _slice("language/perplexity", Measure.PERPLEXITY, zero, self.loss + noise)


@dataclass(frozen=True)
class Truth:
    """A candidate whose true figures are all known."""

    name: str
    text: Text
    asked: Sequence[Asked]

    def drawn(self, rng: np.random.Generator) -> list[AxisResult]:
        """Return what an evaluation of it might find."""
        slices = [*self.text.drawn(rng), *(asked.drawn(rng) for asked in self.asked)]
        axes = dict.fromkeys(found.axis for found in slices)
        return [
            AxisResult(axis=a, slices=tuple(s for s in slices if s.axis == a), seconds=0.0)
            for a in axes
        ]


SUITE = (
    Asked("tasks/drawn", clusters=150, size=3),
    Asked("safety/drawn", clusters=80, size=1),
    Asked("tools/drawn", clusters=96, size=3),
    Asked("tools/loops", clusters=250, size=1, failing=0.03, worse=0.005, better=0.005),
    Asked("answers/cap", clusters=250, size=1, failing=0.05, worse=0.005, better=0.005),
    Asked("structured/drawn", clusters=52, size=2),
)
"""About as many items as the built-in suite has, 2% of them changed, as by an 8-bit format."""

GOOD = Truth("drawn: 8-bit, all axes", Text(), SUITE)


def on_margin(match: Callable[[str], float | None]) -> Iterator[Truth]:
    """Yield a truth on the margin for each slice, all others as in `GOOD`.

    Args:
        match: the margin of a slice's name, None where there is none.
    """
    kl, perplexity = match("language/kl"), match("language/perplexity")
    if kl is not None:
        yield replace(GOOD, name="drawn: language/kl", text=Text(divergence=kl))
    if perplexity is not None:
        text = Text(divergence=0.03, loss=math.log(perplexity))
        yield replace(GOOD, name="drawn: language/perplexity", text=text)
    for one in SUITE:
        margin = match(one.name)
        if margin is not None:
            moved = replace(one, worse=one.worse + margin)
            asked = [moved if other is one else other for other in SUITE]
            yield replace(GOOD, name=f"drawn: {one.name}", asked=asked)


def bad() -> Iterator[Truth]:
    """Yield what is bad in one way each: a 3-bit format's text, and answers that changed a lot."""
    yield replace(GOOD, name="drawn: 3-bit text", text=Text(divergence=0.3, loss=0.1))
    for one in SUITE:
        worse = replace(one, worse=0.4)
        asked = [worse if other is one else other for other in SUITE]
        yield replace(GOOD, name=f"drawn: {one.name} 40% worse", asked=asked)
