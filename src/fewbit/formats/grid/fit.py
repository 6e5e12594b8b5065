"""Scales by search: the grid of least squared error, weighted by importance."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError, UsageError
from fewbit.formats.affine import require_finite
from fewbit.formats.grid import second_level
from fewbit.formats.grid.grid import Grid, stack
from fewbit.formats.grid.layout import GridLayout, Offset, ScaleStorage, layout
from fewbit.formats.grid.search import (
    F32,
    Groups,
    Sums,
    error_at,
    groups_of,
    levels_at,
    regression,
    scan,
    sums_at,
    zero_point,
)
from fewbit.formats.grid.storable import require_storable, rounded
from fewbit.formats.spec import NumberFormat

FLOOR = 1e-6
"""The least importance, as a share of the mean one: a weight that never counted is still rounded
to something near it."""
_PIECE = 1 << 17
"""Weights worked on at once; the half dozen arrays of a step stay in a core's cache."""
_POLISH = 4
"""Rounds of codes and stored scales in turn after the search for a start."""


def fit(
    weight: NDArray[np.float32], form: NumberFormat, importance: NDArray[np.float32] | None = None
) -> Grid:
    """Return the scales for a matrix that leave the least squared error, weighted by importance.

    The error is that of what is stored: scales in float16, steps and zero points as integers.
    Importances are floored at `FLOOR` of their mean, so zeros are harmless; rows whose importances
    are all zero are fitted without.

    Args:
        weight: float32 [rows, columns], finite.
        form: a format with a grid.
        importance: float32 [columns] or [rows, columns], what a squared error counts; None: 1.

    Raises:
        NumericalError: a weight or importance is not finite, or a scale is beyond what the format
            stores.
        UnsupportedError, UsageError: as `layout`; an importance is negative.
    """
    require_finite(weight)
    shape = layout(form, weight.shape[1])
    weights = _floored(importance, weight.shape)
    require_storable(form, shape, weight)
    step = max(1, _PIECE // weight.shape[1])
    pieces = []
    with np.errstate(all="ignore"):
        for start in range(0, weight.shape[0], step):
            rows = slice(start, start + step)
            x = np.ascontiguousarray(weight[rows], np.float32)
            w = np.broadcast_to(weights[rows] if len(weights) > 1 else weights, x.shape)
            fitted = _fit_wide if shape.scale_type is ScaleStorage.F32 else _fit_piece
            pieces.append(fitted(x, w, form, shape))
    return stack(pieces)


def fit_block(
    weight: NDArray[np.float32], form: NumberFormat, importance: NDArray[np.float32] | None = None
) -> Grid:
    """Return the grid of one block of columns, [rows, layout.block], as `fit`.

    A format with one scale a row has one block: its columns are all of them.
    """
    return fit(weight, form, importance)


def _floored(importance: F32 | None, shape: tuple[int, ...]) -> F32:
    """Return positive importances, float32 [1 or rows, columns], about 1 on average."""
    if importance is None:
        return np.ones((1, shape[1]), np.float32)
    given = np.atleast_2d(importance).astype(np.float64)
    if given.shape not in ((1, shape[1]), shape):
        raise UsageError(
            f"Importances of shape {importance.shape} do not fit weights of shape {shape}; give "
            f"[{shape[1]}] or [{shape[0]}, {shape[1]}]."
        )
    if not np.isfinite(given).all():
        column = int(np.argwhere(~np.isfinite(given))[0, 1])
        raise NumericalError(
            f"The importance of column {column} is not finite; collect the statistics again."
        )
    if (given < 0).any():
        column = int(np.argwhere(given < 0)[0, 1])
        raise UsageError(f"The importance of column {column} is negative; it is a mean square.")
    mean = given.mean(axis=1, keepdims=True)
    given = np.where(mean > 0, given / np.where(mean > 0, mean, 1), 1.0)
    floored: F32 = np.maximum(given, FLOOR).astype(np.float32)
    return floored


def _fit_wide(x: F32, w: F32, form: NumberFormat, shape: GridLayout) -> Grid:
    """Fit rows brought near 1 by powers of two: float32 scales reach where squares do not."""
    _, exponents = np.frexp(np.abs(x).max(axis=1, keepdims=True))
    grid = _fit_piece(np.ldexp(x, -exponents), w, form, shape)
    return replace(grid, scale=np.ldexp(grid.scale, exponents))


def _fit_piece(x: F32, w: F32, form: NumberFormat, shape: GridLayout) -> Grid:
    if x.size == shape.group:
        # NumPy sums a lone column in another order than one of many; a twin keeps its bits equal.
        twins = _fit_piece(np.repeat(x, 2, axis=0), np.repeat(w, 2, axis=0), form, shape)
        return twins.take_rows(slice(0, 1))
    groups = groups_of(x, w, shape.group)
    if shape.scale_type is ScaleStorage.E8M0:
        return Grid(form, shape, _powers_of_two(groups, shape).reshape(len(x), -1))
    sums = scan(groups, shape)
    if shape.steps is None:
        return _one_level(groups, sums, len(x), form, shape)
    return _two_levels(groups, sums, len(x), form, shape)


@dataclass(frozen=True, eq=False)
class _Stored:
    """A storable scale of each group and, depending on the format, its offset or zero point."""

    scale: F32
    offset: F32
    zero: F32

    def replaced(self, better: NDArray[np.bool_], other: _Stored) -> _Stored:
        return _Stored(
            np.where(better, other.scale, self.scale),
            np.where(better, other.offset, self.offset),
            np.where(better, other.zero, self.zero),
        )


def _one_level(
    groups: Groups, sums: Sums, rows: int, form: NumberFormat, shape: GridLayout
) -> Grid:
    best: _Stored | None = None
    best_error = np.full_like(sums.w, np.inf)
    for _ in range(_POLISH):
        tried = _store(sums, shape)
        levels = levels_at(groups, tried.scale, tried.offset, shape)
        error = error_at(groups, levels, tried.scale, tried.offset, shape)
        better = error < best_error
        best = tried if best is None else best.replaced(better, tried)
        best_error = np.minimum(error, best_error)
        sums = sums_at(groups, levels, shape, sums.w, sums.wx)
    assert best is not None
    scale, offset, zero = (a.reshape(rows, -1) for a in (best.scale, best.offset, best.zero))
    match shape.offset:
        case Offset.VALUE:
            return Grid(form, shape, scale, offset=offset)
        case Offset.ZERO:
            return Grid(form, shape, scale, offset_steps=zero.astype(np.int16))
        case _:
            return Grid(form, shape, scale)


def _powers_of_two(groups: Groups, shape: GridLayout) -> F32:
    """Return the best of the smallest power of two that clips nothing and the two below it."""
    longest = np.abs(groups.x).max(axis=groups.axis, keepdims=True)
    _, exponent = np.frexp(longest / np.float32(shape.levels[-1]))
    best: F32 = longest
    best_error = np.full_like(longest, np.inf)
    for below in range(3):
        scale = np.ldexp(np.float32(1), np.clip(exponent - below, -128, 127))
        levels = levels_at(groups, scale, np.zeros_like(scale), shape)
        error = error_at(groups, levels, scale, np.zeros_like(scale), shape)
        best = np.where(error < best_error, scale, best)
        best_error = np.minimum(error, best_error)
    return best


def _store(sums: Sums, shape: GridLayout) -> _Stored:
    """Return the storable scale and offset of least squares at fixed codes."""
    scale, offset = regression(sums, shape)
    stored = rounded(shape.scale_type, scale)
    if shape.offset is not Offset.ZERO:
        return _Stored(stored, rounded(shape.scale_type, offset), np.zeros_like(scale))
    zero = zero_point(scale, offset, shape)
    return _Stored(stored, -stored * zero, zero)


def _two_levels(
    groups: Groups, sums: Sums, rows: int, form: NumberFormat, shape: GridLayout
) -> Grid:
    """Alternate between codes and both levels of scales; the best of each block is kept."""
    ratio_of_groups = shape.block // shape.group
    best: second_level.Levels | None = None
    best_error = np.full((sums.w.size // ratio_of_groups, 1), np.inf, np.float32)
    tried = second_level.settle(sums.reshaped(-1, ratio_of_groups), shape)
    for _ in range(_POLISH):
        scale, offset = tried.scale.reshape(sums.w.shape), tried.offset.reshape(sums.w.shape)
        levels = levels_at(groups, scale, offset, shape)
        error = error_at(groups, levels, scale, offset, shape)
        error = error.reshape(-1, ratio_of_groups).sum(axis=1, keepdims=True)
        best = tried if best is None else best.replaced(error < best_error, tried)
        best_error = np.minimum(error, best_error)
        sums = sums_at(groups, levels, shape, sums.w, sums.wx)
        tried = second_level.improved(sums.reshaped(-1, ratio_of_groups), tried, shape)
    assert best is not None
    unit, steps = best.unit.reshape(rows, -1), best.steps.reshape(rows, -1).astype(np.int16)
    if shape.offset is Offset.NONE:
        return Grid(form, shape, unit, steps)
    offset_steps = best.offset_steps.reshape(rows, -1).astype(np.int16)
    return Grid(form, shape, unit, steps, best.offset_unit.reshape(rows, -1), offset_steps)
