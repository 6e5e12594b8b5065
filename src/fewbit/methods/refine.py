"""Better codes and scales for a matrix that is already quantized, against the same Hessian.

With errors e = w - q the loss of a row is e H e^T. With all other columns held, column j's best
value is t_j = w_j + sum over k != j of (H_jk / H_jj) e_k, and the best code the one nearest to it:
coordinate descent (as in QuantEase, Behdin et al. 2023, and CDQuant, Nair and Suggala 2024), which
never raises the loss. With all codes of a span of columns held, its scales and offsets enter the
loss as a quadratic form whose minimum is a small linear system for each row; what can be stored
next to that minimum is taken where the loss falls. Spans alternate between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.formats import grid as grids
from fewbit.formats.grid import Grid, Offset
from fewbit.formats.grid.grid import levels_of
from fewbit.formats.spec import QuantTensor
from fewbit.methods.hessian import (
    damped_diagonal,
    damped_hessian,
    mean_diagonal,
    require_gram,
)
from fewbit.methods.statistics import InputStatistics
from fewbit.methods.tiles import RowTiles, Targets, from_tiles, thread_pool, to_tiles

_SPAN = 256
"""Columns whose scales are solved for together and whose targets are computed at once."""
_ROUNDS = 2
"""Sweeps over all columns: the first lowers GPTQ's loss in Q4_0 by 7%, the second by 2%, a third by
another 1% and on other text by nothing."""
_RIDGE = np.float32(1e-6)

_F32 = NDArray[np.float32]


def refine(
    weight: _F32,
    statistics: InputStatistics | None,
    start: QuantTensor,
    *,
    threads: int | None = None,
) -> QuantTensor:
    """Return codes and scales of less loss than those given; rows that gain nothing stay.

    Args:
        weight: float32 [outputs, inputs], finite: what `start` was quantized from.
        statistics: of the layer's inputs, with a Gram matrix.
        start: the weight in a format with a grid, by any method.
        threads: None for all cores that this process may use; the result does not depend on it.

    Returns:
        A tensor in the same format. No row's loss, e H e^T with the damped H in float64, is above
        that of `start`.

    Raises:
        UsageError: no Gram matrix, or one of another width.
        UnsupportedError: the format has no grid.
        NumericalError: the statistics are not finite.
    """
    statistics = require_gram(statistics, "gptq-refined", weight.shape[1])
    codes, grid = grids.split(start)
    curvature = _Curvature.of(statistics)
    tiles = RowTiles(weight, curvature.factor, grid.layout, thread_pool(threads))
    tiles.start_from(codes, grids.values(codes, grid))
    improved = grid
    for _ in range(_ROUNDS):
        improved = _sweep(tiles, curvature, weight, improved)
    del curvature
    change = grids.values(tiles.codes, improved).astype(np.float64) - grids.values(codes, grid)
    before = weight.astype(np.float64) - grids.values(codes, grid)
    # (e - d) H (e - d) - e H e, in float64
    loss = np.einsum("rc,rc->r", change @ damped_hessian(statistics), change - 2 * before)
    better = loss < 0
    return grids.join(
        np.where(better[:, None], tiles.codes, codes), _chosen_rows(better, improved, grid)
    )


@dataclass(frozen=True, eq=False)
class _Curvature:
    """The damped H over its mean diagonal, as coordinate descent wants it."""

    factor: _F32
    """H_jk / H_jj, float32 [inputs, inputs], zero on the diagonal."""
    diagonal: _F32
    """H_jj, float32 [inputs]."""

    @staticmethod
    def of(statistics: InputStatistics) -> _Curvature:
        assert statistics.gram is not None
        diagonal = damped_diagonal(statistics)
        scale = (diagonal * mean_diagonal(statistics)).astype(np.float32)
        factor = statistics.gram / scale[:, None]
        np.fill_diagonal(factor, 0)
        return _Curvature(factor, diagonal.astype(np.float32))

    def within(self, columns: slice) -> _F32:
        """Return H of some columns with each other."""
        part: _F32 = self.factor[columns, columns] * self.diagonal[columns, None]
        np.fill_diagonal(part, self.diagonal[columns])
        return part


def _sweep(tiles: RowTiles, curvature: _Curvature, weight: _F32, grid: Grid) -> Grid:
    """Improve the scales and then the codes of each span in turn; return the grid of all."""
    block, columns = grid.layout.block, weight.shape[1]
    step = max(block, _SPAN // block * block)
    found = []
    for first in range(0, columns, step):
        last = min(first + step, columns)
        targets = tiles.targets(first, last, (0, columns))
        part = grid.take_blocks(slice(first // block, last // block))
        part = _improve_scales(tiles, curvature, weight[:, first:last], part, targets)
        tiles.round(targets, first, part, np.arange(last - first) // grid.layout.group)
        found.append(part)
    return grids.concatenate(found)


def _improve_scales(
    tiles: RowTiles, curvature: _Curvature, weight: _F32, grid: Grid, targets: Targets
) -> Grid:
    """Return a span's grid with better scales in the rows where there are such.

    Errors and targets of the span follow.
    """
    span = slice(targets.first, targets.last)
    codes, errors = tiles.codes_of(span), tiles.errors_of(span)
    slope = (from_tiles(targets.values, tiles.rows) - weight + errors) * curvature.diagonal[span]
    hessian = curvature.within(span)
    tried = grids.storable(grid.form, grid.layout, *_least_loss(grid, codes, slope, hessian))
    change = grids.values(codes, tried) - grids.values(codes, grid)
    better = np.einsum("rc,rc->r", change @ hessian - 2 * slope, change) < 0
    change[~better] = 0
    tiles.set_errors(span, errors - change)
    np.subtract(
        targets.values, to_tiles(change @ curvature.factor[span, span].T), out=targets.values
    )
    return _chosen_rows(better, tried, grid)


def _least_loss(
    grid: Grid, codes: NDArray[np.uint8], slope: _F32, hessian: _F32
) -> tuple[_F32, _F32 | None]:
    """Return the effective scales and offsets of least loss with these codes.

    The loss of changing the values by d is d H d^T - 2 d slope^T, and d is a combination of each
    group's levels (and of ones, where offsets are free), so it is quadratic in their factors.
    """
    rows, count = grid.scales.shape
    levels = levels_of(codes, grid.layout).reshape(rows, count, -1)
    free = grid.layout.offset in (Offset.VALUE, Offset.STEPS)
    if grid.offset_steps is not None and not free:
        levels -= grid.offset_steps[:, :, None]
    matrix, right = _normal_equations(levels, slope.reshape(levels.shape), hessian, free=free)
    # Groups whose levels are all zero have no say; the ridge keeps them where they are.
    ridge = _RIDGE * np.trace(matrix, axis1=1, axis2=2) + np.float32(1e-30)
    matrix += ridge[:, None, None] * np.eye(matrix.shape[1], dtype=np.float32)
    step = np.linalg.solve(matrix, right[:, :, None])[:, :, 0]
    return _trusted(grid, step[:, :count], step[:, count:] if free else None)


def _normal_equations(levels: _F32, slope: _F32, hessian: _F32, *, free: bool) -> tuple[_F32, _F32]:
    """Return the matrix [rows, unknowns, unknowns] and right side of each row's least loss.

    Args:
        levels: float32 [rows, groups, group]: how values move with their group's scale.
        slope: half of how the loss falls when values rise, of the same shape.
        hessian: float32 [columns, columns] of these columns.
        free: whether each group has an offset too; those unknowns follow the scales.
    """
    rows, count, size = levels.shape
    flat = levels.reshape(rows, -1)
    unknowns = 2 * count if free else count
    matrix = np.empty((rows, unknowns, unknowns), np.float32)
    for group in range(count):
        product = levels[:, group] @ hessian[group * size : (group + 1) * size]
        matrix[:, group, :count] = (product * flat).reshape(levels.shape).sum(axis=2)
        if free:
            matrix[:, group, count:] = product.reshape(levels.shape).sum(axis=2)
    right = np.einsum("rgi,rgi->rg", levels, slope)
    if not free:
        return matrix, right
    matrix[:, count:, :count] = matrix[:, :count, count:].transpose(0, 2, 1)
    matrix[:, count:, count:] = hessian.reshape(count, size, count, size).sum(axis=(1, 3))
    return matrix, np.concatenate([right, slope.sum(axis=2)], axis=1)


def _trusted(grid: Grid, step: _F32, offset_step: _F32 | None) -> tuple[_F32, _F32 | None]:
    """Return scales within a factor of two of the old, and offsets within a few steps."""
    scales = grid.scales
    moved = scales + np.clip(step, -np.abs(scales) / 2, np.abs(scales))
    if grid.offsets is None:
        return moved, None
    if offset_step is None:
        assert grid.offset_steps is not None
        return moved, -moved * grid.offset_steps
    reach = 4 * np.abs(scales)
    return moved, grid.offsets + np.clip(offset_step, -reach, reach)


def _chosen_rows(chosen: NDArray[np.bool_], one: Grid, other: Grid) -> Grid:
    """Return the rows of `one` where chosen, else those of `other`."""
    rows = np.arange(len(chosen))
    return grids.stack([one, other]).take_rows(np.where(chosen, rows, rows + len(chosen)))
