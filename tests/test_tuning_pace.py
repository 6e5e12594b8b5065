"""The factor of the rates against the error that quantization makes."""

import numpy as np
import pytest
from test_tuning_matrix import floats

from fewbit.formats.grid import fit, join, nearest
from fewbit.formats.registry import decode, parse_format
from fewbit.tune.matrix import GridMatrix
from fewbit.tune.pace import pace, squared_error

pytestmark = pytest.mark.interop

WEIGHT = floats(64, 512) * 0.1


def quantized(name):
    form = parse_format(name)
    grid = fit(WEIGHT, form)
    return join(nearest(WEIGHT, grid), grid)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k", "int4-g32-asym"])
def test_the_grid_alone_tells_the_error(name):
    tensor = quantized(name)
    true = np.mean((decode(tensor) - WEIGHT) ** 2) / np.mean(WEIGHT**2)
    # Searched scales fit their own values better than even odds: up to a third in the square, which
    # is a sixth in a rate.
    assert squared_error(GridMatrix(tensor)) == pytest.approx(true, rel=0.4)


def test_a_bit_more_halves_the_pace_and_exact_weights_count():
    four, five = (GridMatrix(quantized(name)) for name in ("q4_0", "q5_0"))
    assert pace([four], 0) == pytest.approx(1.0, abs=0.2)
    assert pace([five], 0) == pytest.approx(pace([four], 0) / 2, rel=0.1)
    mixed = pace([four, five], 0)
    assert pace([five], 0) < mixed < pace([four], 0)
    assert pace([four], 3 * WEIGHT.size) == pytest.approx(pace([four], 0) / 2)


def test_nothing_on_a_grid_leaves_the_rates_as_they_are():
    assert pace([], 0) == 1.0
