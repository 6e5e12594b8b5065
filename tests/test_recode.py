"""Codes that move from one format to another keep every value; what cannot is not said to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from quantized import INTEGER_FORMATS, float32_scales, format_id, random_tensor

from fewbit.errors import NumericalError
from fewbit.formats.recode import holds, keeps_codes, recode
from fewbit.formats.registry import BF16, BLOCK_FORMATS, F16, F32, decode, encode, parse_format
from fewbit.formats.spec import QuantTensor

COLUMNS = 256
ROWS = 5


def spec_of(form):
    return BLOCK_FORMATS[form].spec if isinstance(form, str) else form


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_whatever_is_held_keeps_every_value(form):
    tensor = random_tensor(form, ROWS, COLUMNS, np.random.default_rng(3))
    before = decode(tensor)
    for other in INTEGER_FORMATS:
        if not holds(spec_of(other), tensor.spec, COLUMNS):
            continue
        moved = recode(tensor, spec_of(other))
        assert moved.spec == spec_of(other)
        np.testing.assert_array_equal(decode(moved), before)


HELD = (
    ("int4-g64", "q4_0"),
    ("int4-row", "q4_0"),
    ("int3-g32", "q4_0"),
    ("int4-g32-asym", "q5_0"),
    ("int7-g64-asym", "q8_0"),
    ("int8-tensor", "q8_0"),
    ("int6-g32", "q8_0"),
    ("iq4_nl", "q8_0"),
    ("q4_0", "int4-g32"),
    ("q4_0", "int4-g32-asym"),
    ("q5_0", "int5-g32-f32"),
    ("q4_1", "q5_1"),
    ("q8_0", "int8-g32"),
)
NOT_HELD = (
    ("int4-g32-asym", "q4_0"),
    ("int4-g32-asym", "q4_1"),
    ("q4_1", "int4-g32-asym"),
    ("int8-g32-asym", "q8_0"),
    ("int4-g32-f32", "q4_0"),
    ("int4-channel", "q4_0"),
    ("q4_0", "int4-g64"),
    ("q4_k", "q5_k"),
    ("mxfp4", "q8_0"),
    ("q5_0", "q4_0"),
    ("q4_0", "bf16"),
    ("f32", "bf16"),
    ("f16", "bf16"),
    ("fp8_e4m3-row", "q8_0"),
)


@pytest.mark.parametrize(("form", "other"), HELD)
def test_held(form, other):
    assert holds(parse_format(other), parse_format(form), COLUMNS)
    tensor = encode(np.random.default_rng(0).standard_normal((ROWS, COLUMNS)), parse_format(form))
    np.testing.assert_array_equal(decode(recode(tensor, parse_format(other))), decode(tensor))


@pytest.mark.parametrize(("form", "other"), NOT_HELD)
def test_not_held(form, other):
    assert not holds(parse_format(other), parse_format(form), COLUMNS)


def test_floats_hold_narrower_floats_only():
    pairs = itertools.product((F32, F16, BF16), repeat=2)
    held = {(one.name, other.name) for one, other in pairs if holds(one, other, COLUMNS)}
    assert held == {(f.name, f.name) for f in (F32, F16, BF16)} | {("f32", "f16"), ("f32", "bf16")}


def test_float32_scales_are_rounded_and_codes_stay():
    rng = np.random.default_rng(1)
    spec = float32_scales(parse_format("int4-g32"))
    values = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    tensor, form = encode(values, spec), parse_format("q4_0")
    assert keeps_codes(form, spec, COLUMNS)
    moved = recode(tensor, form)
    # One rounding of the scale to 11 bits; re-encoding by range would move codes by whole steps.
    np.testing.assert_allclose(decode(moved), decode(tensor), rtol=2.0**-11)


def test_a_scale_beyond_fp16_is_refused():
    spec = float32_scales(parse_format("int4-g32"))
    tensor = encode(np.full((1, 32), 1e6, np.float32), spec)
    with pytest.raises(NumericalError, match="65,504"):
        recode(tensor, parse_format("q4_0"))


def test_a_planted_shift_of_codes_is_caught():
    """The comparison above sees one code that is one step off."""
    tensor = random_tensor("q4_0", ROWS, COLUMNS, np.random.default_rng(3))
    moved = recode(tensor, parse_format("int4-g32"))
    codes = moved.codes.copy()
    codes[0, 0] ^= 1
    wrong = QuantTensor(moved.spec, moved.shape, codes, moved.scales)
    assert (decode(wrong) != decode(tensor)).any()
