"""Half-quadratic quantization: lower in the norm it minimizes, and equal to a slow float64 twin."""

import numpy as np
import pytest

from fewbit.errors import NumericalError, UnsupportedError
from fewbit.formats.grid import fit, join, nearest, split, values
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.methods.hqq import HalfQuadratic, half_quadratic, norm_errors

FORMATS = ["int4-g32-asym", "int3-g64-asym", "int2-g32-asym", "int4-row-asym", "q4_1", "q5_1"]


def weights(rows: int = 16, columns: int = 256, seed: int = 0) -> np.ndarray:
    """Heavy tails, as weights have."""
    return np.random.default_rng(seed).standard_t(4, (rows, columns)).astype(np.float32)


def norm(weight: np.ndarray, decoded: np.ndarray, p: float = 0.7) -> float:
    return float((np.abs(decoded.astype(np.float64) - weight) ** p).sum())


@pytest.mark.parametrize("form", [*FORMATS, "int4-g32", "q4_0", "q4_k", "iq4_nl"])
def test_the_norm_is_lower_than_that_of_rounding_to_nearest(form):
    weight, form = weights(), parse_format(form)
    found = norm(weight, decode(half_quadratic(weight, form)))
    assert found < norm(weight, decode(encode(weight, form)))


@pytest.mark.parametrize("form", FORMATS)
def test_the_norm_is_lower_than_that_of_least_squares(form):
    weight, form = weights(seed=1), parse_format(form)
    grid = fit(weight, form)
    squares = values(nearest(weight, grid), grid)
    found = decode(half_quadratic(weight, form))
    assert norm(weight, found) < norm(weight, squares)
    # Negative control: the squared error, which it does not minimize, is not lower.
    assert np.square(found - weight).sum() > np.square(squares - weight).sum()


def test_no_group_is_worse_than_rounded_to_nearest():
    weight, form = weights(seed=2), parse_format("int4-g32-asym")
    found = norm_errors(weight, decode(half_quadratic(weight, form)), 32, 0.7)
    plain = norm_errors(weight, decode(encode(weight, form)), 32, 0.7)
    assert (found <= plain * (1 + 1e-6)).all()


def slow_half_quadratic(x: np.ndarray, scale: float, zero: int, settings: HalfQuadratic) -> float:
    """One group of int4 with a zero point in float64, from a start: the least norm met."""
    beta, best = settings.beta, np.inf
    for _ in range(settings.rounds + 1):
        codes = np.clip(np.rint(x / scale) + zero, 0, 15)
        error = x - scale * (codes - zero)
        best = min(best, float((np.abs(error) ** settings.p).sum()))
        units = error / scale
        shrunk = [
            np.sign(u) * max(abs(u) - abs(u) ** (settings.p - 1) / beta, 0) if u else 0.0
            for u in units
        ]
        target = x - np.array(shrunk) * scale
        spread = codes - codes.mean()
        scale = float((spread * (target - target.mean())).sum() / (spread**2).sum())
        offset = target.mean() - scale * codes.mean()
        zero = int(np.clip(np.rint(-offset / scale), 0, 15))
        lifted = codes - zero
        scale = float(np.float16((lifted * target).sum() / (lifted**2).sum()))
        beta *= settings.growth
    return best


def test_it_follows_a_slow_twin_in_float64():
    weight, form = weights(8, 64, seed=3), parse_format("int4-g32-asym")
    settings = HalfQuadratic()
    grid = fit(weight, form)
    assert grid.offset_steps is not None
    slow = 0.0
    for row in range(8):
        for group in range(2):
            x = weight[row, 32 * group : 32 * group + 32].astype(np.float64)
            scale, zero = float(grid.scale[row, group]), int(grid.offset_steps[row, group])
            slow += slow_half_quadratic(x, scale, zero, settings)
    # float32 may round a code or a zero point the other way in a group here and there; that the
    # start alone is past this bound shows that it means something.
    assert norm(weight, decode(half_quadratic(weight, form))) <= 1.005 * slow
    assert norm(weight, values(nearest(weight, grid), grid)) > 1.005 * slow


def test_other_constants_give_another_result():
    weight, form = weights(seed=4), parse_format("int3-g64-asym")
    plain = half_quadratic(weight, form)
    assert not np.array_equal(plain.codes, half_quadratic(weight, form, HalfQuadratic(p=0.4)).codes)


def test_zeros_stay_zeros_and_the_weight_its_bits():
    weight = weights(4, 64, seed=5)
    weight[1] = 0
    before = weight.tobytes()
    for form in ("int4-g32-asym", "q4_1", "int4-g32"):
        decoded = decode(half_quadratic(weight, parse_format(form)))
        assert np.isfinite(decoded).all()
        assert not decoded[1].any()
    assert weight.tobytes() == before


@pytest.mark.parametrize("form", ["int4-g32-asym", "q4_1", "int4-g32", "q4_0"])
@pytest.mark.parametrize("scale", [1e-40, 1e-7, 1e3])
def test_any_magnitude_is_finite(form, scale):
    weight = (weights(4, 64, seed=6) * scale).astype(np.float32)
    assert np.isfinite(decode(half_quadratic(weight, parse_format(form)))).all()


def test_values_that_are_not_finite_and_formats_without_a_grid_are_refused():
    weight = weights(2, 64)
    with pytest.raises(UnsupportedError, match="has no grid"):
        half_quadratic(weight, parse_format("int8-tensor"))
    weight[1, 2] = np.inf
    with pytest.raises(NumericalError, match="row 1, column 2"):
        half_quadratic(weight, parse_format("int4-g32-asym"))


def test_rows_do_not_depend_on_each_other():
    weight, form = weights(9, 256, seed=7), parse_format("int4-g32-asym")
    whole, _ = split(half_quadratic(weight, form))
    alone, _ = split(half_quadratic(weight[4:5], form))
    assert np.array_equal(whole[4:5], alone)


def test_what_comes_out_is_what_was_compared():
    weight, form = weights(seed=8), parse_format("q4_1")
    tensor = half_quadratic(weight, form)
    codes, grid = split(tensor)
    assert np.array_equal(join(nearest(weight, grid), grid).codes, tensor.codes)
    assert np.array_equal(values(codes, grid), decode(tensor))
