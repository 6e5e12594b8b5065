from __future__ import annotations

import dataclasses

import gptq_oracle
import numpy as np
import pytest
from solver_cases import layer, objective, row_objectives, statistics_of

from fewbit._native import (
    advance_targets,
    available_isas,
    round_columns,
    search_block,
    search_scales,
)
from fewbit.errors import NumericalError, UnsupportedError, UsageError
from fewbit.formats import grid as grids
from fewbit.formats.registry import decode, parse_format
from fewbit.methods import gptq as module
from fewbit.methods.gptq import block_order, gptq
from fewbit.methods.hessian import DAMPING, SHRINKAGE
from fewbit.methods.tiles import RowTiles, native_shape, thread_pool

FORMATS = [
    *(f"int{bits}-g32" for bits in range(2, 9)),
    *(f"int{bits}-g64-asym" for bits in (2, 3, 4, 8)),
    "int4-row",
    "int8-row-asym",
    "int8-row-f32",
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4"),
]
COLUMNS = 256


def nearest(weight: np.ndarray, name: str):
    grid = grids.fit(weight, parse_format(name))
    return grids.join(grids.nearest(weight, grid), grid)


@pytest.mark.parametrize("name", FORMATS)
def test_codes_are_those_of_the_oracle(name: str) -> None:
    weight, statistics = layer(66, COLUMNS)
    form = parse_format(name)
    solved = gptq(weight, statistics, form).tensor
    codes, grid = grids.split(solved)
    order = block_order(statistics.gram.diagonal(), grid.layout.block)
    hessian = gptq_oracle.damped(statistics.gram, DAMPING, SHRINKAGE)
    expected, _, margins = gptq_oracle.solve(weight, hessian, form, order, grid)
    # A target is a chain of 256 float32 multiply-adds whose sum is a few steps at most: 256 * 2^-24
    # of that is 1e-4 steps. Behind a code that fell the other way the row's targets differ, so
    # rows are compared up to their first near tie.
    place = np.empty(COLUMNS, np.int64)
    place[order] = np.arange(COLUMNS)
    close = np.where(margins < 1e-3, place, COLUMNS)
    before = place[None, :] < close.min(axis=1, keepdims=True)
    assert before.mean() > 0.03
    levels = np.array(grid.layout.levels)  # two codes of MXFP4 are zero
    np.testing.assert_array_equal(levels[codes[before]], levels[expected[before]])


@pytest.mark.parametrize("name", FORMATS)
def test_scales_are_fitted_where_the_oracle_fits_them(name: str) -> None:
    weight, statistics = layer(66, COLUMNS, seed=1)
    form = parse_format(name)
    solved = gptq(weight, statistics, form).tensor
    order = block_order(statistics.gram.diagonal(), grids.layout(form, COLUMNS).block)
    hessian = gptq_oracle.damped(statistics.gram, DAMPING, SHRINKAGE)
    codes, grid, _ = gptq_oracle.solve(weight, hessian, form, order)
    expected = row_objectives(weight, grids.join(codes, grid), statistics)
    # One near tie that falls the other way gives the row another solution, as good on average:
    # rows differ at random, and their mean by 1% only beyond the error of a mean over 66 rows.
    ratios = np.log(row_objectives(weight, solved, statistics) / expected)
    assert abs(ratios.mean()) < 0.01 + 3 * ratios.std() / np.sqrt(len(ratios))
    assert ratios.std() < 0.3


@pytest.mark.parametrize("name", ["int4-g32", "int3-row", "q4_k", "iq4_nl"])
def test_weights_change_and_the_error_falls(name: str) -> None:
    weight, statistics = layer(96, COLUMNS, seed=2)
    start = nearest(weight, name)
    solved = gptq(weight, statistics, parse_format(name)).tensor
    assert (decode(solved) != decode(start)).any(axis=1).all()
    assert objective(weight, solved, statistics) < 0.7 * objective(weight, start, statistics)


