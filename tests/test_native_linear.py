"""A linear layer alone gives what its kernel gives, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from fewbit import _native
from fewbit.errors import KernelError
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.runtime import native_linear
from fewbit.runtime.chooser import choose_isa
from fewbit.runtime.native import thread_pool
from fewbit.runtime.native_linear import NativeLinear
from fewbit.runtime.pack import pack

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((50, 96)).astype(np.float32)
X = RNG.standard_normal((37, 96)).astype(np.float32)


@pytest.fixture(scope="module")
def pool():
    return thread_pool(2)


@pytest.mark.parametrize("rounding", ["int8-g32", "int8-token", "bf16"])
@pytest.mark.parametrize("form", ["int4-g32-asym", "int8-row", "q4_0"])
def test_rows_are_those_of_the_kernel(pool, form, rounding):
    tensor = encode(WEIGHT, parse_format(form))
    layer = NativeLinear(tensor, rounding, pool)
    assert layer.kernel.activations == rounding
    packed, isa = pack(tensor), choose_isa()
    if rounding == "bf16":
        expected = _native.multiply_weight_only(packed, X, None, isa)
    else:
        expected = _native.multiply(packed, X, None, isa, activations=rounding)
    np.testing.assert_array_equal(layer(X), expected)


def test_float8_multiplies_inputs_as_they_are(pool):
    """Sums of 96 float32 products differ by their order: 96 roundings of the absolute sum."""
    tensor = encode(WEIGHT, parse_format("fp8_e4m3-row"))
    exact = X.astype(np.float64) @ decode(tensor).astype(np.float64).T
    most = 96 * np.finfo(np.float32).eps * (np.abs(X) @ np.abs(decode(tensor)).T)
    assert (np.abs(NativeLinear(tensor, None, pool)(X) - exact) <= most).all()


def test_rows_do_not_depend_on_their_number(pool, monkeypatch):
    layer = NativeLinear(encode(WEIGHT, parse_format("int4-g32-asym")), "bf16", pool)
    whole = layer(X)
    np.testing.assert_array_equal(np.concatenate([layer(row[None]) for row in X]), whole)
    monkeypatch.setattr(native_linear, "_STEP_ROWS", 10)
    np.testing.assert_array_equal(layer(X), whole)
    assert layer(X[:0]).shape == (0, 50)


def test_what_no_kernel_reads_is_refused(pool):
    with pytest.raises(KernelError, match="not a multiple of 32"):
        NativeLinear(encode(WEIGHT[:, :40], parse_format("int8-row")), None, pool)
