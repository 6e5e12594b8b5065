"""What searches for channel factors share."""

import numpy as np
import pytest

from fewbit.formats.registry import decode, encode, parse_format
from fewbit.methods.scaling import (
    LARGEST_FACTOR,
    channel_largest,
    channel_means,
    floored_logarithms,
    output_error,
    rounded,
    sound_factors,
)
from fewbit.methods.statistics import InputStatistics


def statistics_of(x, gram=True):
    return InputStatistics(
        count=len(x),
        squares=np.square(x, dtype=np.float64).sum(axis=0),
        largest=np.abs(x).max(axis=0),
        absolute=np.abs(x).sum(axis=0, dtype=np.float64),
        gram=x.T @ x if gram else None,
    )


def test_output_error_is_the_mean_over_rows_of_the_squared_change():
    random = np.random.default_rng(0)
    x = random.standard_normal((50, 24)).astype(np.float32) * np.arange(1, 25, dtype=np.float32)
    difference = random.standard_normal((7, 24)).astype(np.float32)
    outputs = x.astype(np.float64) @ difference.T.astype(np.float64)
    exact = np.square(outputs).sum() / 50
    # Two chains of 24 and 50 products in float32, each of at most n * 2^-24 of the magnitudes.
    assert output_error(difference, statistics_of(x)) == pytest.approx(exact, rel=74 * 2.0**-22)


def test_without_a_gram_matrix_inputs_count_as_uncorrelated():
    x = np.diag([1.0, 2.0, 3.0]).astype(np.float32)
    difference = np.float32([[1, -1, 2]])
    with_gram, without = (output_error(difference, statistics_of(x, g)) for g in (True, False))
    assert without == with_gram == (1 + 4 + 36) / 3


def test_factors_have_geometric_mean_one_and_bounds():
    factors = sound_factors(np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(factors, np.exp([-1.0, 0.0, 1.0]), rtol=2.0**-23)
    assert sound_factors(np.array([-99.0, 99.0])).tolist() == [
        pytest.approx(1 / LARGEST_FACTOR),
        pytest.approx(LARGEST_FACTOR),
    ]


def test_a_channel_without_activations_has_a_floor():
    found = floored_logarithms(np.array([0.0, 2.0]))
    np.testing.assert_allclose(np.exp(found), [1e-4, 2.0])
    assert floored_logarithms(np.zeros(3)).tolist() == [0, 0, 0]


def test_repeated_channels_are_taken_together():
    channel_of = np.array([0, 1, 0, 1, 2, 3, 2, 3])
    values = np.array([1.0, 2, 3, 4, 5, 6, 7, 8])
    assert channel_means(values, channel_of).tolist() == [2, 3, 6, 7]
    assert channel_largest(values, channel_of).tolist() == [3, 4, 7, 8]


@pytest.mark.parametrize("name", ["int4-g32", "int3-g64-asym", "int8-row", "q4_0"])
def test_rounded_is_what_decoding_gives(name):
    form = parse_format(name)
    weight = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    np.testing.assert_array_equal(rounded(weight, form), decode(encode(weight, form)))