@pytest.mark.parametrize("name", ["int4-g32", "int4-row", "q2_k"])
def test_bits_do_not_depend_on_threads(name: str) -> None:
    weight, statistics = layer(200, COLUMNS, seed=3)
    one, two, three = (
        gptq(weight, statistics, parse_format(name), threads=threads).tensor.codes
        for threads in (1, 2, 3)
    )
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("name", ["int4-g32", "int4-row", "q4_k"])
def test_a_row_does_not_depend_on_the_rows_beside_it(name: str) -> None:
    weight, statistics = layer(150, COLUMNS, seed=4)
    form = parse_format(name)
    whole = gptq(weight, statistics, form).tensor
    rows = np.array([149, 3, 77, 64, 63])
    some = gptq(weight[rows], statistics, form).tensor
    np.testing.assert_array_equal(whole.take_rows(rows).codes, some.codes)


def test_idle_columns_are_rounded_to_nearest_and_said() -> None:
    weight, statistics = layer(40, COLUMNS, seed=5)
    idle = np.arange(64, 96)
    for values in (statistics.squares, statistics.largest, statistics.absolute):
        values[idle] = 0
    statistics.gram[idle] = 0
    statistics.gram[:, idle] = 0
    solved = gptq(weight, statistics, parse_format("int4-g32"))
    assert solved.remarks == (
        "32 of 256 inputs were never activated in calibration; their columns are rounded to "
        "nearest.",
    )
    codes, grid = grids.split(solved.tensor)
    np.testing.assert_array_equal(codes[:, idle], grids.nearest(weight, grid)[:, idle])


def test_inputs_that_were_all_zero_leave_rounding_to_nearest() -> None:
    weight = layer(40, COLUMNS)[0]
    solved = gptq(weight, statistics_of(np.zeros((10, COLUMNS), np.float32)), parse_format("q4_0"))
    codes, grid = grids.split(solved.tensor)
    np.testing.assert_array_equal(codes, grids.nearest(weight, grid))


def test_damping_is_raised_and_said_where_the_hessian_is_indefinite() -> None:
    weight, statistics = layer(20, COLUMNS, seed=6)
    mean = statistics.gram.diagonal().mean()
    statistics.gram[0, 1] += 3 * mean
    statistics.gram[1, 0] += 3 * mean
    solved = gptq(weight, statistics, parse_format("int4-g32"))
    assert len(solved.remarks) == 1
    assert "damping was raised from 0.01 to 10 of the mean diagonal" in solved.remarks[0]
    assert np.isfinite(decode(solved.tensor)).all()


def test_what_no_damping_helps_is_refused() -> None:
    weight, statistics = layer(20, COLUMNS, seed=6)
    statistics.gram[0, 1] = statistics.gram[1, 0] = 1e7 * statistics.gram.diagonal().mean()
    with pytest.raises(NumericalError, match=r"stays indefinite .* collect the statistics again"):
        gptq(weight, statistics, parse_format("int4-g32"))


def test_rows_of_zeros_stay_zero() -> None:
    weight, statistics = layer(10, COLUMNS, seed=7)
    weight[4] = 0
    for name in ("int4-g32", "q6_k", "q4_k", "int4-row"):
        assert not decode(gptq(weight, statistics, parse_format(name)).tensor)[4].any()


def test_the_gram_matrix_is_asked_for_by_name() -> None:
    weight, statistics = layer(4, COLUMNS)
    form = parse_format("int4-g32")
    with pytest.raises(UsageError, match=r"gptq needs the Gram matrix .* has no statistics"):
        gptq(weight, None, form)
    with pytest.raises(UsageError, match="magnitudes only"):
        gptq(weight, dataclasses.replace(statistics, gram=None), form)
    with pytest.raises(UsageError, match="256 inputs and the weight has 128"):
        gptq(weight[:, :128], statistics, form)


