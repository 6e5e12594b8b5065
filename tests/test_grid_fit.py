"""Scales by search: against exhaustive truth, against llama.cpp, and on hostile weights."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import numpy as np
import pytest

from fewbit.errors import NumericalError, UsageError
from fewbit.formats import affine
from fewbit.formats.grid import (
    Grid,
    Offset,
    concatenate,
    fit,
    fit_block,
    join,
    layout,
    nearest,
    split,
    storable,
    values,
)
from fewbit.formats.registry import BLOCK_FORMATS, decode, encode, parse_format
from fewbit.formats.spec import BlockSpec, QuantTensor
from fewbit.methods.clip import search_range

BLOCKS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4"]
TWO_LEVELS = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"]
AFFINE = [
    "int2-g32-asym",
    "int3-g32",
    "int4-g32-asym",
    "int8-g32",
    "int4-row",
    "int4-row-asym",
    "int8-row-f32",
    "int3-g128-asym",
]
EVERY = [*BLOCKS, *TWO_LEVELS, *AFFINE]


def weights(rows: int = 8, columns: int = 512, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def importances(columns: int = 512, seed: int = 1) -> np.ndarray:
    """As unequal as real ones: a few columns count a hundred times the median."""
    return np.exp(1.5 * np.random.default_rng(seed).standard_normal(columns)).astype(np.float32)


def error(weight: np.ndarray, grid: Grid, importance: np.ndarray | None = None) -> float:
    """The weighted squared error of what is stored, in float64."""
    difference = decode(join(nearest(weight, grid), grid)).astype(np.float64) - weight
    return float((np.square(difference) * (1 if importance is None else importance)).sum())


def exhaustive(weight: np.ndarray, name: str, importance: np.ndarray) -> float:
    """The least error of any float16 scale of a group of 32, tried one by one in float64."""
    levels = np.array(layout(parse_format(name), 32).levels)
    total = 0.0
    largest = np.abs(weight).max() / np.abs(levels).max()
    scales = np.unique(np.linspace(0.3 * largest, 1.3 * largest, 4000).astype(np.float16))
    for x, w in zip(weight.reshape(-1, 32), importance.reshape(-1, 32), strict=True):
        best = np.inf
        for scale in (*scales.astype(np.float64), *-scales.astype(np.float64)):
            distance = np.abs(x[:, None] - scale * levels).min(axis=1)
            best = min(best, float((w * distance**2).sum()))
        total += best
    return total


@pytest.mark.parametrize("name", ["q4_0", "iq4_nl", "int3-g32"])
def test_one_scale_is_nearly_the_best_of_all(name):
    weight = weights(1, 32 * 3, seed=2)
    importance = importances(32 * 3)
    weight /= np.abs(weight.reshape(-1, 32)).max(axis=1).repeat(32)
    truth = exhaustive(weight, name, importance)
    # Lloyd's minimum from the best of 18 starts; a group of three may miss the global one.
    assert error(weight, fit(weight, parse_format(name), importance), importance) <= 1.05 * truth


def test_a_grid_that_exists_is_found_again():
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (6, 256)).astype(np.uint8)
    codes[:, 0::32], codes[:, 1::32] = 0, 15  # both ends in each group
    form = parse_format("q4_1")
    scales = rng.uniform(0.01, 0.2, (6, 8)).astype(np.float16).astype(np.float32)
    wanted = storable(form, layout(form, 256), scales, -8 * scales)
    weight = values(codes, wanted)
    found = fit(weight, form)
    assert np.array_equal(values(nearest(weight, found), found), weight)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_search_is_better_than_covering_the_range(name, weighted):
    weight, form = weights(), parse_format(name)
    importance = importances() if weighted else None
    shape = layout(form, 512)
    groups = weight.reshape(8, -1, shape.group)
    low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
    last = np.float32(shape.levels[-1])
    if shape.offset is Offset.NONE:
        plain = storable(form, shape, np.maximum(-low, high) / last)
    else:
        plain = storable(form, shape, (high - low) / last, low)
    assert error(weight, fit(weight, form, importance), importance) < error(
        weight, plain, importance
    )


@pytest.mark.parametrize("name", AFFINE)
def test_a_search_is_no_worse_than_the_affine_range(name):
    weight, form = weights(seed=4), parse_format(name)
    _, grid = split(affine.encode(weight, form))
    assert error(weight, fit(weight, form)) <= error(weight, grid)


@pytest.mark.parametrize(
    "name", ["int4-row", "int4-row-asym", "int8-row", "int3-g64-asym", "int4-g32", "int2-g32"]
)
def test_outliers_are_cut_as_far_as_a_search_over_ranges_cuts_them(name):
    weight = np.random.default_rng(17).standard_t(5, (64, 1024)).astype(np.float32)
    form = parse_format(name)
    _, ranged = split(search_range(weight, form))
    assert error(weight, fit(weight, form)) <= error(weight, ranged)


@pytest.mark.parametrize("name", EVERY)
def test_importance_lowers_the_error_that_it_weights(name):
    weight, importance, form = weights(seed=5), importances(), parse_format(name)
    with_it = error(weight, fit(weight, form, importance), importance)
    assert with_it < error(weight, fit(weight, form), importance)
    # Negative control: another column's importance does not.
    shifted = np.roll(importance, 1)
    assert with_it < error(weight, fit(weight, form, shifted), importance)


@pytest.mark.parametrize("name", EVERY)
def test_importance_of_columns_equals_the_same_in_every_row(name):
    weight, importance, form = weights(seed=6), importances(), parse_format(name)
    columns = fit(weight, form, importance)
    whole = fit(weight, form, np.broadcast_to(importance, weight.shape))
    assert np.array_equal(columns.scales, whole.scales)


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q4_k", "iq4_xs", "int4-g32-asym", "int4-row"])
def test_a_row_is_fitted_alone_as_among_others(name):
    weight, form = weights(40, 512, seed=7), parse_format(name)
    whole = fit(weight, form, importances())
    for row in (0, 17, 39):
        alone = fit(weight[row : row + 1], form, importances())
        assert np.array_equal(alone.scales, whole.scales[row : row + 1])


@pytest.mark.parametrize("name", ["q4_1", "q8_0", "int4-g32-asym"])
def test_a_group_is_fitted_alone_as_among_others(name):
    weight, form = weights(60, 32, seed=18), parse_format(name)
    whole = fit(weight, form, importances(32))
    for row in range(60):
        alone = fit(weight[row : row + 1], form, importances(32))
        assert np.array_equal(alone.scale, whole.scale[row : row + 1])


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q2_k", "q6_k", "int4-g128-asym"])
def test_blocks_fitted_one_by_one_make_the_whole(name):
    weight, form = weights(4, 1024, seed=8), parse_format(name)
    importance = np.ones(1024, np.float32)  # unequal ones are relative to the mean of what is given
    block = layout(form, 1024).block
    parts = [
        fit_block(weight[:, start : start + block], form, importance[start : start + block])
        for start in range(0, 1024, block)
    ]
    assert np.array_equal(concatenate(parts).scales, fit(weight, form, importance).scales)


@pytest.mark.parametrize("name", EVERY)
def test_zero_rows_and_columns_without_importance_do_no_harm(name):
    """An all-zero row gets zeros, a column that never counted is rounded as its neighbours are."""
    weight, importance, form = weights(seed=9), importances(), parse_format(name)
    weight[3] = 0
    importance[:256] = 0
    grid = fit(weight, form, importance)
    assert np.isfinite(grid.scales).all()
    decoded = values(nearest(weight, grid), grid)
    assert not decoded[3].any()
    # The unimportant half is off by a fraction of itself; set to zero it would be off by all of it.
    assert np.square(decoded - weight)[:, :256].sum() < 0.5 * np.square(weight[:, :256]).sum()
    everywhere = fit(weight, form, np.zeros(512, np.float32))
    assert np.array_equal(everywhere.scales, fit(weight, form).scales)


def test_a_single_column_without_importance_is_not_set_to_zero():
    weight = weights(seed=10)
    importance = np.ones(512, np.float32)
    importance[5] = 0
    grid = fit(weight, parse_format("q4_0"), importance)
    step = np.abs(grid.scales[:, 0])
    off = np.abs(values(nearest(weight, grid), grid) - weight)[:, 5]
    # Inside the range, at most half a step off; past its end, what the range of the others lacks.
    clipped = np.maximum(np.abs(weight[:, 5]) - 7 * step, 0)
    assert (off <= step / 2 + clipped + 1e-6).all()


HOSTILE = {
    "one huge outlier": lambda w: np.where(np.arange(w.size).reshape(w.shape) == 100, 3e4, w),
    "denormals": lambda w: w * 1e-41,
    "smaller than fp16": lambda w: w * 1e-9,
    "near fp16's smallest": lambda w: w * 1e-6,
    "all equal": lambda w: np.full_like(w, 0.37),
    "all equal and negative": lambda w: np.full_like(w, -2.5),
    "alternating signs": lambda w: np.where(np.arange(w.shape[1]) % 2, 1.0, -1.0) + 0 * w,
    "one value in a group": lambda w: np.where(np.arange(w.shape[1]) % 32 == 7, w, 0),
    "positive": np.abs,
    "negative zeros": lambda w: w * 0 - 0.0,
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_weights_are_fitted_no_worse_than_zeros(name, kind):
    weight = HOSTILE[kind](weights(3, 512, seed=11)).astype(np.float32)
    form = parse_format(name)
    for importance in (None, importances()):
        grid = fit(weight, form, importance)
        assert all(
            np.isfinite(part).all()
            for part in (grid.scale, grid.offset, grid.scales)
            if part is not None
        )
        zeros = float(
            (np.square(weight, dtype=np.float64) * (importance is None or importance)).sum()
        )
        assert error(weight, grid, importance) <= zeros


@pytest.mark.parametrize("name", [n for n in EVERY if "f32" not in n and n != "mxfp4"])
def test_weights_beyond_the_scales_are_refused_with_their_place(name):
    weight = weights(2, 512, seed=12)
    weight[1, 40] = 3e12
    group = 40 // layout(parse_format(name), 512).group
    with pytest.raises(NumericalError, match=f"at row 1, group {group} is beyond what {name}"):
        fit(weight, parse_format(name))


def test_float32_scales_reach_where_squares_do_not():
    weight = weights(2, 64, seed=13)
    form = parse_format("int8-row-f32")
    for power in (-120, -60, 60, 120):
        grid = fit(np.ldexp(weight, power), form)
        assert np.array_equal(grid.scales, np.ldexp(fit(weight, form).scales, power))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_importances_that_are_not_finite_are_refused(bad):
    importance = importances()
    importance[7] = bad
    with pytest.raises(NumericalError, match="column 7 is not finite"):
        fit(weights(), parse_format("q4_0"), importance)


def test_importances_must_be_positive_and_fit():
    importance = importances()
    importance[9] = -1
    with pytest.raises(UsageError, match="column 9 is negative"):
        fit(weights(), parse_format("q4_0"), importance)
    with pytest.raises(UsageError, match=r"shape \(3,\) do not fit"):
        fit(weights(), parse_format("q4_0"), np.ones(3, np.float32))
    with pytest.raises(NumericalError, match="row 1, column 2"):
        weight = weights()
        weight[1, 2] = np.nan
        fit(weight, parse_format("q4_0"))


@pytest.mark.parametrize("name", TWO_LEVELS)
def test_k_quants_encode_without_data(name):
    weight = weights(seed=14)
    form = parse_format(name)
    grid = fit(weight, form)
    assert np.array_equal(encode(weight, form).codes, join(nearest(weight, grid), grid).codes)


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k"])
def test_a_million_weights_take_a_fraction_of_a_second(name):
    weight = np.random.default_rng(15).standard_normal((1024, 1024), np.float32)
    start = time.process_time()
    fit(weight, parse_format(name), np.ones(1024, np.float32))
    # 0.09 to 0.16 s alone on Zen 5: 135M weights in 12 to 22 s. Loops over rows take minutes.
    assert time.process_time() - start < 1.5


@pytest.mark.interop
@pytest.mark.parametrize("name", [*BLOCKS, *TWO_LEVELS])
@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_error_is_at_most_that_of_llama_cpp(name, kind, weighted):
    rng = np.random.default_rng(16)
    weight = rng.standard_normal((64, 512), np.float32)
    if kind == "heavy tails":
        weight = rng.standard_t(4, (64, 512)).astype(np.float32)
    importance = importances() if weighted else None
    theirs = decode(_llama_quantize(weight, name, importance)).astype(np.float64) - weight
    their_error = float((np.square(theirs) * (1 if importance is None else importance)).sum())
    assert error(weight, fit(weight, parse_format(name), importance), importance) <= their_error


def _llama_quantize(weight: np.ndarray, name: str, importance: np.ndarray | None) -> QuantTensor:
    import llama_cpp  # noqa: PLC0415

    (library,) = Path(llama_cpp.__file__).parent.glob("lib/libggml-base.so")
    quantize = ctypes.CDLL(str(library)).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    sizes = [ctypes.c_int64] * 3
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *sizes, ctypes.c_void_p]
    form: BlockSpec = BLOCK_FORMATS[name].spec
    rows, columns = weight.shape
    codes = np.empty((rows, form.row_bytes(columns)), np.uint8)
    given = None if importance is None else importance.ctypes.data
    written = quantize(form.type_id, weight.ctypes.data, codes.ctypes.data, 0, rows, columns, given)
    assert written == codes.nbytes
    return QuantTensor(form, (rows, columns), codes)
