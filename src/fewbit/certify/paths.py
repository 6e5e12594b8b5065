"""A source of randomness that does not draw: it goes through all that a number can decide.

What a random number decides is constant on intervals: of a draw by inverse CDF those between two
cumulated weights, of a test those below and above its chance. A path takes one interval of each
number, in the order of the decisions, and has the product of their lengths as its probability. All
paths together are all that can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import FewbitError
from fewbit.keyed_random import Purpose

Key: TypeAlias = tuple[int, int, int]
"""(position, purpose, start of the block), as `ScriptedNumbers` has them."""

EDGE = 2.0**-40
"""How far from an interval's end a number is taken: code whose threshold lies elsewhere by more
decides otherwise there. Intervals of less than two edges are left out, and the total tells."""


class DisagreementError(FewbitError):
    """The engine decided otherwise than its rule at the end of an interval."""

    exit_code = 3


def unused(key: Key) -> DisagreementError:
    """Return the error that a number was drawn by and what it gave left out: that is biased."""
    return DisagreementError(
        f"the number of position {key[0]} for {Purpose(key[1]).name} decided nothing, so something "
        "that was drawn by it was dropped."
    )


class Choice(NamedTuple):
    """The interval in which a number is taken."""

    key: Key
    low: float
    high: float


class NumberPath:
    """One way through the decisions: given choices first, then the first interval of each.

    `siblings` are the beginnings of the paths that choose otherwise where this one was free.
    """

    def __init__(self, given: tuple[Choice, ...] = ()) -> None:
        self.siblings: list[tuple[Choice, ...]] = []
        self.weight = 1.0
        self._choices = list(given)
        self._made = 0
        self._within: dict[Key, tuple[float, float]] = {}

    @property
    def decided(self) -> Set[Key]:
        """The numbers that decided something."""
        return self._within.keys()

    def numbers(self) -> dict[Key, float]:
        """Return the given choices as numbers, in turn near the low and the high end of each."""
        found = {}
        for i, (key, low, high) in enumerate(self._choices):
            found[key] = (low + EDGE if low else 0.0) if i % 2 else high - EDGE
        return found

    def passes(self, key: Key, chance: float) -> bool:
        """Return whether a test of this chance is passed."""
        return self._decide(key, [chance]) < chance

    def pick(self, key: Key, weights: NDArray[np.float64]) -> int:
        """Return the index that is drawn, in proportion to float64 weights, not all 0."""
        reached = np.cumsum(weights)
        bounds = reached / reached[-1]
        return int(np.searchsorted(bounds, self._decide(key, bounds), side="right"))

    def _decide(self, key: Key, bounds: list[float] | NDArray[np.float64]) -> float:
        """Return the middle of the interval in which this decision's number is taken."""
        low, high = self._within.get(key, (0.0, 1.0))
        if self._made == len(self._choices):
            first, *others = _intervals(key, low, high, bounds)
            self.siblings += [(*self._choices, other) for other in others]
            self._choices.append(first)
        taken = self._choices[self._made]
        if taken.key != key:
            raise unused(taken.key)
        self._made += 1
        self._within[key] = taken.low, taken.high
        self.weight *= (taken.high - taken.low) / (high - low)
        return (taken.low + taken.high) / 2


def _intervals(
    key: Key, low: float, high: float, bounds: list[float] | NDArray[np.float64]
) -> Iterator[Choice]:
    """Yield the parts into which the bounds cut [low, high)."""
    inside = [float(b) for b in bounds if low < b < high]
    for start, end in zip([low, *inside], [*inside, high], strict=True):
        if end - start > 2 * EDGE:
            yield Choice(key, start, end)


def all_paths(walk: Callable[[NumberPath], None]) -> Iterator[NumberPath]:
    """Walk every path, depth first, and yield each when it was walked."""
    left: list[tuple[Choice, ...]] = [()]
    while left:
        path = NumberPath(left.pop())
        walk(path)
        left += path.siblings
        yield path
