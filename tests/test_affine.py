from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fewbit.errors import NumericalError, UsageError
from fewbit.formats import affine
from fewbit.formats.pack import unpack
from fewbit.formats.registry import decode, decode_rows, encode, encoded_bytes
from fewbit.formats.spec import Granularity, QuantSpec, ScaleType

EVERY_SPEC = [
    QuantSpec(bits, where, 16 if where is Granularity.GROUP else None, symmetric, scale_type)
    for bits in range(2, 9)
    for where in Granularity
    for symmetric in (True, False)
    for scale_type in ScaleType
]


def members(spec: QuantSpec, shape: tuple[int, int]):
    """Yield (scale index, element index) of every group, one by one."""
    rows, columns = shape
    match spec.granularity:
        case Granularity.TENSOR:
            yield (0, 0), (slice(None), slice(None))
        case Granularity.ROW:
            yield from (((r, 0), (r, slice(None))) for r in range(rows))
        case Granularity.CHANNEL:
            yield from (((0, c), (slice(None), c)) for c in range(columns))
        case Granularity.GROUP:
            size = spec.group_size
            for r in range(rows):
                for g in range(columns // size):
                    yield (r, g), (r, slice(g * size, (g + 1) * size))


def slow_decode(tensor) -> np.ndarray:
    """x' = s (q - z), element group by element group."""
    spec = tensor.spec
    codes = unpack(tensor.codes, spec.bits, tensor.shape[1]).astype(int) + spec.low
    values = np.empty(tensor.shape, np.float32)
    for at, elements in members(spec, tensor.shape):
        zero = 0 if tensor.zeros is None else int(tensor.zeros[at])
        values[elements] = np.float32(tensor.scales[at]) * (codes[elements] - zero).astype(
            np.float32
        )
    return values


def slow_encode(x: np.ndarray, spec: QuantSpec, scales, zeros) -> np.ndarray:
    """q = clip(round(x / s) + z), element by element, as Python integers."""
    codes = np.empty(x.shape, int)
    for at, elements in members(spec, x.shape):
        scale = np.float32(scales[at])
        zero = 0 if zeros is None else int(zeros[at])
        ratio = [round(float(v / scale)) if scale else 0 for v in np.ravel(x[elements])]
        codes[elements] = np.clip(np.reshape(ratio, x[elements].shape) + zero, spec.low, spec.high)
    return codes


def half_a_step(tensor, x: np.ndarray) -> np.ndarray:
    """The largest |x - x'| the format allows, element by element.

    Half a step of rounding; plus what the range [low, high] s lost when s was rounded to its
    storage type (2^-11 of it in fp16, 2^-24 in float32; subnormal scales are rounded up); plus
    float32 rounding in s0, x / s and s (q - z), each 2^-24 of a value up to the range.
    """
    steps = np.empty(x.shape, np.float64)
    for at, elements in members(tensor.spec, x.shape):
        scale = float(tensor.scales[at])
        levels = tensor.spec.high - tensor.spec.low
        stored = 2.0**-11 if tensor.spec.scale_type is ScaleType.F16 else 2.0**-24
        steps[elements] = scale * (0.5 + levels * (stored + 4 * 2.0**-24) * 1.01)
    return steps


@pytest.mark.parametrize("spec", EVERY_SPEC, ids=lambda s: s.name)
def test_every_spec_follows_the_formula_and_its_bound(spec):
    rng = np.random.default_rng(spec.bits)
    x = rng.standard_t(2, (6, 48)).astype(np.float32) + np.float32(0.3)
    x[2, :16] = 0
    tensor = encode(x, spec)
    codes = unpack(tensor.codes, spec.bits, 48).astype(int) + spec.low
    assert np.array_equal(codes, slow_encode(x, spec, tensor.scales, tensor.zeros))
    decoded = decode(tensor)
    assert np.array_equal(decoded, slow_decode(tensor))
    assert (np.abs(decoded - x) <= half_a_step(tensor, x)).all()
    assert encoded_bytes(spec, x.shape) == tensor.nbytes


FINITE = st.floats(-60000, 60000, width=32) | st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-40, 6e-8, 2.0**-14, 65504.0, 1e-7]
)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scale_type", ScaleType)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_bound_holds_for_any_finite_values(bits, symmetric, scale_type, data):
    spec = QuantSpec(bits, Granularity.GROUP, 8, symmetric, scale_type)
    x = data.draw(arrays(np.float32, (2, 16), elements=FINITE))
    tensor = encode(x, spec)
    decoded = decode(tensor)
    assert np.isfinite(decoded).all()
    # The last term: float32 itself ends at 2^-149, so products and quotients near it are absolute.
    assert (np.abs(decoded - x) <= half_a_step(tensor, x) + 2.0**-149).all()


@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_follow_the_scale_as_stored(symmetric):
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (64, 256)).astype(np.float32)
    spec = QuantSpec(8, Granularity.GROUP, 32, symmetric)
    tensor = encode(x, spec)
    exact, _ = affine.fit(x, replace(spec, scale_type=ScaleType.F32))
    with_exact = affine.encode_with(x, spec, exact, tensor.zeros)
    assert not np.array_equal(with_exact.codes, tensor.codes)
    mixed = replace(with_exact, scales=tensor.scales)
    error = np.square(decode(tensor) - x).sum()
    assert error < np.square(decode(mixed) - x).sum()


