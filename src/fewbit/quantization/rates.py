"""How fast this machine works by itself, from two small pieces of work that are timed here and now.

CPU time is taken, not time that passes, and the best of many: so other work on the machine hardly
shows, and what is estimated is what a job takes where nothing else runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fewbit.runtime.gram import add_gram
from fewbit.runtime.native import thread_pool

_WIDTH = 512
_ELEMENTS = 1 << 16
"""They stay in a core's cache."""
_SECONDS = 0.15
"""That pass, for each of the two."""


@dataclass(frozen=True)
class Rates:
    """Of one core."""

    products: float
    """Multiplications and additions a second in sums of outer products (of float32 rows)."""
    passes: float
    """Elements a second of an elementwise NumPy operation on float32."""


def timed_rates() -> Rates:
    """Return the rates of this machine; takes 0.3 s where nothing else runs."""
    pool = thread_pool(1)
    total = np.zeros((_WIDTH, _WIDTH), np.float32)
    rows = np.ones((_WIDTH, _WIDTH), np.float32)
    one = np.ones(_ELEMENTS, np.float32)
    other = np.empty_like(one)
    products = _least_seconds(lambda: add_gram(total, rows, pool, lengths=[_WIDTH]))
    passes = _least_seconds(lambda: np.multiply(one, one, out=other))
    return Rates(_WIDTH**3 / products, _ELEMENTS / passes)


def _least_seconds(work: Callable[[], object]) -> float:
    """Return the least CPU time of a piece of work that runs in this thread."""
    least, until = math.inf, time.perf_counter() + _SECONDS
    while True:
        began = time.thread_time()
        work()
        least = min(least, time.thread_time() - began)
        if time.perf_counter() > until:
            return least
