"""GPTQ (Frantar et al. 2023) for every format with a grid.

Columns are rounded one after the other, each towards a target that makes up for the errors of those
before it (`hessian`). Blocks of columns go by descending activation, and so do the columns of a
block: early columns have most others left to make up for them, so those whose error costs most come
first ("act-order"). Blocks stay whole, so a block's scales are fitted when its turn comes, on the
targets that its columns have then. A format with one scale a row has one block: its scales are
fitted first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit._native import ThreadPool
from fewbit.formats import grid as grids
from fewbit.formats.affine import require_finite
from fewbit.formats.grid import Grid, GridLayout
from fewbit.formats.spec import NumberFormat
from fewbit.methods.hessian import Factor, factorize, require_gram
from fewbit.methods.refine import refined
from fewbit.methods.solution import Solution
from fewbit.methods.statistics import InputStatistics
from fewbit.methods.tiles import RowTiles, from_tiles, searches, searches_block, thread_pool

_SPAN = 256
"""Columns whose targets take the errors of all columns before them at once."""


def gptq(
    weight: NDArray[np.float32],
    statistics: InputStatistics | None,
    form: NumberFormat,
    *,
    threads: int | None = None,
) -> Solution:
    """Round a weight so that the error of the layer's outputs on its inputs is small.

    Args:
        weight: float32 [outputs, inputs], finite.
        statistics: of the layer's inputs, with a Gram matrix.
        form: a format with a grid.
        threads: None for all cores that this process may use; the result does not depend on it.

    Raises:
        UsageError: no Gram matrix, one of another width, or groups that do not divide the inputs.
        UnsupportedError: the format has no grid.
        NumericalError: weights or statistics are not finite.
    """
    statistics = require_gram(statistics, "gptq", weight.shape[1])
    codes, grid, factor = _solved(weight, statistics, form, thread_pool(threads))
    return Solution(grids.join(codes, grid), factor.remarks, factor.damping)


def gptq_refined(
    weight: NDArray[np.float32],
    statistics: InputStatistics | None,
    form: NumberFormat,
    *,
    threads: int | None = None,
) -> Solution:
    """Solve by GPTQ, then lower the same loss further by `refine`; arguments as `gptq`.

    No row's loss is above that of GPTQ.
    """
    statistics = require_gram(statistics, "gptq-refined", weight.shape[1])
    pool = thread_pool(threads)
    codes, grid, factor = _solved(weight, statistics, form, pool)
    codes, grid = refined(weight, statistics, codes, grid, pool)
    return Solution(grids.join(codes, grid), factor.remarks, factor.damping)


def _solved(
    weight: NDArray[np.float32], statistics: InputStatistics, form: NumberFormat, pool: ThreadPool
) -> tuple[NDArray[np.uint8], Grid, Factor]:
    """Return codes, uint8 [outputs, inputs], their grid, and the factor they were found with."""
    layout = grids.layout(form, weight.shape[1])
    require_finite(weight)
    assert statistics.gram is not None
    order = block_order(statistics.gram.diagonal(), layout.block)
    factor = statistics.derived(
        ("factor", layout.block), lambda: factorize(statistics, order, pool)
    )
    tiles = RowTiles(np.take(weight, order, axis=1), factor.feedback, layout, pool)
    grid = _round_blocks(tiles, factor, order, form, layout)
    return np.take(tiles.codes, np.argsort(order), axis=1), grid, factor


def block_order(diagonal: NDArray[np.floating], block: int) -> NDArray[np.int64]:
    """Return the columns by blocks of descending sum, descending within each, int64 [columns]."""
    blocks = diagonal.reshape(-1, block)
    inside = np.argsort(-blocks, axis=1, kind="stable")
    columns = inside + block * np.arange(len(blocks))[:, None]
    return columns[np.argsort(-blocks.sum(axis=1), kind="stable")].ravel()


def _round_blocks(
    tiles: RowTiles,
    factor: Factor,
    order: NDArray[np.int64],
    form: NumberFormat,
    layout: GridLayout,
) -> Grid:
    """Fit and round block after block; return the scales of all, columns in natural order."""
    block = layout.block
    step = max(block, _SPAN // block * block)
    found: dict[int, Grid] = {}
    for first in range(0, len(order), step):
        targets = tiles.targets(first, min(first + step, len(order)), (0, first))
        for start in range(targets.first, targets.last, block):
            number = int(order[start]) // block
            inside = order[start : start + block] - number * block
            cost = factor.variance[start : start + block]
            if searches(layout):
                found[number] = tiles.search(targets, start, cost, form, layout)
            elif searches_block(layout):
                places = np.argsort(inside)
                found[number] = tiles.search_block(targets, start, places, cost[places], form)
            else:
                here = from_tiles(targets.columns(start, start + block), tiles.rows)
                found[number] = _fit_block(here, cost, inside, form)
            tiles.round(targets, start, found[number], inside // layout.group)
    return grids.concatenate([found[number] for number in range(len(found))])


def _fit_block(
    targets: NDArray[np.float32],
    cost: NDArray[np.float32],
    inside: NDArray[np.int64],
    form: NumberFormat,
) -> Grid:
    """Fit the scales of a block whose columns lie at `inside` in natural order."""
    natural, importance = np.empty_like(targets), np.empty_like(cost)
    natural[:, inside] = targets
    importance[inside] = cost
    return grids.fit_block(natural, form, importance)
