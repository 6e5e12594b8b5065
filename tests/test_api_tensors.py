"""`fewbit.encode` and `fewbit.decode` refuse what is no matrix in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import fewbit
from fewbit.errors import FewbitError, NumericalError, UnsupportedError, UsageError

WEIGHT = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)


def test_a_name_stands_for_its_format():
    by_name = fewbit.encode(WEIGHT, "int4-g32")
    by_format = fewbit.encode(WEIGHT.tolist(), fewbit.parse_format("int4-g32"))
    np.testing.assert_array_equal(fewbit.decode(by_name), fewbit.decode(by_format))
    assert np.abs(fewbit.decode(by_name) - WEIGHT).max() <= by_name.scales.max() / 2 + 1e-6


@pytest.mark.parametrize(
    ("x", "form", "error", "words"),
    [
        ("abc", "int4-g32", UsageError, "no matrix of numbers"),
        ([[1, 2], [3]], "int4-g32", UsageError, "no matrix of numbers"),
        (None, "int4-g32", FewbitError, "shape|numbers"),
        (WEIGHT[0], "int4-g32", UsageError, r"shape \(64,\)"),
        (WEIGHT[:0], "int4-g32", UsageError, r"shape \(0, 64\)"),
        (WEIGHT[:, :40], "int4-g32", UsageError, "40 columns"),
        (WEIGHT, "int9-g32", FewbitError, "9"),
        (WEIGHT, "nonsense", UnsupportedError, "nonsense"),
        (WEIGHT, 4, UsageError, "type int"),
        (WEIGHT, None, UsageError, "type NoneType"),
        (WEIGHT * np.nan, "int4-g32", NumericalError, "row 0, column 0"),
        (WEIGHT, "q8_1", UnsupportedError, "q8_1"),
    ],
)
def test_what_cannot_be_encoded(x, form, error, words):
    with pytest.raises(error, match=words):
        fewbit.encode(x, form)


def test_what_cannot_be_decoded_or_named():
    with pytest.raises(UsageError, match="type ndarray"):
        fewbit.decode(WEIGHT)
    for name in (4, None, b"int4-g32"):
        with pytest.raises(UsageError, match="format's name"):
            fewbit.parse_format(name)
