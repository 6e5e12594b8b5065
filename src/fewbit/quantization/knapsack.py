"""Choosing one option of each item so that the cost is least and the bytes fit a budget.

The multiple-choice knapsack, by dynamic programming over bytes (Dudzinski and Walukiewicz, "Exact
methods for the knapsack problem and its generalizations", EJOR 28, 1987). Bytes are counted in
units: first the bytes of each item's smallest option are set aside, then the greatest common
divisor of all that is left is one unit, which is exact and small for the matrices of a model, whose
sizes are multiples of each other. Where that would be more than `MOST_UNITS` units, a unit is made
larger and sizes are rounded up to it, so a choice never passes the budget; the result is then the
optimum of a budget smaller by at most one unit more than there are items, and what that leaves over
is spent on the single exchanges that lower the cost most per byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_UNITS = 1 << 18
"""Units of a budget: 200 items of 13 options take two seconds and 52 MB for the way back, and a
model of some gigabytes is exact."""


@dataclass(frozen=True)
class Option:
    """One way to take an item: its bytes, 0 or more, and its cost, finite."""

    bytes: int
    cost: float


def choose_options(
    items: Sequence[Sequence[Option]], budget: int, most_units: int = MOST_UNITS
) -> tuple[int, ...] | None:
    """Return the index of the option taken of each item, or None where not even the smallest fit.

    The sum of bytes is at most `budget` and the sum of costs least, as the module says how nearly.

    Args:
        items: at least one option each.
        budget: bytes of all chosen options together.
        most_units: bounds time and memory.
    """
    if not items:
        return () if budget >= 0 else None
    least = [min(option.bytes for option in options) for options in items]
    room = budget - sum(least)
    if room < 0:
        return None
    needed = [[o.bytes - low for o in options] for options, low in zip(items, least, strict=True)]
    room = min(room, sum(max(sizes) for sizes in needed))
    unit = max(math.gcd(*(size for sizes in needed for size in sizes)), -(-room // most_units), 1)
    sizes = [[-(-size // unit) for size in row] for row in needed]
    costs = [[option.cost for option in options] for options in items]
    chosen = _least_cost(sizes, costs, room // unit)
    return tuple(_spend(items, chosen, budget))


def _least_cost(
    sizes: Sequence[Sequence[int]], costs: Sequence[Sequence[float]], room: int
) -> list[int]:
    """Return the choice of least cost with sizes of at most `room` units; one of size 0 exists."""
    best = np.zeros(room + 1)
    ways: list[NDArray[np.uint8]] = []
    for item_sizes, item_costs in zip(sizes, costs, strict=True):
        found = np.full(room + 1, np.inf)
        way = np.zeros(room + 1, np.uint8)
        for index, (size, cost) in enumerate(zip(item_sizes, item_costs, strict=True)):
            if size > room:
                continue
            tried = best[: room + 1 - size] + cost
            better = tried < found[size:]
            found[size:][better] = tried[better]
            way[size:][better] = index
        best = found
        ways.append(way)
    chosen, left = [], room
    for way, item_sizes in zip(reversed(ways), reversed(sizes), strict=True):
        index = int(way[left])
        chosen.append(index)
        left -= item_sizes[index]
    return chosen[::-1]


def _spend(items: Sequence[Sequence[Option]], chosen: Sequence[int], budget: int) -> list[int]:
    """Exchange single options for costlier ones in bytes, the most gain per byte first."""
    taken = list(chosen)
    left = budget - sum(options[i].bytes for options, i in zip(items, taken, strict=True))
    while (exchange := _best_exchange(items, taken, left)) is not None:
        item, index = exchange
        left -= items[item][index].bytes - items[item][taken[item]].bytes
        taken[item] = index
    return taken


def _best_exchange(
    items: Sequence[Sequence[Option]], taken: Sequence[int], left: int
) -> tuple[int, int] | None:
    best, found = 0.0, None
    for item, options in enumerate(items):
        now = options[taken[item]]
        for index, option in enumerate(options):
            more, gain = option.bytes - now.bytes, now.cost - option.cost
            if more > left or gain <= 0:
                continue
            worth = math.inf if more <= 0 else gain / more
            if worth > best:
                best, found = worth, (item, index)
    return found
