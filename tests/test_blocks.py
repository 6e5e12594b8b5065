import gguf
import numpy as np
import pytest
from bits import equal_but_for_nans
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from quantized import BLOCKS

from fewbit.errors import NumericalError, UnsupportedError, UsageError
from fewbit.formats import kquants
from fewbit.formats.registry import (
    BF16,
    BLOCK_FORMATS,
    DECODABLE,
    ENCODABLE,
    F16,
    F32,
    GGUF_TYPES,
    decode,
    decode_rows,
    encode,
)
from fewbit.formats.spec import QuantTensor

RANGED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
FINELY_SEARCHED = ["q2_k", "q4_k", "q5_k", "q6_k"]
NOT_IN_PACKAGE = ("f32", "f16", "q1_0", "q2_0")
"""Views of the bytes there, and types that the released package lacks (test_formats_decoded)."""
CODED = [name for name in DECODABLE if name not in NOT_IN_PACKAGE]


def gguf_type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType(BLOCK_FORMATS[name].spec.type_id)


def from_bytes(name: str, codes: np.ndarray) -> QuantTensor:
    spec = BLOCK_FORMATS[name].spec
    return QuantTensor(
        spec, (len(codes), codes.shape[1] // spec.block_bytes * spec.block_size), codes
    )


def by_gguf(name: str, codes: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(codes, gguf_type(name))


@pytest.mark.parametrize("name", [name for name in DECODABLE if name not in NOT_IN_PACKAGE[2:]])
def test_decoding_random_bytes_equals_the_gguf_package(name):
    width = 3 * BLOCK_FORMATS[name].spec.block_bytes * (16 if name in ("f32", "f16") else 1)
    codes = np.random.default_rng(1).integers(0, 256, (40, width), np.uint8)
    assert equal_but_for_nans(decode(from_bytes(name, codes)), by_gguf(name, codes))


@pytest.mark.parametrize("name", CODED)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_decoding_any_bytes_equals_the_gguf_package(name, data):
    width = BLOCK_FORMATS[name].spec.block_bytes
    codes = data.draw(arrays(np.uint8, (2, width)))
    assert equal_but_for_nans(decode(from_bytes(name, codes)), by_gguf(name, codes))


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x7C, 0x80, 0x01])
def test_decoding_constant_bytes_equals_the_gguf_package(name, fill):
    codes = np.full((1, 2 * BLOCK_FORMATS[name].spec.block_bytes), fill, np.uint8)
    assert equal_but_for_nans(decode(from_bytes(name, codes)), by_gguf(name, codes))


def test_swapped_nibbles_are_caught():
    codes = np.random.default_rng(2).integers(0, 256, (4, 18), np.uint8)
    codes[:, :2] = np.array([1.0], np.float16).view(np.uint8)
    swapped = codes.copy()
    swapped[:, 2:] = (codes[:, 2:] >> 4) | (codes[:, 2:] << 4)
    assert not equal_but_for_nans(decode(from_bytes("q4_0", swapped)), by_gguf("q4_0", codes))


def test_six_bit_scales_with_their_top_bits_misplaced_are_caught():
    packed = np.random.default_rng(3).integers(0, 256, (64, 12), np.uint8)
    scales, minima = kquants.unpack_scales(packed)
    expected = gguf.quants.Q4_K.get_scale_min(packed)
    assert np.array_equal(scales, expected[0])
    assert np.array_equal(minima, expected[1])
    # The plausible mistake: the two upper bits taken from the minima's bytes.
    wrong = (packed[:, 8:] & 15) | ((packed[:, 4:8] >> 2) & 0x30)
    assert not np.array_equal(wrong, expected[0][:, 4:])