def test_bad_input_is_refused() -> None:
    weight, statistics = layer(4, COLUMNS)
    with pytest.raises(UnsupportedError, match="bf16 has no grid"):
        gptq(weight, statistics, parse_format("bf16"))
    with pytest.raises(UsageError, match="do not divide"):
        gptq(weight, statistics, parse_format("int4-g96"))
    statistics.gram[7, 7] = np.nan
    with pytest.raises(NumericalError, match="at input 7"):
        gptq(weight, statistics, parse_format("int4-g32"))
    weight[2, 5] = np.inf
    with pytest.raises(NumericalError, match="row 2, column 5"):
        gptq(weight, layer(4, COLUMNS)[1], parse_format("int4-g32"))


@pytest.mark.parametrize("name", ["int3-g32", "int4-row", "q4_0", "q4_1", "q5_1", "q8_0"])
def test_the_native_search_finds_scales_as_good_as_the_formats_own(name: str) -> None:
    weight, statistics = layer(70, COLUMNS, seed=8)
    form = parse_format(name)
    shape = grids.layout(form, COLUMNS)
    part = np.ascontiguousarray(weight[:, : shape.block])
    cost = statistics.squares[: shape.block].astype(np.float32)
    tiles = RowTiles(part, np.zeros((shape.block,) * 2, np.float32), shape, thread_pool(1))
    found = tiles.search(tiles.targets(0, shape.block), 0, cost, form, shape)
    own = grids.fit_block(part, form, cost)
    errors = [
        (cost * (part - grids.values(grids.nearest(part, grid), grid)) ** 2.0).sum()
        for grid in (found, own)
    ]
    # Both try the same starts; the formats' own search then also knows which float16 it rounds to:
    # within 2^-11 of a scale, up to 2^-11 * 127 steps for the largest codes of 8 bits.
    assert errors[0] < 1.03 * errors[1]


BLOCKS = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"]
POOL = thread_pool(1)


def block_of(name: str, seed: int):
    """Tiles that hold a block's columns in another order, what they cost, and where each lies."""
    weight, statistics = layer(70, 512, seed=seed)
    form = parse_format(name)
    shape = grids.layout(form, 512)
    part = np.ascontiguousarray(weight[:, : shape.block])
    cost = statistics.squares[: shape.block].astype(np.float32)
    inside = np.random.default_rng(seed).permutation(shape.block)
    tiles = RowTiles(part[:, inside], np.zeros((shape.block,) * 2, np.float32), shape, POOL)
    return part, cost, np.argsort(inside), form, shape, tiles


@pytest.mark.parametrize("name", BLOCKS)
def test_the_native_search_of_blocks_finds_grids_as_good_as_the_formats_own(name: str) -> None:
    part, cost, places, form, shape, tiles = block_of(name, 10)
    found = tiles.search_block(tiles.targets(0, shape.block), 0, places, cost, form)
    own = grids.fit_block(part, form, cost)
    assert grids.join(grids.nearest(part, found), found).spec == form
    errors = np.array(
        [
            (cost * (part - grids.values(grids.nearest(part, grid), grid)) ** 2.0).sum(axis=1)
            for grid in (found, own)
        ]
    )
    # The same starts in the same order: rows differ where two starts promise the same but for
    # rounding of float32 sums, and then are about as good.
    ratios = np.log(errors[0] / errors[1])
    assert abs(ratios.mean()) < 1e-3 + 3 * ratios.std() / np.sqrt(len(ratios))
    assert (np.abs(ratios) < 1e-5).mean() > 0.6


@pytest.mark.parametrize("isa", [isa for isa in available_isas() if isa != "portable"])
@pytest.mark.parametrize("name", ["q2_k", "q6_k", "iq4_xs"])
def test_the_search_of_blocks_gives_the_same_bits_everywhere(isa: str, name: str) -> None:
    _, cost, places, _, shape, tiles = block_of(name, 11)
    results = [
        search_block(
            POOL,
            native_shape(shape),
            tiles.weights,
            0,
            places=places.astype(np.int32),
            importance=cost,
            isa=each,
        )
        for each in (isa, "portable")
    ]
    for one, other in zip(*results, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)


