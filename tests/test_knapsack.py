"""Choosing options under a budget, against every choice there is."""

import itertools

import numpy as np
import pytest

from fewbit.quantization.knapsack import Option, choose_options


def make_cases():
    rng = np.random.default_rng(0)
    for case in range(60):
        unit = [1, 7, 6912][case % 3]
        items = [
            [
                Option(int(rng.integers(0, 30)) * unit, float(rng.exponential()))
                for _ in range(rng.integers(1, 5))
            ]
            for _ in range(rng.integers(1, 6))
        ]
        least = sum(min(o.bytes for o in options) for options in items)
        most = sum(max(o.bytes for o in options) for options in items)
        yield items, int(rng.integers(least, most + unit + 1))


CASES = list(make_cases())


def totals(items, choice):
    taken = [options[i] for options, i in zip(items, choice, strict=True)]
    return sum(o.bytes for o in taken), sum(o.cost for o in taken)


def every_choice(items):
    return itertools.product(*(range(len(options)) for options in items))


def optimum(items, budget):
    found = (totals(items, choice) for choice in every_choice(items))
    return min(cost for size, cost in found if size <= budget)


@pytest.mark.parametrize(("items", "budget"), CASES)
def test_the_choice_is_the_best_of_all_that_fit(items, budget):
    size, cost = totals(items, choose_options(items, budget))
    assert size <= budget
    assert cost == pytest.approx(optimum(items, budget), rel=1e-12)


@pytest.mark.parametrize(("items", "budget"), CASES)
def test_larger_units_never_pass_the_budget_and_lose_what_is_said(items, budget):
    """With u units of b bytes the choice is at least that of a budget less `items` times b."""
    most_units = 20
    size, cost = totals(items, choose_options(items, budget, most_units))
    assert size <= budget
    least = sum(min(o.bytes for o in options) for options in items)
    unit = -(-(budget - least) // most_units)
    smaller = budget - (len(items) + 1) * unit
    if smaller >= least:
        assert cost <= optimum(items, smaller) + 1e-12


def test_a_choice_that_ignores_the_size_would_be_caught():
    """The negative control: the cheapest options of all pass some budget and beat the optimum."""
    caught = 0
    for items, budget in CASES:
        cheapest = [min(range(len(o)), key=lambda i: o[i].cost) for o in items]
        size, cost = totals(items, cheapest)
        caught += size > budget and cost < optimum(items, budget)
    assert caught > 20


def test_what_cannot_fit_is_none():
    assert choose_options([[Option(10, 1.0)], [Option(5, 0.0), Option(6, 0.0)]], 14) is None
    assert choose_options([[Option(10, 1.0)]], 10) == (0,)
    assert choose_options([], 0) == ()


def test_a_model_of_many_matrices_takes_little_time():
    rng = np.random.default_rng(1)
    items = [
        [Option(2 * 3456 * b, float(c)) for b, c in zip((18, 20, 22, 24, 34), row, strict=True)]
        for row in np.sort(rng.exponential(size=(211, 5)), axis=1)[:, ::-1]
    ]
    budget = 211 * 2 * 3456 * 21
    size, _ = totals(items, choose_options(items, budget))
    assert budget - 2 * 2 * 3456 < size <= budget
