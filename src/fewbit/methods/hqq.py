"""Half-quadratic quantization (Badri and Shaji 2023): data-free, for few large errors' sake.

A few weights of a group lie far out; least squares spends the grid on them. A norm with p < 1
lets them be off and fits the rest: minimize sum |w - (s l + o)|^p over codes, s and o. With an
auxiliary e for the errors this is split into steps with closed forms,

    e  <-  shrink(w - (s l + o)),   shrink(u) = sign(u) max(|u| - |u|^(p-1) / beta, 0)
    s, o  <-  regression of w - e on the levels l,   l  <-  the nearest levels

with beta growing. u is in units of the step, so that beta means the same for every matrix. The
paper holds s fixed and moves a real-valued zero point; here both move, since a zero point that has
to be an integer (int*-asym) or is absent has nothing to gain alone, and the iteration starts at the
least squares of `grid.fit`. What a format cannot store is rounded in every round, the errors
compared are those of stored grids, and the best of each block is kept. Rounding to nearest over the
whole range is among them, so in that norm the result is never worse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.affine import require_finite
from fewbit.formats.grid import (
    Grid,
    Offset,
    fit,
    join,
    layout,
    nearest,
    split,
    stack,
    storable,
    values,
)
from fewbit.formats.registry import encode
from fewbit.formats.spec import NumberFormat, QuantTensor

_F32 = NDArray[np.float32]

_T = TypeVar("_T", bound=np.generic)

_PIECE = 1 << 17
"""Weights worked on at once."""


@dataclass(frozen=True)
class HalfQuadratic:
    """The constants of the iteration; p is the paper's, beta is in units of the step."""

    p: float = 0.7
    beta: float = 10.0
    growth: float = 1.1
    rounds: int = 12
    """After 12 rounds the norm falls by less than a thousandth a round."""


def half_quadratic(
    weight: NDArray[np.float32], form: NumberFormat, settings: HalfQuadratic = HalfQuadratic()
) -> QuantTensor:
    """Encode a matrix so that the sum of |error|^p is small, without looking at any data.

    Args:
        weight: float32 [outputs, inputs], finite.
        form: a format with a grid; with zero points or minima it gains most.
        settings: the iteration's constants.

    Raises:
        NumericalError: a weight is not finite, or a scale is beyond the format.
        UnsupportedError, UsageError: as `grid.layout`.
    """
    require_finite(weight)
    layout(form, weight.shape[1])
    step = max(1, _PIECE // weight.shape[1])
    with np.errstate(under="ignore", over="ignore"):
        grid = stack(
            [
                _fit(np.ascontiguousarray(weight[start : start + step]), form, settings)
                for start in range(0, len(weight), step)
            ]
        )
    return join(nearest(weight, grid), grid)


def norm_errors(weight: _F32, decoded: _F32, group: int, p: float) -> _F32:
    """Return the sum of |error|^p of each group, float32 [rows, columns / group]."""
    errors = np.abs(decoded - weight).reshape(len(weight), -1, group)
    powers = np.where(errors > 0, _power(errors, p), np.float32(0))
    sums: _F32 = powers.sum(axis=2)
    return sums


def _fit(weight: _F32, form: NumberFormat, settings: HalfQuadratic) -> Grid:
    _, best = split(encode(weight, form))
    best_error = _error(weight, best, settings)
    tried, beta = fit(weight, form), settings.beta
    for _ in range(settings.rounds + 1):
        error = _error(weight, tried, settings)
        best = _better_blocks(best, tried, error < best_error)
        best_error = np.minimum(error, best_error)
        tried = _moved(weight, tried, beta, settings.p)
        beta *= settings.growth
    return best


def _error(weight: _F32, grid: Grid, settings: HalfQuadratic) -> _F32:
    decoded = values(nearest(weight, grid), grid)
    return norm_errors(weight, decoded, grid.layout.block, settings.p)


def _moved(weight: _F32, grid: Grid, beta: float, p: float) -> Grid:
    """Return the grid of the regression of w - e on the nearest levels, as stored."""
    shape, codes = grid.layout, nearest(weight, grid)
    step = np.repeat(np.abs(grid.scales), shape.group, axis=1)
    errors = weight - values(codes, grid)
    units = np.divide(errors, step, where=step > 0, out=np.zeros_like(weight))
    target = weight - _shrink(units, beta, p) * step
    groups = (len(weight), -1, shape.group)
    levels = np.array(shape.levels, np.float32)[codes].reshape(groups)
    scales, offsets = _regression(target.reshape(groups), levels, grid)
    return storable(grid.form, shape, scales, offsets)


def _shrink(units: _F32, beta: float, p: float) -> _F32:
    """Return sign(u) max(|u| - |u|^(p-1) / beta, 0), float32."""
    size = np.abs(units)
    tiny = size < np.float32(2.0**-40)
    kept = size - _power(np.where(tiny, np.float32(1), size), p - 1) / np.float32(beta)
    return np.where(tiny, np.float32(0), np.copysign(np.maximum(kept, np.float32(0)), units))


def _power(a: _F32, p: float) -> _F32:
    """Return a^p for positive a; exp and log are vectorized where power is not."""
    with np.errstate(divide="ignore"):
        powers: _F32 = np.exp(np.log(a) * np.float32(p))
    return powers


def _regression(target: _F32, levels: _F32, grid: Grid) -> tuple[_F32, _F32 | None]:
    """Return scales and offsets [rows, groups] of least squares, of the kind a format has."""
    shape = grid.layout
    if shape.offset is Offset.NONE:
        return _slope(target, levels, grid.scales), None
    middle, mean = levels.mean(axis=2), target.mean(axis=2)
    scales = _slope(target - mean[..., None], levels - middle[..., None], grid.scales)
    offsets = mean - scales * middle
    if shape.offset is Offset.STEPS:
        return scales, np.minimum(offsets, np.float32(0))
    if shape.offset is Offset.VALUE:
        return scales, offsets
    assert shape.offset_steps is not None
    zero = np.divide(-offsets, scales, where=scales != 0, out=np.zeros_like(scales))
    zero = np.clip(np.rint(zero), *shape.offset_steps)
    scales = _slope(target, levels - zero[..., None], grid.scales)
    return scales, -scales * zero


def _slope(y: _F32, x: _F32, otherwise: _F32) -> _F32:
    """Return sum x y / sum x^2 over the last axis; `otherwise` where all x are 0."""
    squares = np.einsum("rgi,rgi->rg", x, x)
    products = np.einsum("rgi,rgi->rg", x, y)
    slope: _F32 = np.divide(products, squares, where=squares > 0, out=otherwise.copy())
    return slope


def _better_blocks(best: Grid, tried: Grid, better: NDArray[np.bool_]) -> Grid:
    """Return the best grid with the blocks of the other where those are better [rows, blocks]."""
    groups = np.repeat(better, best.layout.block // best.layout.group, axis=1)

    return replace(
        best,
        scale=np.where(better, tried.scale, best.scale),
        steps=_chosen(groups, best.steps, tried.steps),
        offset=_chosen(better, best.offset, tried.offset),
        offset_steps=_chosen(groups, best.offset_steps, tried.offset_steps),
    )


def _chosen(
    better: NDArray[np.bool_], old: NDArray[_T] | None, new: NDArray[_T] | None
) -> NDArray[_T] | None:
    return None if old is None or new is None else np.where(better, new, old)
