"""Tango's paired difference against its likelihood, its coverage, and clusters that tell less."""

import math

import numpy as np
import pytest

from fewbit.evaluate.gating.proportions import PairedCounts, design_effect, mcnemar, paired_counts

Z = 1.959963984540054


def likeliest_chance(n, b, c, d):
    """The slow truth of q: the likelihood's maximum on a fine grid, refined three times."""
    low, high = max(0.0, -d), (1.0 - d) / 2
    for _ in range(4):
        q = np.linspace(low, high, 2001)
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = [
                np.where(count == 0, 0.0, count * np.log(np.maximum(p, 0.0)))
                for count, p in ((b, q + d), (c, q), (n - b - c, 1 - 2 * q - d))
            ]
        at = int(np.argmax(sum(terms)))
        low, high = q[max(at - 1, 0)], q[min(at + 1, 2000)]
    return q[at]


@pytest.mark.parametrize("counts", [(200, 0, 0), (44, 1, 0), (50, 12, 2), (30, 3, 9), (20, 20, 0)])
@pytest.mark.parametrize("d", [-0.3, -0.02, 0.0, 0.01, 0.05, 0.4])
def test_the_score_is_tangos(counts, d):
    n, b, c = counts
    variance = n * (2 * likeliest_chance(n, b, c, d) + d * (1 - d))
    found = PairedCounts(n, b, c).deviate(d)
    if variance < 1e-6:
        assert found == 0.0 or math.isinf(found)
    else:
        # The grid's last step is (1 / 2000)^4 of the range; the score is smooth in q.
        assert found == pytest.approx((n * d - b + c) / math.sqrt(variance), rel=1e-4, abs=1e-6)


def test_no_difference_in_200_is_bounded_by_the_closed_form():
    found = PairedCounts(200, 0, 0).interval(0.95)
    assert found.value == 0.0
    assert found.high == pytest.approx(Z**2 / (200 + Z**2), rel=1e-9)
    assert found.low == pytest.approx(-found.high, rel=1e-9)


@pytest.mark.parametrize(("n", "b", "c"), [(40, 3, 1), (200, 14, 9), (12, 12, 0), (12, 0, 12)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.999])
def test_interval_and_p_value_agree(n, b, c, level):
    counts = PairedCounts(n, b, c)
    found = counts.interval(level)
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    if found.low > -1.0 and b > 0:
        assert counts.chance_under(found.low) == pytest.approx((1 - level) / 2, rel=1e-5)
    if found.high < 1.0 and c > 0:
        assert counts.chance_under(found.high) == pytest.approx((1 + level) / 2, rel=1e-5)


def test_sides_are_symmetric():
    one, other = PairedCounts(60, 9, 2).interval(0.95), PairedCounts(60, 2, 9).interval(0.95)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)


def test_independent_items_count_whole():
    found = paired_counts(np.array([1.0, 0, 0, -1, 1, 0]), np.arange(6))
    assert found == PairedCounts(6, 2, 1)


def test_a_cluster_of_equal_items_counts_as_one():
    d = np.repeat([1.0, 0, 0, 0, -1, 0, 0, 0], 5)
    found = paired_counts(d, np.repeat(np.arange(8), 5))
    assert (found.items, found.first_alone, found.second_alone) == pytest.approx((8, 1, 1))
    assert found.degrees == 7


def test_without_differences_a_cluster_counts_as_one():
    found = paired_counts(np.zeros(200), np.arange(200) // 10)
    assert found.items == pytest.approx(20)
    assert found.interval(0.95).high > 0.1


def test_the_design_effect_of_independent_items_is_about_one():
    rng = np.random.default_rng(0)
    d = (rng.random(4000) < 0.3).astype(float) - (rng.random(4000) < 0.3)
    assert 1.0 <= design_effect(d, np.arange(4000) // 10) < 1.25


def covered(counts, truth):
    found = counts.interval(0.95)
    return found.low <= truth <= found.high


def test_it_covers_where_a_plain_normal_interval_does_not():
    """60 items, rates .01 and .06: 95.6% with 4,000 trials; b - c +- 1.96 sd only 92.2%.

    The negative control: 1,000 trials have a standard error of .7%, the bars are two apart.
    """
    rng = np.random.default_rng(3)
    hits = {"tango": 0, "normal": 0}
    for b, c, _ in rng.multinomial(60, [0.06, 0.01, 0.93], 1000):
        hits["tango"] += covered(PairedCounts(60, b, c), 0.05)
        value, spread = (b - c) / 60, math.sqrt(max(b + c - (b - c) ** 2 / 60, 0)) / 60
        hits["normal"] += abs(value - 0.05) <= Z * spread
    assert hits["tango"] >= 940
    assert hits["normal"] < 935


@pytest.mark.parametrize(
    ("b", "c", "p"), [(0, 0, 1.0), (5, 0, 2 / 32), (0, 5, 2 / 32), (3, 3, 1.0), (6, 1, 16 / 128)]
)
def test_mcnemar_counts_coins(b, c, p):
    assert mcnemar(b, c) == pytest.approx(p)
