from __future__ import annotations

import numpy as np
import pytest

from fewbit.errors import NumericalError
from fewbit.methods.statistics import InputStatistics


def statistics_of(x: np.ndarray) -> InputStatistics:
    return InputStatistics(
        count=x.shape[0],
        squares=(x.astype(np.float64) ** 2).sum(axis=0),
        largest=np.abs(x).max(axis=0).astype(np.float32),
        absolute=np.abs(x.astype(np.float64)).sum(axis=0),
        gram=(x.T @ x).astype(np.float32),
    )


def same(a: InputStatistics, b: InputStatistics) -> None:
    assert a.count == b.count
    for name in ("squares", "largest", "absolute", "gram"):
        # Sums of 40 float32 products: 40 roundings of 2^-24 relative to the sum of magnitudes,
        # which cancellation makes at most a few times the largest entry.
        expected = getattr(b, name)
        np.testing.assert_allclose(
            getattr(a, name), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max()
        )


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(40, 7)).astype(np.float32)


def test_scaled_is_the_statistics_of_scaled_rows() -> None:
    x = rows()
    factors = np.array([1, 2, -3, 0.5, 0.1, 8, 1], np.float32)
    same(statistics_of(x).scaled(factors), statistics_of(x / factors))


def test_plus_is_the_statistics_of_both() -> None:
    x = rows()
    same(statistics_of(x[:13]).plus(statistics_of(x[13:])), statistics_of(x))


def test_plus_without_a_gram_has_none() -> None:
    x = statistics_of(rows())
    bare = InputStatistics(x.count, x.squares, x.largest, x.absolute)
    assert x.plus(bare).gram is None
    assert bare.scaled(np.full(7, 2.0)).gram is None


@pytest.mark.parametrize(
    ("name", "word"), [("squares", "squares"), ("largest", "largest"), ("gram", "Gram")]
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_name(name: str, word: str, bad: float) -> None:
    x = statistics_of(rows())
    x.require_finite()
    values = getattr(x, name)
    values[5] = bad
    if values.ndim == 2:
        values[:, 5] = bad
    with pytest.raises(NumericalError, match=f"{word}.* at input 5"):
        x.require_finite()
