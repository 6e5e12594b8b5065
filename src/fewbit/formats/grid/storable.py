"""The storable grid nearest to wanted scales: float16 first levels, integer second ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.formats.grid.grid import Grid
from fewbit.formats.grid.layout import GridLayout, Offset, ScaleStorage
from fewbit.formats.spec import NumberFormat

_F32 = NDArray[np.float32]
_I16 = NDArray[np.int16]

_UNITS = 6
"""Units tried for second-level scales: the largest takes the last step, the one before it, ..."""


def storable(
    form: NumberFormat, layout: GridLayout, scales: _F32, offsets: _F32 | None = None
) -> Grid:
    """Return the grid that a format can store nearest to the effective scales and offsets wanted.

    Where there are two levels, the unit of a block is the one of a few, improved by least squares,
    that leaves the least squared distance. Steps cannot be negative in the formats with minima:
    there a scale whose sign differs from the block's largest becomes zero, and so does an offset.

    Args:
        form: the format.
        layout: `layout(form, columns)`.
        scales: float32 [rows, columns / group], finite.
        offsets: likewise, where the format has offsets, else None.

    Raises:
        NumericalError: a scale or offset is beyond what the format stores; says where.
    """
    assert (offsets is None) == (layout.offset is Offset.NONE)
    if layout.steps is None:
        return _one_level(form, layout, scales, offsets)
    scale, steps = _two_levels(form, layout, scales, layout.steps)
    if offsets is None:
        return Grid(form, layout, scale, steps)
    assert layout.offset_steps is not None
    offset, offset_steps = _two_levels(form, layout, -offsets, layout.offset_steps)
    return Grid(form, layout, scale, steps, offset, offset_steps)


def require_storable(form: NumberFormat, layout: GridLayout, weight: NDArray[np.float32]) -> None:
    """Raise NumericalError where the range of a group is beyond the scales of a format."""
    groups = weight.reshape(weight.shape[0], -1, layout.group)
    low, high = groups.min(axis=2), groups.max(axis=2)
    reach = np.float32(1 if layout.steps is None else max(-layout.steps[0], layout.steps[1]))
    if layout.offset is Offset.NONE:
        longest, outer = np.maximum(-low, high), np.float32(-layout.levels[0])
        stored_scale(form, layout.scale_type, longest / outer / reach)
        return
    if layout.offset is Offset.VALUE:
        stored_scale(form, layout.scale_type, low)
    else:
        low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))
    last = np.float32(layout.levels[-1])
    stored_scale(form, layout.scale_type, (high / last - low / last) / reach)
    if layout.offset is Offset.STEPS:
        stored_scale(form, layout.scale_type, low / reach)


def stored_scale(form: NumberFormat, storage: ScaleStorage, scales: _F32) -> _F32:
    """Return scales, float32 [rows, groups], rounded to the type they are stored in.

    Raises:
        NumericalError: as `storable`.
    """
    stored = rounded(storage, scales)
    beyond = ~np.isfinite(stored)
    if beyond.any():
        row, column = (int(i) for i in np.argwhere(beyond)[0])
        raise NumericalError(
            f"The scale or offset {scales[row, column]} at row {row}, group {column} is beyond "
            f"what {form.name} stores ({storage.value}); rescale the weights or choose a format "
            "with f32 scales."
        )
    return stored


def rounded(storage: ScaleStorage, scales: _F32) -> _F32:
    """Return scales rounded to a storage type: too large for it gives infinity.

    E8M0 takes the nearest power of two, at least 2^-128, whatever the sign.
    """
    with np.errstate(over="ignore", under="ignore"):
        match storage:
            case ScaleStorage.F16:
                return scales.astype(np.float16).astype(np.float32)
            case ScaleStorage.F32:
                return scales
            case ScaleStorage.E8M0:
                exponents = np.rint(np.log2(np.maximum(np.abs(scales), np.float32(2.0**-128))))
                return np.ldexp(np.float32(1), exponents.clip(-128, 127).astype(np.int32))


def _one_level(form: NumberFormat, layout: GridLayout, scales: _F32, offsets: _F32 | None) -> Grid:
    scale = stored_scale(form, layout.scale_type, scales)
    if offsets is None:
        return Grid(form, layout, scale)
    if layout.offset is Offset.VALUE:
        offset = stored_scale(form, layout.scale_type, offsets)
        return Grid(form, layout, scale, offset=offset)
    assert layout.offset_steps is not None
    zeros = np.divide(-offsets, scale, where=scale != 0, out=np.zeros_like(scale))
    np.clip(np.rint(zeros), *layout.offset_steps, out=zeros)
    return Grid(form, layout, scale, offset_steps=zeros.astype(np.int16))


def _two_levels(
    form: NumberFormat, layout: GridLayout, wanted: _F32, steps: tuple[int, int]
) -> tuple[_F32, _I16]:
    """Return float16 units [rows, blocks] and steps [rows, groups] with unit * step near wanted."""
    rows = wanted.shape[0]
    grouped = wanted.reshape(rows, -1, layout.block // layout.group)
    unit, best = None, None
    for candidate in _units(grouped, steps):
        tried = _improved_unit(form, layout, grouped, candidate, steps)
        error = np.square(tried[..., None] * _steps(grouped, tried, steps) - grouped).sum(axis=2)
        if unit is None or best is None:
            unit, best = tried, error
        else:
            unit, best = np.where(error < best, tried, unit), np.minimum(error, best)
    assert unit is not None
    return unit, _steps(grouped, unit, steps).reshape(rows, -1).astype(np.int16)


def _units(grouped: _F32, steps: tuple[int, int]) -> list[_F32]:
    """Return units that give a block's largest value one of the outermost steps."""
    low, high = steps
    largest = np.take_along_axis(grouped, np.abs(grouped).argmax(axis=2, keepdims=True), axis=2)[
        :, :, 0
    ]
    outer = -low if -low > high else high
    sign = -1 if low < 0 else 1
    return [largest / np.float32(sign * (outer - k)) for k in range(_UNITS)]


def _improved_unit(
    form: NumberFormat, layout: GridLayout, grouped: _F32, unit: _F32, steps: tuple[int, int]
) -> _F32:
    """Return the unit of least squares for the steps nearest on `unit`, as stored."""
    integers = _steps(grouped, unit, steps)
    squares = np.square(integers).sum(axis=2)
    products = (integers * grouped).sum(axis=2)
    improved = np.divide(products, squares, where=squares > 0, out=np.zeros_like(products))
    return stored_scale(form, layout.scale_type, improved)


def _steps(grouped: _F32, unit: _F32, steps: tuple[int, int]) -> _F32:
    """Return the nearest steps, as float32 [rows, blocks, groups of a block]."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        quotients = grouped / unit[:, :, None]
    # A unit of zero (or so small that the quotient overflows) means nothing: step 0.
    quotients = np.where(np.isfinite(quotients), quotients, np.float32(0))
    clipped: _F32 = np.clip(np.rint(quotients), *steps)
    return clipped