def test_three_bit_scales_with_their_pairs_in_another_order_are_caught():
    codes = np.random.default_rng(8).integers(0, 256, (4, 110), np.uint8)
    codes[:, 108:] = np.array([1.0], np.float16).view(np.uint8)
    assert equal_but_for_nans(decode(from_bytes("q3_k", codes)), by_gguf("q3_k", codes))
    # The plausible mistake: scale i takes pair i % 4 of byte 8 + i / 4.
    packed = codes[:, 96:108]
    pairs = (packed[:, 8:, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    wrong = (kquants.unpack_q3_scales(packed) & 15) | (pairs.reshape(4, 16) << 4).view(np.int8)
    assert not np.array_equal(wrong - 32, kquants.unpack_q3_scales(packed))


def test_mxfp4_takes_the_nearest_element_and_the_nearer_to_zero_of_two():
    def one(x: float) -> float:
        values = np.zeros((1, 32), np.float32)
        values[0, :2] = 4, x  # absmax 4: the scale is 1, elements are 0, 0.5, 1, 1.5, 2, 3, 4, 6
        return float(decode(encode(values, BLOCK_FORMATS["mxfp4"].spec))[0, 1])

    halfway = {0.25: 0, 0.75: 0.5, 1.25: 1, 1.75: 1.5, 2.5: 2, 3.5: 3, -0.25: 0, -2.5: -2}
    assert {x: one(x) for x in halfway} == halfway
    assert one(np.nextafter(np.float32(2.5), np.float32(3))) == 3
    assert one(-2.75) == -3


@pytest.mark.parametrize("largest", [5, 6, 7.9, 8, 2.0**-140, 3e38])
def test_mxfp4_scales_by_the_power_of_two_below_the_largest(largest):
    values = np.full((1, 32), largest, np.float32)
    encoded = encode(values, BLOCK_FORMATS["mxfp4"].spec)
    power = np.floor(np.log2(float(np.float32(largest)))) - 2 + 127
    assert encoded.codes[0, 0] == max(power, 0)


@pytest.mark.parametrize("name", [*RANGED, "mxfp4", "bf16", "f16", "f32"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_encoding_equals_the_gguf_package(name, data):
    # fp16 holds scales up to 65504: magnitudes up to 8 * 65504 = 2^19 keep Q4_0's finite.
    bound = 60000.0
    tiny = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0**-20, 2.0**-24, -(2.0**-30)])
    values = data.draw(
        arrays(np.float32, (2, 64), elements=st.floats(-bound, bound, width=32) | tiny)
    )
    # Below 2^-100 the reciprocal of a scale may overflow, which the package leaves undefined.
    values[np.abs(values) < 2.0**-100] = 0
    if name == "mxfp4":
        # The package's log2 rounds up to the next whole number just below a power of two.
        values = (values.view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(values, gguf_type(name)).view(np.uint8)
    assert np.array_equal(encode(values, BLOCK_FORMATS[name].spec).codes, expected)


@pytest.mark.parametrize("name", [*RANGED, "mxfp4", "bf16", "f16"])
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e3])
def test_encoding_normal_values_equals_the_gguf_package(name, scale):
    values = np.random.default_rng(4).normal(0, scale, (64, 576)).astype(np.float32)
    expected = gguf.quants.quantize(values, gguf_type(name)).view(np.uint8)
    assert np.array_equal(encode(values, BLOCK_FORMATS[name].spec).codes, expected)


@pytest.mark.parametrize("name", ["q4_0", "q8_0"])
def test_the_error_stays_within_half_a_step(name):
    values = np.random.default_rng(5).normal(0, 1, (16, 320)).astype(np.float32)
    decoded = decode(encode(values, BLOCK_FORMATS[name].spec))
    groups = values.reshape(16, -1, 32)
    error = np.abs(decoded.reshape(groups.shape) - groups).max(axis=2)
    absmax = np.abs(groups).max(axis=2)
    # Q8_0 rounds x / d, |q| <= 127. Q4_0's range is [-8, 7] of d = absmax / 8, so the side away
    # from the largest value clips at 7 and is up to a whole step off. Rounding d to fp16 moves a
    # decoded value by at most 2^-11 of it.
    step = absmax / (127 if name == "q8_0" else 8)
    bound = step * (0.5 if name == "q8_0" else 1.0) + absmax * (2.0**-11 + 2.0**-20)
    assert (error <= bound).all()


@pytest.mark.parametrize("name", [name for name in ENCODABLE if name not in FINELY_SEARCHED])
def test_encoding_what_was_decoded_changes_no_value(name):
    values = np.random.default_rng(6).normal(0, 1, (8, 256)).astype(np.float32)
    form = BLOCK_FORMATS[name].spec
    once = decode(encode(values, form))
    twice = decode(encode(once, form))
    # A block keeps its largest value exactly, or its ends, or within the power of two of MXFP4;
    # where scales are searched, these are found again, up to the sign of both units.
    assert np.array_equal(once, twice)


@pytest.mark.parametrize("name", FINELY_SEARCHED)
def test_encoding_what_was_decoded_changes_little_where_many_scales_are_near(name):
    values = np.random.default_rng(6).normal(0, 1, (8, 256)).astype(np.float32)
    once = decode(encode(values, BLOCK_FORMATS[name].spec))
    twice = decode(encode(once, BLOCK_FORMATS[name].spec))
    # Of two units, or of 256 steps, another may be as good on paper; 1/20 of the squared error of
    # the first time is about what that costs Q5_K.
    assert np.square(twice - once).sum() <= np.square(once - values).sum() / 20


@pytest.mark.parametrize("name", ENCODABLE)
def test_an_all_zero_tensor_decodes_to_zeros(name):
    encoded = encode(np.zeros((2, 256), np.float32), BLOCK_FORMATS[name].spec)
    assert not decode(encoded).any()


@pytest.mark.parametrize("name", [*RANGED, "f16"])
def test_values_beyond_the_format_are_refused_with_their_place(name):
    values = np.zeros((3, 64), np.float32)
    values[1, 40] = 3e7
    with pytest.raises(
        NumericalError, match=r"30000000.0 at row 1, column 40 .*choose bf16 or f32,"
    ):
        encode(values, BLOCK_FORMATS[name].spec)


def test_a_value_that_would_round_to_infinity_in_bf16_is_refused():
    with pytest.raises(NumericalError, match=r"row 0, column 1 .*choose f32,"):
        encode(np.array([[1.0, 3.4e38]], np.float32), BF16)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ENCODABLE)
