"""Refinement column by column in float64: the slow truth of `methods.refine`."""

from __future__ import annotations

import gptq_oracle
import numpy as np

from fewbit.formats import grid as grids
from fewbit.formats.grid import Grid, Offset
from fewbit.formats.grid.grid import levels_of


def refine(
    weight: np.ndarray, hessian: np.ndarray, codes: np.ndarray, grid: Grid, rounds: int
) -> tuple[np.ndarray, Grid]:
    """Codes and grid after sweeps of scales in closed form and of codes one by one."""
    codes, columns, block = codes.copy(), weight.shape[1], grid.layout.block
    error = weight.astype(np.float64) - grids.values(codes, grid)
    step = max(block, 256 // block * block)
    for _ in range(rounds):
        parts = []
        for first in range(0, columns, step):
            span = slice(first, min(first + step, columns))
            part = grid.take_blocks(slice(first // block, span.stop // block))
            part = better_scales(
                error @ hessian[:, span], hessian[span, span], codes[:, span], part
            )
            error[:, span] = weight[:, span] - grids.values(codes[:, span], part).astype(np.float64)
            for column in range(span.start, span.stop):
                target = weight[:, column] - error[:, column]
                target += error @ hessian[column] / hessian[column, column]
                group = (column - first) // grid.layout.group
                codes[:, column], value = best_codes(target, part, group)
                error[:, column] = weight[:, column] - value
            parts.append(part)
        grid = grids.concatenate(parts)
    return codes, grid


def best_codes(target: np.ndarray, grid: Grid, group: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest codes of one column, and their values."""
    scale = grid.scales[:, group].astype(np.float64)
    offsets = grid.offsets
    offset = np.zeros(len(scale)) if offsets is None else offsets[:, group].astype(np.float64)
    levels = np.array(grid.layout.levels, np.float64)
    return gptq_oracle.nearest_column(target, scale, offset, levels)[:2]


def better_scales(slope: np.ndarray, curvature: np.ndarray, codes: np.ndarray, part: Grid) -> Grid:
    """The grid of a span: the storable one next to the least loss, in the rows that gain by it."""
    scales, offsets = least_loss(part, codes, slope, curvature)
    single = None if offsets is None else offsets.astype(np.float32)
    tried = grids.storable(part.form, part.layout, scales.astype(np.float32), single)
    change = grids.values(codes, tried).astype(np.float64) - grids.values(codes, part)
    loss = np.einsum("rc,rc->r", change @ curvature - 2 * slope, change)
    rows = np.arange(len(loss))
    return grids.stack([tried, part]).take_rows(np.where(loss < 0, rows, rows + len(rows)))


def least_loss(
    grid: Grid, codes: np.ndarray, slope: np.ndarray, curvature: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Scales and offsets of a span, float64 [rows, groups], each row's system solved alone."""
    count, group = grid.scales.shape[1], grid.layout.group
    levels = levels_of(codes, grid.layout).astype(np.float64).reshape(len(codes), count, group)
    free = grid.layout.offset in (Offset.VALUE, Offset.STEPS)
    if grid.layout.offset is Offset.ZERO:
        levels -= grid.offset_steps[:, :, None]
    scales = grid.scales.astype(np.float64)
    offsets = None if grid.offsets is None else grid.offsets.astype(np.float64)
    ones = np.kron(np.eye(count), np.ones((group, 1)))
    for row in range(len(codes)):
        basis = ones * levels[row].reshape(-1, 1)
        if free:
            basis = np.concatenate([basis, ones], axis=1)
        system = basis.T @ curvature @ basis
        system += (1e-6 * np.trace(system) + 1e-30) * np.eye(len(system))
        step = np.linalg.solve(system, basis.T @ slope[row])
        size = np.abs(scales[row])
        scales[row] += np.clip(step[:count], -size / 2, size)
        if offsets is not None and free:
            offsets[row] += np.clip(step[count:], -4 * size, 4 * size)
    if grid.layout.offset is Offset.ZERO:
        offsets = -scales * grid.offset_steps
    return scales, offsets
