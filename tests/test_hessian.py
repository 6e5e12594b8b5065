"""The factor that GPTQ rounds with, against a Cholesky factor in float64.

Bound: the computed factor is the exact one of a matrix whose elements are off by n * 2^-24 of
sqrt(H_ii H_jj) at most; scaled to a unit diagonal its least eigenvalue is 0.09 at least, so the
factor's relative change is at most n * 2^-24 * n / 0.09 / 2 and, as rounding errors fall, about a
hundredth of that (a factor sqrt(n) for each n). Relative to sqrt(F_jj) of the scaled matrix.
"""

from __future__ import annotations

import numpy as np
import pytest
from gptq_oracle import damped
from solver_cases import layer, statistics_of

from fewbit._native import available_isas, factor_hessian
from fewbit.errors import NumericalError
from fewbit.methods.hessian import (
    DAMPING,
    SHRINKAGE,
    Factor,
    damped_diagonal,
    factorize,
    mean_diagonal,
)
from fewbit.methods.statistics import InputStatistics
from fewbit.methods.tiles import thread_pool

POOL = thread_pool(2)
WIDTHS = [1, 2, 15, 16, 17, 63, 64, 65, 130, 300]


def order_of(columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(columns)


def exact(statistics: InputStatistics, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Feedback and variance in float64: M is the reversed transpose of the reversed H's factor."""
    hessian = damped(statistics.gram, DAMPING, SHRINKAGE)[np.ix_(order[::-1], order[::-1])]
    m = np.linalg.cholesky(hessian).T[::-1, ::-1]
    return m / m.diagonal()[:, None], m.diagonal() ** 2


def worst(found: Factor, statistics: InputStatistics, order: np.ndarray) -> float:
    """The largest error of an element, in what moves its row's target by one unit's input."""
    feedback, variance = exact(statistics, order)
    size = np.sqrt(damped_diagonal(statistics)[order])
    scaled = np.abs(found.feedback - feedback) * np.sqrt(variance)[:, None] / size[None, :]
    return max(float(scaled.max()), float(np.abs(found.variance / variance - 1).max()))


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_factor_is_that_of_float64(columns: int) -> None:
    _, statistics = layer(1, columns)
    order = order_of(columns)
    found = factorize(statistics, order, POOL)
    assert worst(found, statistics, order) < 2e-6
    assert not np.triu(found.feedback, 1).any()
    assert (found.feedback.diagonal() == 1).all()


def test_inputs_of_very_unequal_size_lose_no_digits() -> None:
    """Float32 fails on a matrix whose directions lie 10^7 apart, not on the scaled one."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 200)) @ rng.normal(size=(200, 200))
    statistics = statistics_of((x * 10 ** rng.uniform(-5, 5, 200)).astype(np.float32))
    order = order_of(200)
    assert worst(factorize(statistics, order, POOL), statistics, order) < 2e-6


def test_a_factor_of_another_order_is_seen() -> None:
    """The bound has teeth: two neighbouring columns changed over are beyond it."""
    _, statistics = layer(1, 64)
    order = order_of(64)
    wrong = order.copy()
    wrong[[10, 11]] = wrong[[11, 10]]
    assert worst(factorize(statistics, wrong, POOL), statistics, order) > 1e-3


@pytest.mark.parametrize("isa", available_isas())
def test_instruction_sets_and_threads_give_the_same_bits(isa: str) -> None:
    _, statistics = layer(1, 200, seed=1)
    order = order_of(200)

    def result(isa: str, threads: int) -> tuple[bytes, bytes]:
        feedback, variance = np.empty((200, 200), np.float32), np.empty(200, np.float32)
        definite = factor_hessian(
            thread_pool(threads),
            gram=statistics.gram,
            order=order,
            unit=mean_diagonal(statistics),
            diagonal=damped_diagonal(statistics)[order],
            feedback=feedback,
            variance=variance,
            isa=isa,
        )
        assert definite
        return feedback.tobytes(), variance.tobytes()

    assert result(isa, 3) == result("portable", 1)


@pytest.mark.parametrize("place", [0, 70, 149])
def test_a_matrix_that_is_not_positive_definite_is_refused(place: int) -> None:
    _, statistics = layer(1, 150)
    diagonal = damped_diagonal(statistics)
    for wrong in (0.0, -1.0, np.nan, np.inf):
        diagonal[place] = wrong
        assert not factor_hessian(
            POOL,
            gram=statistics.gram,
            order=np.arange(150),
            unit=mean_diagonal(statistics),
            diagonal=diagonal,
            feedback=np.empty((150, 150), np.float32),
            variance=np.empty(150, np.float32),
        )


def test_what_stays_indefinite_is_an_error() -> None:
    _, statistics = layer(1, 20)
    statistics.gram[0, 1] = statistics.gram[1, 0] = 1e7 * statistics.gram.diagonal().mean()
    with pytest.raises(NumericalError, match="stays indefinite"):
        factorize(statistics, order_of(20), POOL)


def test_shapes_and_orders_that_do_not_fit_are_refused() -> None:
    square, vector = np.eye(4, dtype=np.float32), np.ones(4, np.float32)
    good = {"gram": square, "order": np.arange(4), "unit": 1.0, "diagonal": np.ones(4)}
    results = {"feedback": square.copy(), "variance": vector}
    for change in (
        {"order": np.arange(3)},
        {"order": np.array([0, 1, 2, 4])},
        {"order": np.array([0, 1, 2, -1])},
        {"diagonal": np.ones(5)},
        {"gram": np.ones((4, 5), np.float32)},
        {"feedback": np.ones((3, 4), np.float32)},
    ):
        with pytest.raises(ValueError, match=r"wide|order"):
            factor_hessian(POOL, **(good | results | change))
