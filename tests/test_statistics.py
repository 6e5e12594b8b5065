"""Intervals against closed forms, and their coverage by simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import bootstrap

from fewbit.evaluate.gating.bootstrap import (
    bootstrap_ratio,
    expanded_alpha,
    exponential,
    proportion_interval,
    quantile_intervals,
    ratio_interval,
    resample,
    student_quantile,
    studentized_ratio,
)


@pytest.mark.parametrize(
    ("degrees", "t"),
    [(3, 3.182), (4, 2.776), (7, 2.365), (11, 2.201), (19, 2.093), (39, 2.023), (999, 1.962)],
)
def test_student_quantiles(degrees, t):
    assert student_quantile(0.975, degrees) == pytest.approx(t, rel=1e-2 if degrees < 4 else 5e-3)


def test_draws_are_keyed_and_have_the_right_moments():
    draws = resample(10, seed=3)
    assert (draws == resample(10, seed=3)).all()
    assert (draws != resample(10, seed=4)).any()
    assert (draws.sum(axis=1) == 10).all()
    # Counts are Binomial(10, 1/10): mean 1, variance 0.9; 40,000 of them, five standard errors.
    assert draws.mean(axis=0) == pytest.approx(1.0, abs=5 * math.sqrt(0.9 / 4000))
    assert draws.var() == pytest.approx(0.9, abs=0.05)


def test_the_interval_of_a_mean_matches_students():
    """For symmetric data BCa with expansion comes close to the exact t interval."""
    x = np.random.default_rng(0).standard_normal(40) * 0.2 + 3
    found = ratio_interval(x, np.ones(40), resample(40), 0.95)
    half = student_quantile(0.975, 39) * x.std(ddof=1) / math.sqrt(40)
    assert found.value == pytest.approx(x.mean(), rel=1e-12)
    assert found.low == pytest.approx(x.mean() - half, abs=0.2 * half)
    assert found.high == pytest.approx(x.mean() + half, abs=0.2 * half)


@pytest.mark.parametrize("documents", [12, 18, 40])
def test_skewed_documents_rarely_lie_over_an_upper_end(documents):
    """That side lets a bad model pass; log-normal documents, sigma 0.7.

    Of 400 sets 2.5% are 10; five standard errors (3.1 each) more are 26. The negative control: the
    plain percentile interval misses 13, 9 and 5% of 12, 18 and 40.
    """
    rng = np.random.default_rng(3)
    draws, truth, over = resample(documents), math.exp(0.7**2 / 2), {"ours": 0, "percentile": 0}
    for _ in range(400):
        x = np.exp(rng.standard_normal(documents) * 0.7)
        over["ours"] += ratio_interval(x, np.ones(documents), draws, 0.95).high < truth
        over["percentile"] += np.quantile(draws @ x / documents, 0.975) < truth
    assert over["ours"] <= 20
    assert over["percentile"] >= over["ours"] + (4 if documents == 40 else 10)


def test_p_values_allow_for_few_documents_as_intervals_do():
    """Of 12 documents an error is read at 1 + 10/12 of it; both ways the same, and never over."""
    x = np.random.default_rng(4).standard_normal(12)
    found = studentized_ratio(x, np.ones(12), resample(12))
    ends = found.interval(0.9)
    assert found.chance_under(ends.low) == pytest.approx(0.05, rel=0.05)
    assert found.chance_under(ends.high) == pytest.approx(0.95, rel=0.01)
    places = np.linspace(x.min(), x.max(), 50)
    chances = [found.chance_under(float(place)) for place in places]
    assert chances == sorted(chances)
    assert 0.0 <= chances[0] <= chances[-1] <= 1.0


@pytest.mark.parametrize(("documents", "least"), [(12, 0.86), (40, 0.91)])
def test_intervals_cover_the_truth(documents, least):
    """Log-normal documents, sigma 0.7; coverage 92-94% was seen with thousands of trials.

    With 300 trials the standard error is 1.5%; `least` is three of them under what was seen.
    """
    rng = np.random.default_rng(1)
    draws, truth, trials = resample(documents), math.exp(0.7**2 / 2), 300
    hits = 0
    for _ in range(trials):
        x = np.exp(rng.standard_normal(documents) * 0.7)
        found = ratio_interval(x, np.ones(documents), draws, 0.95)
        hits += found.low <= truth <= found.high
    assert least <= hits / trials <= 0.985


def test_positions_drawn_instead_of_documents_would_not_cover():
    """The negative control: positions cluster in documents; ignoring it is far too sure."""
    rng = np.random.default_rng(2)
    hits = {"documents": 0, "positions": 0}
    draws, flat_draws = resample(20, count=1000), resample(400, count=1000)
    for _ in range(100):
        x = rng.standard_normal((20, 1)) + rng.standard_normal((20, 20))
        for name, values, ws in (
            ("documents", x.sum(axis=1), draws),
            ("positions", x.reshape(-1), flat_draws),
        ):
            found = ratio_interval(values, np.full(len(values), x.size / len(values)), ws, 0.95)
            hits[name] += found.low <= 0.0 <= found.high
    assert hits["documents"] >= 87
    assert hits["positions"] <= 70


def test_ratio_is_of_sums_not_of_documents_means():
    found = ratio_interval(np.array([1.0, 90.0]), np.array([1.0, 9.0]), resample(2), 0.95)
    assert found.value == 9.1


@pytest.mark.parametrize("documents", [1, 2, 3])
def test_too_few_documents_have_no_interval(documents):
    x, draws = np.arange(1.0, documents + 1), resample(documents)
    found = ratio_interval(x, np.full(documents, 4.0), draws, 0.95)
    assert (found.low, found.high) == (None, None)
    assert exponential(found).low is None
    assert proportion_interval(x, x * 2, draws, 0.95).low is None
    (median,) = quantile_intervals(x, np.arange(documents), (0.5,), draws, 0.95)
    assert (median.low, median.high) == (None, None)


def test_equal_documents_give_a_point():
    found = ratio_interval(np.zeros(5), np.ones(5), resample(5), 0.95)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert exponential(found).high == 1.0


def test_four_documents_are_wider_than_forty():
    def width(n):
        found = ratio_interval(np.arange(n) % 2.0, np.ones(n), resample(n), 0.95)
        return found.high - found.low

    assert width(4) > 2.5 * width(40)
    assert expanded_alpha(4, 0.95) < expanded_alpha(40, 0.95) < 0.025


def test_no_failure_in_200_is_not_zero():
    found = proportion_interval(np.full(4, 50.0), np.full(4, 50.0), resample(4), 0.95)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 - 0.015, abs=2e-4)
    none = proportion_interval(np.zeros(4), np.full(4, 50.0), resample(4), 0.95)
    assert none.high == pytest.approx(0.015, abs=2e-4)


def test_quantiles_of_known_data():
    values, owners = np.arange(1.0, 101.0), np.arange(100, dtype=np.intp) // 10
    median, p99 = quantile_intervals(values, owners, (0.5, 0.99), resample(10), 0.95)
    assert (median.value, p99.value) == (50.0, 99.0)
    assert median.low < 50.0 < median.high
    assert p99.high == 100.0


def test_quantile_intervals_cover():
    rng = np.random.default_rng(5)
    owners, draws, hits = np.repeat(np.arange(20), 20), resample(20, count=500), 0
    for _ in range(60):
        values = (rng.standard_normal((20, 1)) + rng.standard_normal((20, 20))).reshape(-1)
        (median,) = quantile_intervals(values, owners, (0.5,), draws, 0.95)
        hits += median.low <= 0.0 <= median.high
    assert hits >= 51


def skewed(count=30, seed=0):
    return np.exp(0.7 * np.random.default_rng(seed).standard_normal(count))


def test_bca_is_that_of_scipy():
    """Both draw 4,000 sets of their own: an end is off by a few standard errors of a quantile.

    Of the 2.5% quantile that is sqrt(.025 * .975 / 4000) in probability, 4% of a deviation; three
    of them, both sides, are a tenth of the half-width.
    """
    x = skewed()
    theirs = bootstrap(
        (x,), np.mean, n_resamples=4000, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    found = bootstrap_ratio(x, np.ones(30), resample(30))
    level = next(v for v in np.linspace(0.9, 0.96, 601) if expanded_alpha(30, v) <= 0.025)
    ours = found.interval(float(level))
    half = (theirs.high - theirs.low) / 2
    assert (ours.low, ours.high) == pytest.approx(theirs, abs=0.1 * half)


@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_the_p_value_of_an_end_is_the_error_beyond_it(level):
    found = bootstrap_ratio(skewed(), np.ones(30), resample(30))
    ends = found.interval(level)
    # An end falls between two of 4,000 draws; BCa's correction leaves 95% 28 on the upper side.
    assert found.chance_under(ends.low) == pytest.approx((1 - level) / 2, rel=0.05)
    assert found.chance_under(ends.high) == pytest.approx((1 + level) / 2, rel=0.002)


def test_p_values_fall_without_steps_far_into_the_tail():
    found = bootstrap_ratio(skewed(), np.ones(30), resample(30))
    low = found.interval(0.999).low
    chances = [found.chance_under(bound) for bound in np.linspace(low, low - 3, 200)]
    assert all(a > b for a, b in itertools.pairwise(chances) if b > 1e-12)
    assert chances[-1] < 1e-6
    assert found.chance_under(-1e9) < 1e-12
    assert found.chance_under(1e9) > 1 - 1e-12


def test_five_documents_of_any_skew_can_lie_far_over_a_bound():
    """BCa's inverse ends at one over the acceleration: nine deviates here, an error of .002."""
    for x in ([1.0, 1.0, 1.0, 1.0, 0.9], [1.0, 1.0, 1.0, 1.0, 1.1]):
        found = bootstrap_ratio(np.array(x), np.ones(5), resample(5))
        assert abs(found.acceleration) > 0.1
        assert found.chance_under(-1.0) < 1e-4
        assert found.chance_under(3.0) > 1 - 1e-4
        chances = [found.chance_under(bound) for bound in np.linspace(-1.0, 3.0, 400)]
        assert all(a <= b for a, b in itertools.pairwise(chances))


def test_what_does_not_vary_is_certain_of_itself_alone():
    found = bootstrap_ratio(np.full(5, 2.0), np.ones(5), resample(5))
    assert (found.chance_under(1.9), found.chance_under(2.0)) == (0.0, 1.0)
