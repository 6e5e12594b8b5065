"""GPTQ as the paper has it, column by column in float64: the slow truth of `methods.gptq`."""

from __future__ import annotations

import numpy as np

from fewbit.formats import grid as grids
from fewbit.formats.grid import Grid
from fewbit.formats.spec import NumberFormat


def damped(gram: np.ndarray, damping: float, shrinkage: float) -> np.ndarray:
    """H over its mean diagonal, its diagonal raised by parts of the mean and of itself."""
    h = gram.astype(np.float64)
    h /= h.diagonal().mean()
    return h + damping * np.eye(len(h)) + shrinkage * np.diag(h.diagonal())


def inverse_factor(h: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The upper factor U of the paper, H^-1 = U^T U, of the permuted H."""
    h = h[np.ix_(order, order)]
    return np.linalg.cholesky(np.linalg.inv(h)).T


def nearest_column(target: np.ndarray, scale: np.ndarray, offset: np.ndarray, levels: np.ndarray):
    """Codes of a column, their values, and how far the second nearest level is, in steps."""
    values = scale[:, None] * levels[None, :] + offset[:, None]
    distance = np.abs(target[:, None] - values)
    codes = distance.argmin(axis=1)
    rows = np.arange(len(codes))
    value = values[rows, codes]
    others = np.where(values == value[:, None], np.inf, distance).min(axis=1)
    step = np.maximum(np.abs(scale), 1e-30)
    return codes, value, (others - distance[rows, codes]) / step


def solve(
    weight: np.ndarray,
    h: np.ndarray,
    form: NumberFormat,
    order: np.ndarray,
    grid: Grid | None = None,
) -> tuple[np.ndarray, Grid, np.ndarray]:
    """Codes, grid and margins (steps to a tie) of every weight, in natural order of columns.

    With `grid` its scales are taken as they are; otherwise each block is fitted on the weights as
    they are when its first column comes.
    """
    rows, columns = weight.shape
    layout = grids.layout(form, columns)
    u = inverse_factor(h, order)
    w = weight.astype(np.float64)[:, order].copy()
    cost = 1 / u.diagonal() ** 2
    levels = np.array(layout.levels, np.float64)
    codes = np.zeros(weight.shape, np.uint8)
    margins = np.zeros(weight.shape)
    found: dict[int, Grid] = {}
    for j, column in enumerate(order):
        block = int(column) // layout.block
        if block not in found:
            assert j % layout.block == 0
            here = slice(j, j + layout.block)
            inside = order[here] - block * layout.block
            found[block] = (
                _block_grid(w[:, here], cost[here], form, inside)
                if grid is None
                else grid.take_blocks(slice(block, block + 1))
            )
        local = (int(column) - block * layout.block) // layout.group
        scale = found[block].scales[:, local].astype(np.float64)
        offsets = found[block].offsets
        offset = np.zeros(rows) if offsets is None else offsets[:, local].astype(np.float64)
        codes[:, column], value, margins[:, column] = nearest_column(w[:, j], scale, offset, levels)
        w[:, j:] -= np.outer((w[:, j] - value) / u[j, j], u[j, j:])
    return codes, grids.concatenate([found[b] for b in range(len(found))]), margins


def _block_grid(w: np.ndarray, cost: np.ndarray, form: NumberFormat, inside: np.ndarray) -> Grid:
    natural = np.empty(w.shape, np.float32)
    natural[:, inside] = w
    importance = np.empty(len(cost), np.float32)
    importance[inside] = cost
    return grids.fit_block(natural, form, importance)
