"""Scales searched for with the inputs' mean squares as importance."""

import numpy as np
import pytest

from fewbit.errors import NumericalError, UsageError
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.methods.scale_search import importance_of, search_scales
from fewbit.methods.solvers import METHODS
from fewbit.methods.statistics import InputStatistics

FORMATS = ["q4_0", "q4_1", "q5_0", "q8_0", "q2_k", "q4_k", "q6_k", "iq4_xs", "int4-g32", "int3-row"]


def statistics(columns: int = 256, count: int = 1000, seed: int = 0) -> InputStatistics:
    inputs = np.random.default_rng(seed).standard_normal((64, columns))
    inputs *= np.exp(np.random.default_rng(seed + 1).standard_normal(columns))
    return InputStatistics(
        count, np.square(inputs).sum(0), np.abs(inputs).max(0).astype("f4"), np.abs(inputs).sum(0)
    )


def weights(columns: int = 256) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((8, columns), np.float32)


def output_error(weight: np.ndarray, decoded: np.ndarray, known: InputStatistics) -> float:
    return float((np.square(decoded - weight, dtype=np.float64) * known.squares).sum())


@pytest.mark.parametrize("name", FORMATS)
def test_the_weighted_error_is_lower_than_rounded_to_nearest(name):
    weight, form, known = weights(), parse_format(name), statistics()
    found = search_scales(weight, known, form)
    plain = decode(encode(weight, form))
    assert not np.array_equal(decode(found.tensor), plain)
    assert output_error(weight, decode(found.tensor), known) < output_error(weight, plain, known)
    assert found.remarks == ()


def test_how_many_rows_were_counted_does_not_matter():
    weight, form, known = weights(), parse_format("q4_0"), statistics()
    doubled = known.plus(known)
    assert np.array_equal(
        search_scales(weight, known, form).tensor.codes,
        search_scales(weight, doubled, form).tensor.codes,
    )


@pytest.mark.parametrize("name", FORMATS)
def test_columns_never_activated_are_rounded_and_remarked_on(name):
    """Cases 8 and 10: zeros in the statistics give neither NaN nor zero weights."""
    weight, form, known = weights(), parse_format(name), statistics()
    known.squares[10:40] = 0
    found = search_scales(weight, known, form)
    decoded = decode(found.tensor)
    assert np.isfinite(decoded).all()
    assert np.abs(decoded[:, 10:40]).mean() > 0.4 * np.abs(weight[:, 10:40]).mean()
    assert found.remarks == ("30 of 256 inputs were never activated and counted least",)


@pytest.mark.parametrize("count", [0, 100])
def test_a_layer_that_was_never_reached_counts_all_columns_alike(count):
    nothing = InputStatistics(count, np.zeros(256), np.zeros(256, "f4"), np.zeros(256))
    assert importance_of(nothing) is None
    found = search_scales(weights(), nothing, parse_format("q4_k"))
    assert np.array_equal(found.tensor.codes, encode(weights(), parse_format("q4_k")).codes)
    assert "never reached" in found.remarks[0]


def test_squares_beyond_float32_are_relative():
    known = statistics()
    huge = InputStatistics(known.count, known.squares * 1e60, known.largest, known.absolute)
    assert np.array_equal(importance_of(huge), importance_of(known))


@pytest.mark.parametrize("name", ["f16", "bf16", "fp8_e4m3-row"])
def test_formats_without_a_choice_are_rounded(name):
    found = search_scales(weights(), statistics(), parse_format(name))
    assert np.array_equal(found.tensor.codes, encode(weights(), parse_format(name)).codes)


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q6_k", "iq4_xs"])
def test_least_squares_of_a_gguf_type_counts_all_weights_alike(name):
    weight, form = weights(), parse_format(name)
    found = decode(METHODS["mse"].solve(weight, None, form).tensor)
    plain = decode(encode(weight, form))
    assert np.square(found - weight).sum() <= np.square(plain - weight).sum()
    known = statistics()
    weighted = decode(search_scales(weight, known, form).tensor)
    assert np.square(found - weight).sum() < np.square(weighted - weight).sum()


@pytest.mark.parametrize("method", ["mse", "hqq", "rtn"])
def test_data_free_methods_round_to_floats(method):
    weight = weights()
    found = METHODS[method].solve(weight, None, parse_format("bf16")).tensor
    assert np.array_equal(found.codes, encode(weight, parse_format("bf16")).codes)


def test_missing_or_broken_statistics_are_refused():
    with pytest.raises(UsageError, match="'imatrix' needs statistics"):
        search_scales(weights(), None, parse_format("q4_0"))
    known = statistics()
    known.squares[3] = np.nan
    with pytest.raises(NumericalError, match="input 3"):
        search_scales(weights(), known, parse_format("q4_0"))
