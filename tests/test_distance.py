import numpy as np
import pytest

from fewbit.formats.distance import pieces, relative_error
from fewbit.formats.registry import decode, encode, parse_format


def coded(values, form="f32"):
    return encode(values.astype(np.float32), parse_format(form))


def test_it_is_the_ratio_of_frobenius_norms_whatever_the_pieces():
    random = np.random.default_rng(0)
    source = coded(random.standard_normal((700, 512)))
    found = coded(decode(source), "int4-g32")
    wide = decode(source).astype(np.float64)
    expected = np.linalg.norm(wide - decode(found)) / np.linalg.norm(wide)
    assert len(pieces(source.shape)) > 1
    # Sums of 358,400 squares in float64: within 358,400 * 2^-53 of one another, relatively.
    assert relative_error(source, found) == pytest.approx(expected, rel=1e-10)


def test_zeros_that_stay_zeros_have_no_error_and_others_have():
    zeros, ones = np.zeros((2, 32)), np.ones((2, 32))
    assert relative_error(coded(zeros), coded(zeros, "int8-g32")) == 0
    assert relative_error(coded(zeros), coded(ones)) == 8


def test_pieces_cover_every_row_once():
    assert [row for piece in pieces((7, 4), 8) for row in range(piece.start, piece.stop)] == [
        *range(7)
    ]
    assert pieces((2, 100), 8) == [slice(0, 1), slice(1, 2)]
