"""Hadamard matrices of the sizes that models have."""

import numpy as np
import pytest

from fewbit.errors import UnsupportedError
from fewbit.methods.rotation import hadamard, randomized


@pytest.mark.parametrize("size", [1, 2, 4, 12, 20, 28, 36, 48, 64, 128, 576, 640, 896, 1536, 2048])
def test_elements_have_one_size_and_rows_are_orthogonal(size):
    matrix = hadamard(size)
    # Two factors, each of a root and a quotient, and their product: five roundings, and two of
    # what is expected.
    np.testing.assert_allclose(np.abs(matrix), 1 / np.sqrt(size), rtol=7 * 2.0**-53, atol=0)
    # Sums of `size` products of 1/size, each rounded: size * 2^-53 * 1/size * size at the most.
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), rtol=0, atol=size * 2.0**-52)


@pytest.mark.parametrize("size", [3, 6, 7, 9, 22, 35])
def test_sizes_without_one_are_refused(size):
    with pytest.raises(UnsupportedError, match=f"of size {size}"):
        hadamard(size)


def test_signs_are_those_of_the_seed():
    matrix = hadamard(16)
    one, same, other = (randomized(matrix, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    np.testing.assert_allclose(one @ one.T, np.eye(16), rtol=0, atol=2.0**-50)