def test_a_value_that_is_not_finite_is_refused_with_its_place(name, bad):
    values = np.zeros((2, 256), np.float32)
    values[1, 33] = bad
    with pytest.raises(NumericalError, match="row 1, column 33"):
        encode(values, BLOCK_FORMATS[name].spec)


def test_rows_decode_alone_as_together():
    codes = np.random.default_rng(7).integers(0, 256, (9, 2 * 144), np.uint8)
    tensor = from_bytes("q4_k", codes)
    whole = decode(tensor)
    assert equal_but_for_nans(decode_rows(tensor, np.array([8, 0, 3])), whole[[8, 0, 3]])
    assert equal_but_for_nans(decode_rows(tensor, slice(2, 5)), whole[2:5])


def test_the_table_agrees_with_the_gguf_package():
    for known, (block_size, block_bytes) in gguf.GGML_QUANT_SIZES.items():
        spec = GGUF_TYPES[int(known)]
        if spec.name == "q8_1":  # never stored; the package has the size of an older layout
            continue
        assert (spec.name, spec.block_size, spec.block_bytes) == (
            known.name.lower(),
            block_size,
            block_bytes,
        )
    assert {"q2_k", "q3_k", "q4_1", "q5_0", "q5_1", "iq4_nl", "iq4_xs", "mxfp4"} <= set(DECODABLE)
    assert [F32.type_id, F16.type_id, BF16.type_id] == [0, 1, 30]


def test_what_cannot_be_decoded_or_encoded_says_what_can():
    with pytest.raises(UnsupportedError, match=r"q8_k cannot be decoded; supported: f32.*q6_k"):
        decode(from_bytes("q8_k", np.zeros((1, 292), np.uint8)))
    with pytest.raises(
        UnsupportedError, match=r"encoded as q8_k; supported: .*q4_0, .*q4_k, .*mxfp4"
    ):
        encode(np.zeros((1, 256), np.float32), BLOCK_FORMATS["q8_k"].spec)


def test_columns_that_do_not_divide_are_refused():
    with pytest.raises(UsageError, match="48 columns do not divide into q4_0 blocks of 32"):
        encode(np.zeros((1, 48), np.float32), BLOCK_FORMATS["q4_0"].spec)


def test_layouts_have_the_sizes_of_the_table():
    for name, layout in BLOCKS.items():
        assert layout.itemsize == BLOCK_FORMATS[name].spec.block_bytes
