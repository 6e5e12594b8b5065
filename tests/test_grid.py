"""Every format as codes on a grid: exact in both directions, and equal to the decoders."""

import dataclasses
import time

import numpy as np
import pytest
from quantized import BLOCKS, INTEGER_FORMATS, format_id, random_tensor

from fewbit.errors import NumericalError, UnsupportedError, UsageError
from fewbit.formats import affine
from fewbit.formats.grid import (
    Offset,
    concatenate,
    join,
    layout,
    nearest,
    split,
    stack,
    storable,
    values,
)
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.formats.spec import QuantSpec, QuantTensor, ScaleType

COLUMNS = 512
AFFINE = [
    f"int{bits}-{where}"
    for bits, where in (
        *((bits, "g32") for bits in range(2, 9)),
        *((bits, "g16-asym") for bits in range(2, 9)),
        (3, "row-f32"),
        (4, "row-asym"),
        (8, "row"),
    )
]
FORMATS = [*BLOCKS, *(parse_format(name) for name in AFFINE)]
every_format = pytest.mark.parametrize("form", FORMATS, ids=format_id)


def drawn(form: str | QuantSpec, seed: int, rows: int = 5) -> QuantTensor:
    tensor = random_tensor(form, rows, COLUMNS, np.random.default_rng(seed))
    if isinstance(form, QuantSpec) and form.scale_type is ScaleType.F32:
        return dataclasses.replace(tensor, scales=tensor.scales.astype(np.float32))
    return tensor


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_tensor(a: QuantTensor, b: QuantTensor) -> bool:
    parts = ((a.codes, b.codes), (a.scales, b.scales), (a.zeros, b.zeros))
    return a.spec == b.spec and a.shape == b.shape and all(same_bits(x, y) for x, y in parts)


@every_format
def test_join_undoes_split(form):
    tensor = drawn(form, 0)
    assert same_tensor(join(*split(tensor)), tensor)


@every_format
def test_values_equal_decoding_bit_for_bit(form):
    tensor = drawn(form, 1)
    assert same_bits(values(*split(tensor)), decode(tensor))


@every_format
def test_other_codes_on_the_same_grid_decode_to_their_values(form):
    _, grid = split(drawn(form, 2))
    codes, _ = split(drawn(form, 3))
    assert same_bits(decode(join(codes, grid)), values(codes, grid))


@every_format
def test_values_are_scale_times_level_plus_offset(form):
    codes, grid = split(drawn(form, 4))
    level = np.array(grid.layout.levels)[codes].reshape(grid.rows, -1, grid.layout.group)
    product = level * grid.scales[..., None].astype(np.float64)
    offset = 0.0 if grid.offsets is None else grid.offsets[..., None].astype(np.float64)
    error = np.abs(values(codes, grid).reshape(product.shape) - (product + offset))
    # One rounding of the product, one of the sum, and for a zero point one of the offset, each at
    # most 2^-24 of a term; the last term is where everything is subnormal.
    bound = 3 * (np.abs(product) + np.abs(offset)) * 2.0**-24 + 2.0**-149
    assert (error <= bound).all()


@every_format
def test_the_nearest_code_of_a_value_means_that_value(form):
    tensor = drawn(form, 5)
    codes, grid = split(tensor)
    again = values(nearest(values(codes, grid), grid), grid)
    # With an offset the difference (value - offset) is rounded, but never past half a step.
    assert same_bits(again + np.float32(0), values(codes, grid) + np.float32(0))


@every_format
def test_nearest_is_as_near_as_trying_every_level(form):
    _, grid = split(drawn(form, 6, rows=3))
    rng = np.random.default_rng(7)
    scale = np.abs(grid.scales).max() * max(np.abs(grid.layout.levels))
    weight = (rng.standard_normal((3, COLUMNS)) * scale / 2).astype(np.float32)
    chosen = np.abs(values(nearest(weight, grid), grid) - weight)
    least = np.full(weight.shape, np.inf)
    for code in range(len(grid.layout.levels)):
        tried = np.abs(values(np.full(weight.shape, code, np.uint8), grid) - weight)
        least = np.minimum(least, tried)
    # Quotients are rounded in float32: a tie may be missed by 2^-23 of the values' magnitude.
    assert (chosen <= least + 2.0**-21 * (np.abs(weight) + scale)).all()


@pytest.mark.parametrize("name", AFFINE)
def test_nearest_equals_the_affine_encoder(name):
    form = parse_format(name)
    weight = np.random.default_rng(8).integers(-40, 40, (4, COLUMNS)).astype(np.float32) / 8
    scales, zeros = affine.fit(weight, form)
    scales = np.full_like(scales, 0.25)  # every other value is a tie
    tensor = affine.encode_with(weight, form, scales, zeros)
    _, grid = split(tensor)
    assert same_tensor(join(nearest(weight, grid), grid), tensor)


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "mxfp4"])
def test_ties_go_as_the_encoder_has_them(name):
    row = np.arange(-12, 4, 0.5, dtype=np.float32)
    row[0] = {"q4_0": -8, "q8_0": -127, "mxfp4": -12}[name]  # makes the scale 1
    tensor = encode(row[None], parse_format(name))
    _, grid = split(tensor)
    assert same_tensor(join(nearest(row[None], grid), grid), tensor)


def test_a_negative_scale_turns_the_levels_around():
    grid = storable(parse_format("q4_0"), layout(parse_format("q4_0"), 32), -np.ones((1, 1), "f4"))
    weight = np.linspace(-7, 8, 32, dtype=np.float32)[None]
    assert values(nearest(weight, grid), grid)[0, [0, -1]].tolist() == [-7, 8]


