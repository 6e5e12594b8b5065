"""The blend of an expert's statistics with those of all tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fewbit.methods.shrinkage import prior_rows, share_of_prior, shrunk
from fewbit.methods.statistics import InputStatistics


def statistics_of(x: np.ndarray, gram: bool = True) -> InputStatistics:
    size = np.abs(x)
    return InputStatistics(
        count=len(x),
        squares=np.square(x).sum(axis=0, dtype=np.float64),
        largest=size.max(axis=0, initial=0).astype(np.float32),
        absolute=size.sum(axis=0, dtype=np.float64),
        gram=(x.T @ x).astype(np.float32) if gram else None,
    )


def rows(count: int, scales: np.ndarray, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal((count, len(scales))) * scales).astype(np.float32)


FLAT = np.ones(24)
STEEP = np.exp(-np.arange(24) / 2.0)


def test_an_expert_that_nothing_reached_has_the_mean_of_all():
    shared = statistics_of(rows(500, STEEP, 0))
    found = shrunk(statistics_of(np.zeros((0, 24), np.float32)), shared)
    assert found.count == prior_rows(shared)
    assert np.allclose(found.squares / found.count, shared.squares / 500)
    assert np.allclose(found.gram / found.count, shared.gram / 500, rtol=1e-6)
    assert np.array_equal(found.largest, shared.largest)
    found.require_finite()
    assert found.remarks == (
        "No calibration token reached this expert; its statistics are those of all tokens.",
    )


def test_the_share_of_all_falls_with_the_count_and_vanishes():
    shared = statistics_of(rows(500, FLAT, 0))
    shares = [share_of_prior(count, shared) for count in (0, 1, 10, 100, 1000, 10**6)]
    assert shares[0] == 1
    assert all(a > b for a, b in itertools.pairwise(shares))
    assert shares[-1] < 1e-4
    own = statistics_of(rows(10**5, FLAT * 2, 1))
    found = shrunk(own, shared)
    assert np.allclose(found.gram / found.count, own.gram / own.count, atol=2e-2)
    assert found.remarks[0].startswith("100000 calibration tokens reached this expert; its stat")
    few = shrunk(statistics_of(rows(9, FLAT, 1)), shared)
    assert few.remarks[0].startswith("Only 9 calibration tokens reached this expert")


def test_the_prior_counts_the_directions_that_carry_the_input():
    flat, steep = statistics_of(rows(5000, FLAT, 0)), statistics_of(rows(5000, STEEP, 0))
    one = statistics_of(np.outer(np.ones(5), np.arange(1.0, 25.0)).astype(np.float32))
    assert prior_rows(flat) in (24, 25)
    assert prior_rows(steep) == int(np.ceil((STEEP**2).sum() ** 2 / (STEEP**4).sum())) + 1
    assert prior_rows(one) == 2
    assert prior_rows(statistics_of(np.zeros((5, 24), np.float32))) == 2
    assert prior_rows(statistics_of(rows(5000, STEEP, 0), gram=False)) >= prior_rows(steep)


def test_without_a_gram_matrix_there_is_none():
    shared, own = statistics_of(rows(50, FLAT, 0)), statistics_of(rows(3, FLAT, 1), gram=False)
    assert shrunk(own, shared).gram is None


@pytest.mark.parametrize("count", [2, 8, 32, 200])
def test_the_blend_errs_less_than_either_where_the_distance_is_the_assumed_one(count: int):
    """Second moments M of the expert and T of all with ||M - T|| = ||M||, as the formula takes it:
    the mean error over draws is less than that of the expert's rows alone and than T's."""
    expert = np.sqrt(np.where(np.arange(24) < 12, 2.0, 0.25))
    moments = np.diag(expert**2)
    turned = np.where(np.arange(24) < 12, 2.0 - np.sqrt(2.0), 0.25 + 1.3)
    shared_rows = rows(200_000, np.sqrt(turned), 9)
    shared = statistics_of(shared_rows)
    errors = []
    for seed in range(40):
        own = statistics_of(rows(count, expert, seed))
        blend = shrunk(own, shared)
        kinds = (own.gram / own.count, shared.gram / shared.count, blend.gram / blend.count)
        errors.append([np.square(kind - moments).sum() for kind in kinds])
    alone, other, both = np.mean(errors, axis=0)
    assert both < min(alone, other)


def test_the_error_of_a_mean_gram_matrix_is_the_formulas():
    moments = STEEP**2
    errors = []
    for seed in range(2000):
        x = rows(7, STEEP, seed).astype(np.float64)
        errors.append(np.square(x.T @ x / 7 - np.diag(moments)).sum())
    expected = (moments.sum() ** 2 + (moments**2).sum()) / 7
    # 2000 draws of a heavy-tailed error: its mean is known to some 5%.
    assert abs(np.mean(errors) - expected) < 0.15 * expected