def test_columns_of_other_groups_are_seen() -> None:
    part, cost, places, form, shape, tiles = block_of("q4_k", 10)
    own = grids.fit_block(part, form, cost)
    wrong = np.roll(places, 7)
    found = tiles.search_block(tiles.targets(0, shape.block), 0, wrong, cost, form)
    errors = [
        (cost * (part - grids.values(grids.nearest(part, grid), grid)) ** 2.0).sum()
        for grid in (found, own)
    ]
    assert errors[0] > 1.05 * errors[1]


def test_a_unit_beyond_float16_is_refused() -> None:
    weight, statistics = layer(4, 256, seed=12)
    weight[2, 7] = 1e9
    with pytest.raises(NumericalError, match="beyond what q4_k stores"):
        gptq(weight, statistics, parse_format("q4_k"))


@pytest.mark.parametrize("isa", available_isas())
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    rng = np.random.default_rng(9)
    pool = thread_pool(1)
    weights, targets = (rng.normal(size=(2, 50, 64)).astype(np.float32) for _ in range(2))
    factor = np.tril(rng.normal(size=(50, 50)), -1).astype(np.float32)

    def results(isa: str) -> list[np.ndarray]:
        moved, errors = targets.copy(), np.zeros_like(weights)
        codes = np.zeros(weights.shape, np.uint8)
        advance_targets(pool, factor, weights, moved, 0, 3, 50, isa)
        scales, offsets = search_scales(
            pool, moved, 5, importance=np.ones(7, np.float32), low=0, high=15, shifts=True, isa=isa
        )
        for integers in (np.arange(16), np.arange(16) ** 2):
            levels = integers.astype(np.float32)
            table = levels[15] > 15
            middles = (levels[1:] + levels[:-1]) / 2 if table else None
            round_columns(
                pool,
                factor=factor,
                weights=weights,
                errors=errors,
                targets=moved,
                codes=codes,
                scales=scales,
                offsets=offsets,
                groups=np.zeros(41, np.int32),
                origin=0,
                first=4,
                levels=levels,
                midpoints=middles,
                isa=isa,
            )
        return [moved, errors, codes, scales, offsets]

    for one, other in zip(results(isa), results("portable"), strict=True):
        np.testing.assert_array_equal(one, other)


def _wrong_sign(tiles: RowTiles) -> None:
    tiles.factor = -tiles.factor


def _wrong_columns(tiles: RowTiles) -> None:
    tiles.factor = np.roll(tiles.factor, 1, axis=0)


@pytest.mark.parametrize("bug", [_wrong_sign, _wrong_columns])
def test_a_planted_bug_differs_from_the_oracle(bug, monkeypatch: pytest.MonkeyPatch) -> None:
    class Planted(RowTiles):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            bug(self)

    monkeypatch.setattr(module, "RowTiles", Planted)
    with pytest.raises(AssertionError):
        test_codes_are_those_of_the_oracle("int4-g32")


def test_scales_left_in_the_order_of_rounding_differ_from_the_oracle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    join = grids.join

    def unordered(codes: np.ndarray, grid: grids.Grid) -> object:
        blocks = [grid.take_blocks(slice(b, b + 1)) for b in range(grid.scale.shape[1])]
        return join(codes, grids.concatenate(blocks[1:] + blocks[:1]))

    monkeypatch.setattr(module.grids, "join", unordered)
    weight, statistics = layer(66, COLUMNS, seed=1)
    solved = gptq(weight, statistics, parse_format("int4-g32")).tensor
    monkeypatch.undo()
    right = gptq(weight, statistics, parse_format("int4-g32")).tensor
    assert objective(weight, solved, statistics) > 1.01 * objective(weight, right, statistics)