@pytest.mark.parametrize("form", BLOCKS, ids=format_id)
def test_pieces_of_rows_and_blocks_join_again(form):
    codes, grid = split(drawn(form, 9))
    block, half = grid.layout.block, COLUMNS // grid.layout.block // 2
    left, right = grid.take_blocks(slice(0, half)), grid.take_blocks(slice(half, None))
    both = concatenate([left, right])
    upper = stack([both.take_rows(slice(0, 2)), both.take_rows(np.array([2, 3, 4]))])
    assert same_tensor(join(codes, upper), join(codes, grid))
    edge = half * block
    assert same_bits(values(codes[:, :edge], left), values(codes, grid)[:, :edge])


@every_format
def test_a_storable_grid_stays_itself(form):
    _, grid = split(drawn(form, 10))
    if grid.layout.steps is not None:  # steps of one unit: many pairs (unit, step) are equal
        return
    offsets = grid.offsets
    if grid.layout.offset is Offset.ZERO:
        assert grid.offset_steps is not None and offsets is not None
        offsets = np.where(grid.scale == 0, 0, offsets).astype(np.float32)
    again = storable(grid.form, grid.layout, grid.scales, offsets)
    assert same_bits(again.scale, grid.scale)
    assert same_bits(again.offset, grid.offset)
    if grid.offset_steps is not None:
        assert np.array_equal(
            again.offset_steps[grid.scale != 0], grid.offset_steps[grid.scale != 0]
        )


@pytest.mark.parametrize("name", ["q2_k", "q3_k", "q4_k", "q6_k", "iq4_xs"])
def test_two_levels_keep_scales_to_half_a_step(name):
    form = parse_format(name)
    shape = layout(form, COLUMNS)
    rng = np.random.default_rng(11)
    wanted = rng.uniform(0.2, 1.0, (6, COLUMNS // shape.group)).astype(np.float32)
    offsets = None if shape.offset is Offset.NONE else -wanted[:, ::-1]
    grid = storable(form, shape, wanted, offsets)
    assert shape.steps is not None
    # A unit at most 1 / (outermost - 5), half of it away, and fp16's rounding of the unit.
    unit = 1 / (max(-shape.steps[0], shape.steps[1]) - 5)
    assert np.abs(grid.scales - wanted).max() <= unit * 0.6
    if offsets is not None:
        assert np.abs(grid.offsets - offsets).max() <= unit * 0.6


@pytest.mark.parametrize("form", ["q4_0", "q4_k", "iq4_xs", "int4-g32"])
def test_a_scale_beyond_fp16_is_refused_with_its_place(form):
    shape = layout(parse_format(form), 256)
    scales = np.ones((3, 256 // shape.group), np.float32)
    scales[1, 0] = 1e9
    offsets = None if shape.offset is Offset.NONE else -scales
    with pytest.raises(NumericalError, match=r"at row 1, group 0 is beyond what"):
        storable(parse_format(form), shape, scales, offsets)


@pytest.mark.parametrize("bits", range(2, 9))
def test_a_width_that_no_word_divides_is_packed_to_the_last_bit(bits):
    """Case 17: 37 codes of 3 bits take ceil(111 / 8) bytes, not 37 // (32 // 3) words."""
    form = parse_format(f"int{bits}-row-asym")
    weight = np.random.default_rng(15).standard_normal((3, 37), np.float32)
    tensor = encode(weight, form)
    assert tensor.codes.shape == (3, -(-37 * bits // 8))
    codes, grid = split(tensor)
    codes[:, -1] = codes.max()
    assert same_bits(decode(join(codes, grid)), values(codes, grid))


@pytest.mark.parametrize("name", ["f16", "fp8_e4m3-row", "int8-tensor", "int8-channel", "iq2_xs"])
def test_formats_without_a_grid_are_named(name):
    with pytest.raises(UnsupportedError, match=f"{name} has no grid"):
        layout(parse_format(name), 256)


def test_columns_must_divide():
    with pytest.raises(UsageError, match="576"):
        layout(parse_format("q4_k"), 576)


def test_subtracting_after_multiplying_is_caught():
    """Negative control: s q - s z differs from the decoder's s (q - z) in some last bit."""
    weight = np.random.default_rng(12).standard_normal((8, COLUMNS)).astype(np.float32)
    codes, grid = split(encode(weight, parse_format("int8-row-asym-f32")))
    wrong = codes.astype(np.float32) * grid.scales + grid.offsets
    assert not np.array_equal(wrong, values(codes, grid))


@pytest.mark.parametrize("form", ["q4_0", "q4_k", "q6_k", "iq4_xs", "int4-g32"])
def test_a_million_weights_take_a_fraction_of_a_second(form):
    tensor = (
        drawn(form, 13, rows=8192)
        if form in BLOCKS
        else encode(
            np.random.default_rng(0).standard_normal((2048, COLUMNS), np.float32),
            parse_format(form),
        )
    )
    start = time.process_time()
    join(*split(tensor))
    # 3 to 8 ms alone, so 100M weights within a second; the bound catches loops in Python.
    assert time.process_time() - start < 0.5


def test_every_integer_format_of_the_engine_has_a_grid():
    for form in INTEGER_FORMATS:
        spec = parse_format(form) if isinstance(form, str) else form
        if spec.rows_independent:
            assert layout(spec, COLUMNS).block % layout(spec, COLUMNS).group == 0


def test_a_grid_is_immutable():
    _, grid = split(drawn("q4_0", 14))
    with pytest.raises(dataclasses.FrozenInstanceError):
        grid.scale = grid.scale
