"""AWQ's search: its objective against outputs computed row by row, and what it must not do."""

import numpy as np
import pytest
from test_scaling import statistics_of

from fewbit.formats.registry import decode, encode, parse_format
from fewbit.methods import awq
from fewbit.methods.awq import search_awq
from fewbit.methods.scaling import Consumer

INT4 = parse_format("int4-g32")
PLAIN = np.arange(64)


def layer(seed=0, rows=96, inputs=64, spread=2.0):
    """Return a weight and inputs whose channels differ in size and are correlated."""
    random = np.random.default_rng(seed)
    weight = random.standard_normal((rows, inputs)).astype(np.float32)
    mixing = np.eye(inputs) + 0.2 * random.standard_normal((inputs, inputs)) / np.sqrt(inputs)
    sizes = np.exp(spread * random.standard_normal(inputs))
    x = random.standard_normal((256, inputs)) @ mixing * sizes
    return weight, x.astype(np.float32)


def error_by_rows(weights, x, factors, channel_of, form=INT4):
    """Run rows through the scaled, rounded matrices: mean over rows of the squared change."""
    spread = factors[channel_of].astype(np.float64)
    total = 0.0
    for weight in weights:
        scaled = (weight * factors[channel_of]).astype(np.float32)
        stored = decode(encode(scaled, form)).astype(np.float64)
        for row in x.astype(np.float64):
            total += np.square((row / spread) @ stored.T - row @ weight.T.astype(np.float64)).sum()
    return total / len(x)


def consumers(*weights, form=INT4):
    return [Consumer(weight, form) for weight in weights]


def test_the_objective_is_the_error_of_the_outputs():
    weight, x = layer()
    other = layer(seed=3)[0]
    found = search_awq(consumers(weight, other), statistics_of(x), PLAIN)
    ones = np.ones(64, np.float32)
    # float32: 64 products a chain, twice, of differences with 2^-24 of the weight (steps are 1/8).
    assert found.before == pytest.approx(error_by_rows([weight, other], x, ones, PLAIN), rel=1e-4)
    after = error_by_rows([weight, other], x, found.factors, PLAIN)
    assert found.after == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize("form", ["int4-g32", "int3-g64-asym", "int4-row", "q4_0"])
def test_large_inputs_are_protected(form):
    weight, x = layer()
    found = search_awq(consumers(weight, form=parse_format(form)), statistics_of(x), PLAIN)
    assert found.after < 0.8 * found.before
    assert found.changes
    sizes = np.log(np.abs(x).mean(axis=0))
    assert np.corrcoef(sizes, np.log(found.factors))[0, 1] > 0.5


def test_factors_turned_upside_down_are_worse_than_none():
    """The planted bug: columns divided where they should be multiplied."""
    weight, x = layer()
    found = search_awq(consumers(weight), statistics_of(x), PLAIN)
    assert error_by_rows([weight], x, 1 / found.factors, PLAIN) > found.before


@pytest.mark.parametrize("seed", range(5))
def test_never_worse_than_no_scaling(seed):
    weight, x = layer(seed, spread=0.0)
    found = search_awq(consumers(weight), statistics_of(x), PLAIN)
    assert found.after <= found.before
    if not found.changes:
        assert found.factors.tolist() == [1] * 64


def test_a_search_that_misleads_on_its_sample_is_not_taken(monkeypatch):
    """All rows but the sampled ones would suffer."""
    weight, x = layer()
    monkeypatch.setattr(awq, "SEARCH_ROWS", 2)
    monkeypatch.setattr(awq._Search, "best", lambda search: (0.0, 4.0))
    found = search_awq(consumers(weight), statistics_of(x), PLAIN)
    assert not found.changes
    assert found.after == found.before


def test_repeated_inputs_share_a_factor():
    channel_of = np.repeat(np.arange(32).reshape(2, 16), 2, axis=0).reshape(-1)
    weight, x = layer()
    found = search_awq(consumers(weight), statistics_of(x), channel_of)
    assert found.factors.shape == (32,)
    assert found.after == pytest.approx(
        error_by_rows([weight], x, found.factors, channel_of), rel=1e-4
    )


def test_kept_matrices_do_not_count():
    weight, x = layer()
    kept = Consumer(layer(seed=9)[0] * 100, None)
    alone = search_awq(consumers(weight), statistics_of(x), PLAIN)
    found = search_awq([*consumers(weight), kept], statistics_of(x), PLAIN)
    np.testing.assert_array_equal(found.factors, alone.factors)


def test_columns_never_activated_are_left_sound():
    weight, x = layer()
    x[:, 5] = 0
    found = search_awq(consumers(weight), statistics_of(x), PLAIN)
    assert np.isfinite(found.factors).all()
    assert (found.factors > 0).all()
