"""Keyed random numbers against NumPy's Philox, and independence of their keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fewbit.keyed_random import Purpose, philox, uniform

words = st.integers(0, 2**64 - 1)


@given(st.tuples(words, words, words, words), st.tuples(words, words))
def test_philox_equals_numpy(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    # NumPy raises its 256-bit counter by one before it makes a block.
    before = (sum(word << (64 * i) for i, word in enumerate(counter)) - 1) % 2**256
    oracle = np.random.Philox(counter=before, key=np.array(key, np.uint64))
    assert philox(counter, key) == tuple(int(w) for w in oracle.random_raw(4))


def test_uniform_is_a_function_of_its_four_keys() -> None:
    base = uniform(1, 2, 3, Purpose.TOKEN)
    assert base == uniform(1, 2, 3, Purpose.TOKEN)
    others = [
        uniform(2, 2, 3, Purpose.TOKEN),
        uniform(1, 3, 3, Purpose.TOKEN),
        uniform(1, 2, 4, Purpose.TOKEN),
        uniform(1, 2, 3, Purpose.ACCEPT),
    ]
    assert base not in others
    assert len(set(others)) == len(others)


def test_uniforms_are_uniform() -> None:
    drawn = np.array([uniform(7, 0, i, Purpose.TOKEN) for i in range(4000)])
    assert drawn.min() >= 0 and drawn.max() < 1
    # Kolmogorov-Smirnov: the critical value at 1e-6 is sqrt(-ln(1e-6 / 2) / 2 / n).
    gap = np.abs(np.sort(drawn) - np.arange(4000) / 4000).max()
    assert gap < np.sqrt(-np.log(0.5e-6) / 2 / 4000)