@pytest.mark.parametrize("spec", EVERY_SPEC, ids=lambda s: s.name)
def test_all_zero_groups_have_scale_zero_and_decode_to_zero(spec):
    tensor = encode(np.zeros((2, 32), np.float32), spec)
    assert not tensor.scales.any()
    assert tensor.zeros is None or not tensor.zeros.any()
    assert not decode(tensor).any()


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_group_far_below_fp16_keeps_a_scale(symmetric):
    x = np.full((1, 8), 3e-9, np.float32)
    tensor = encode(x, QuantSpec(4, Granularity.GROUP, 8, symmetric))
    assert tensor.scales.tolist() == [[2.0**-24]]
    assert np.abs(decode(tensor) - x).max() <= 2.0**-25


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scale_type", ScaleType)
def test_a_group_at_the_end_of_float32_keeps_a_scale(symmetric, scale_type):
    """The division by the number of levels itself underflows there."""
    x = np.full((1, 8), 3e-45, np.float32)
    tensor = encode(x, QuantSpec(4, Granularity.GROUP, 8, symmetric, scale_type))
    assert tensor.scales.min() > 0


def test_a_subnormal_scale_is_rounded_up_so_that_nothing_clips():
    absmax = np.float32(7.5 * 1.4 * 2.0**-24)
    x = np.array([[absmax, -absmax, 0, 0]], np.float32)
    tensor = encode(x, QuantSpec(4, Granularity.ROW))
    assert tensor.scales.tolist() == [[2.0**-23]]
    assert np.abs(decode(tensor) - x).max() <= 2.0**-24


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_scale_beyond_fp16_is_refused_and_f32_takes_it(symmetric):
    x = np.zeros((2, 16), np.float32)
    x[1, 9] = 3e6
    spec = QuantSpec(4, Granularity.GROUP, 8, symmetric)
    with pytest.raises(NumericalError, match=r"row 1, group 1 .*f32"):
        encode(x, spec)
    wide = replace(spec, scale_type=ScaleType.F32)
    assert np.isfinite(decode(encode(x, wide))).all()


def test_a_range_beyond_float32_is_refused():
    x = np.array([[3e38, -3e38]], np.float32)
    with pytest.raises(NumericalError, match="beyond what f32 holds"):
        encode(x, QuantSpec(4, Granularity.ROW, None, False, ScaleType.F32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_place(bad):
    x = np.ones((3, 32), np.float32)
    x[2, 17] = bad
    with pytest.raises(NumericalError, match="row 2, column 17 is"):
        encode(x, QuantSpec(4, Granularity.GROUP, 32))


def test_a_group_that_does_not_divide_is_refused():
    with pytest.raises(UsageError, match="48 columns do not divide into groups of 32"):
        encode(np.ones((1, 48), np.float32), QuantSpec(4, Granularity.GROUP, 32))


def test_an_empty_matrix_is_refused():
    with pytest.raises(UsageError, match="nothing to quantize"):
        encode(np.ones((0, 32), np.float32), QuantSpec(4, Granularity.ROW))


@pytest.mark.parametrize("spec", EVERY_SPEC, ids=lambda s: s.name)
def test_rows_decode_alone_as_together(spec):
    x = np.random.default_rng(3).normal(0, 1, (5, 32)).astype(np.float32)
    tensor = encode(x, spec)
    whole = decode(tensor)
    assert np.array_equal(decode_rows(tensor, np.array([4, 1])), whole[[4, 1]])
    assert np.array_equal(decode_rows(tensor, slice(1, 3)), whole[1:3])
    if spec.rows_independent:
        alone = encode(x[1:3], spec)
        assert np.array_equal(alone.codes, tensor.codes[1:3])


def test_scales_swapped_between_groups_are_caught():
    x = np.random.default_rng(4).normal(0, 1, (2, 64)).astype(np.float32) * np.repeat(
        np.float32([1, 8]), 32
    )
    tensor = encode(x, QuantSpec(4, Granularity.GROUP, 32))
    swapped = replace(tensor, scales=tensor.scales[:, ::-1].copy())
    assert (np.abs(decode(tensor) - x) <= half_a_step(tensor, x)).all()
    assert not (np.abs(decode(swapped) - x) <= half_a_step(swapped, x)).all()


def test_scales_of_bfloat16_arithmetic_would_cost_what_float32_does_not():
    """Case 11 of shared/cases/quantize.md: the planted bug is a scale rounded to 8 bits."""
    x = np.random.default_rng(5).normal(0, 1, (64, 256)).astype(np.float32)
    spec = QuantSpec(8, Granularity.GROUP, 32)
    scales, _ = affine.fit(x, replace(spec, scale_type=ScaleType.F32))
    coarse = (scales.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    def error(tensor) -> float:
        return float(np.square(decode(tensor) - x).sum())

    ours = error(encode(x, spec))
    exact = error(affine.encode_with(x, spec, scales, None))
    planted = error(affine.encode_with(x, spec, coarse.astype(np.float16), None))
    assert ours < 1.02 * exact
    assert planted > 1.05 * exact
