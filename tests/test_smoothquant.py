"""SmoothQuant's search: outlier channels of activations move into the weights."""

import numpy as np
import pytest

from fewbit.formats.registry import decode, encode, parse_format
from fewbit.methods.scaling import Consumer
from fewbit.methods.smoothquant import int8_per_token, search_smoothquant

INT8 = parse_format("int8-row")
PLAIN = np.arange(64)


def layer(outliers=(3, 40), size=60.0, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((200, 64)).astype(np.float32)
    x[:, list(outliers)] *= size
    return random.standard_normal((48, 64)).astype(np.float32), x


def error_by_rows(weight, x, factors):
    """Round row by row, element by element."""
    stored = decode(encode(weight * factors, INT8)).astype(np.float64)
    total = 0.0
    for row in (x / factors)[np.abs(x).max(axis=1) > 0]:
        step = np.float32(np.abs(row).max() / np.float32(127))
        codes = [float(np.rint(np.float32(value) / step)) for value in row]
        given = np.array(codes) * float(step)
        wanted = (row.astype(np.float64) * factors) @ weight.T.astype(np.float64)
        energy = np.square(wanted).sum()
        total += np.square(stored @ given - wanted).sum() / energy
    return total / len(x)


def test_tokens_are_rounded_within_half_a_step():
    x = layer()[1]
    x[7] = 0
    found = int8_per_token(x)
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    # Half a step, and the roundings of the quotient (127 * 2^-24 of a step) and the product.
    assert (np.abs(found - x) <= step * (0.5 + 2.0**-15)).all()
    assert (found[7] == 0).all()
    assert len(np.unique(np.rint(found[0] / step[0]))) <= 255


def test_the_objective_is_the_error_of_outputs_with_both_sides_rounded():
    weight, x = layer()
    found = search_smoothquant([Consumer(weight, INT8)], x, PLAIN)
    assert found.before == pytest.approx(
        error_by_rows(weight, x, np.ones(64, np.float32)), rel=1e-3
    )
    assert found.after == pytest.approx(error_by_rows(weight, x, found.factors), rel=1e-3)


def test_outlier_channels_are_divided():
    weight, x = layer()
    found = search_smoothquant([Consumer(weight, INT8)], x, PLAIN)
    assert found.after < 0.2 * found.before
    assert set(np.argsort(found.factors)[-2:]) == {3, 40}
    assert found.detail.startswith("alpha ")


def test_a_scaling_of_the_weights_alone_is_not_enough():
    """The planted bug: alpha = 0 equalizes the weights and leaves the outliers where they are."""
    weight, x = layer()
    found = search_smoothquant([Consumer(weight, INT8)], x, PLAIN)
    columns = np.abs(weight).max(axis=0)
    assert error_by_rows(weight, x, (columns.mean() / columns).astype(np.float32)) > 4 * found.after


def test_a_row_a_thousand_times_as_large_does_not_choose_for_all():
    """As the first token of a text inside the MLP; rows without output count for nothing."""
    weight, x = layer()
    one = np.zeros((1, 64), np.float32)
    one[0, 9] = 1000 * np.abs(x).max()
    rows = np.concatenate([x, one, np.zeros_like(one)])
    found = search_smoothquant([Consumer(weight, INT8)], rows, PLAIN)
    among = search_smoothquant([Consumer(weight, INT8)], x, PLAIN)
    assert error_by_rows(weight, x, found.factors) < 2 * among.after
    assert found.after == pytest.approx(error_by_rows(weight, rows, found.factors), rel=1e-3)


def test_even_channels_are_left_alone_or_improved():
    weight, x = layer(outliers=())
    found = search_smoothquant([Consumer(weight, INT8)], x, PLAIN)
    assert found.after <= found.before


def test_exact_inputs_take_another_alpha_than_rounded_ones():
    weight, x = layer()
    arguments = [Consumer(weight, INT8)], x, PLAIN
    exact = search_smoothquant(*arguments, round_inputs=lambda rows: rows)
    assert exact.before < 0.2 * search_smoothquant(*arguments).before
