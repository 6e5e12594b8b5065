"""FP8 e4m3: codes against a table built from the definition, scales, and what is refused."""

import numpy as np
import pytest

from fewbit.errors import NumericalError, UsageError
from fewbit.formats import fp8
from fewbit.formats.registry import FP8, decode, decode_rows, encode, encoded_bytes, parse_format
from fewbit.formats.spec import Fp8Spec, Granularity, QuantTensor

ROW, TENSOR = FP8


def value(code: int) -> float:
    """E4M3 by its definition: the OCP specification's table, one code at a time."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


POSITIVE = np.array([value(code) for code in range(127)])


def nearest(x: float) -> int:
    """The slow encoder: compare with every value; a tie goes to the even code."""
    distances = np.abs(POSITIVE - min(abs(x), 448.0))
    best = np.flatnonzero(distances == distances.min())
    code = int(best[0]) if len(best) == 1 else int(best[best % 2 == 0][0])
    return code | (0x80 if np.signbit(x) else 0)


def test_every_code_has_its_value():
    for code in range(256):
        if code & 0x7F == 0x7F:
            assert np.isnan(fp8.VALUES[code])
        else:
            assert fp8.VALUES[code] == value(code)
            assert np.signbit(fp8.VALUES[code]) == (code >= 128)


def test_every_value_has_its_code():
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    assert np.array_equal(fp8.encode_e4m3(fp8.VALUES[codes]), codes)


def test_codes_are_the_nearest_and_ties_go_to_the_even_one():
    middles = ((POSITIVE[1:] + POSITIVE[:-1]) / 2).astype(np.float32)
    random = np.random.default_rng(1)
    spread = random.normal(0, 1, 500) * 10.0 ** random.uniform(-4, 3, 500)
    beside = np.concatenate([np.nextafter(middles, s) for s in (np.float32(0), np.float32(999))])
    x = np.concatenate([middles, beside, spread, [1e30, 448, 464, 465, 2.0**-10, 2.0**-11, 1e-45]])
    x = np.concatenate([x, -x, [0.0, -0.0]]).astype(np.float32)
    expected = np.array([nearest(float(v)) for v in x], np.uint8)
    assert np.array_equal(fp8.encode_e4m3(x), expected)
    # Rounding half away from zero, the plausible mistake, is told apart by the middles.
    assert not np.array_equal(fp8.encode_e4m3(middles), np.arange(1, 127, dtype=np.uint8))


@pytest.mark.parametrize("spec", FP8, ids=lambda spec: spec.name)
def test_the_error_stays_within_half_a_step(spec):
    x = np.random.default_rng(2).normal(0, 0.02, (16, 200)).astype(np.float32)
    tensor = encode(x, spec)
    assert tensor.scales is not None and tensor.scales.dtype == np.float32
    assert tensor.scales.shape == spec.scale_shape(x.shape)
    absmax = np.abs(x).max(axis=1, keepdims=True) if spec is ROW else np.abs(x).max()
    assert np.array_equal(tensor.scales.ravel(), np.ravel(absmax / np.float32(448)))
    # Half of the last of 4 significant bits, 2^-4 of the value, or half a subnormal step of the
    # scale; the scale and the product round once each, 2^-24 of the value.
    bound = np.maximum(np.abs(x) * 2.0**-4, tensor.scales * 2.0**-10) + np.abs(x) * 2.0**-22
    assert (np.abs(decode(tensor) - x) <= bound).all()
    assert tensor.nbytes == encoded_bytes(spec, tensor.shape)


def test_rows_that_are_zero_or_tiny_are_held():
    x = np.zeros((3, 8), np.float32)
    x[1, 2], x[2] = 1e-44, -5
    tensor = encode(x, ROW)
    assert tensor.scales is not None
    assert tensor.scales[0, 0] == 0
    assert not decode(tensor)[:2].any()  # far below a step of the smallest scale
    assert np.array_equal(decode(tensor)[2], x[2])


def test_rows_decode_alone_as_together():
    x = np.random.default_rng(3).normal(0, 1, (7, 40)).astype(np.float32)
    for spec in FP8:
        tensor = encode(x, spec)
        whole = decode(tensor)
        assert np.array_equal(decode_rows(tensor, np.array([6, 0])), whole[[6, 0]])
        assert np.array_equal(decode_rows(tensor, slice(2, 5)), whole[2:5])
    assert ROW.rows_independent
    assert not TENSOR.rows_independent


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_nan_code_is_refused_with_its_place(code):
    codes = np.zeros((3, 5), np.uint8)
    codes[2, 1] = code
    tensor = QuantTensor(ROW, (3, 5), codes, np.ones((3, 1), np.float32))
    with pytest.raises(NumericalError, match=rf"row 2, column 1 is NaN \(0x{code:02x}\)"):
        decode(tensor)


def test_values_that_cannot_be_encoded_are_refused_with_their_place():
    x = np.ones((2, 4), np.float32)
    x[1, 3] = np.inf
    with pytest.raises(NumericalError, match="row 1, column 3"):
        encode(x, ROW)


@pytest.mark.parametrize("spec", FP8, ids=lambda spec: spec.name)
def test_the_name_parses_back(spec):
    assert parse_format(spec.name) == spec
    assert spec.bits_per_weight((32, 64)) == 8 + (32 * 32 if spec is ROW else 32) / (32 * 64)


def test_scales_of_other_parts_are_refused():
    with pytest.raises(UsageError, match="a scale per group is not known"):
        Fp8Spec(Granularity.GROUP)
