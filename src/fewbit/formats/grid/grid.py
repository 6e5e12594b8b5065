"""One matrix's scales as they are stored, and what codes mean on them.

A value is scale * level[code] + offset, in float32 and in the order of operations of each format's
decoder, so that `values` equals decoding bit for bit:

* two levels of scales: scale = round(d * step), offset = -round(dmin * offset step);
* a zero point: value = scale * (level - z), rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.grid.layout import GridLayout, Offset, Ties
from fewbit.formats.spec import NumberFormat

_T = TypeVar("_T", bound=np.generic)

_PIECE = 1 << 17
"""Weights worked on at once: their float32 temporaries stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class Grid:
    """The scales of a matrix [rows, columns], holding only values that its format can store."""

    form: NumberFormat
    layout: GridLayout
    scale: NDArray[np.float32]
    """float32 [rows, columns / block]: first-level scales."""
    steps: NDArray[np.int16] | None = None
    """int16 [rows, columns / group]: second-level scales, where there are two levels."""
    offset: NDArray[np.float32] | None = None
    """float32 [rows, columns / block]: the stored offset (`VALUE`) or its unit (`STEPS`)."""
    offset_steps: NDArray[np.int16] | None = None
    """int16 [rows, columns / group]: the integers of `STEPS` and `ZERO`."""

    @property
    def rows(self) -> int:
        """The rows of the matrix."""
        return int(self.scale.shape[0])

    @property
    def columns(self) -> int:
        """The columns of the matrix."""
        return int(self.scale.shape[1]) * self.layout.block

    @property
    def scales(self) -> NDArray[np.float32]:
        """Effective scales, float32 [rows, columns / group]."""
        if self.steps is None:
            return self.scale
        return self._per_group(self.scale) * self.steps.astype(np.float32)

    @property
    def offsets(self) -> NDArray[np.float32] | None:
        """Effective offsets, float32 [rows, columns / group]; None where the format has none.

        With a zero point it is -scale * z rounded; `values` subtracts before it multiplies.
        """
        match self.layout.offset:
            case Offset.NONE:
                return None
            case Offset.VALUE:
                return self.offset
            case Offset.STEPS:
                assert self.offset is not None and self.offset_steps is not None
                return -(self._per_group(self.offset) * self.offset_steps.astype(np.float32))
            case Offset.ZERO:
                assert self.offset_steps is not None
                return -(self.scale * self.offset_steps.astype(np.float32))

    def take_rows(self, rows: slice | NDArray[np.integer]) -> Grid:
        """Return the grid of some rows; a slice gives views."""
        return Grid(
            self.form,
            self.layout,
            self.scale[rows],
            None if self.steps is None else self.steps[rows],
            None if self.offset is None else self.offset[rows],
            None if self.offset_steps is None else self.offset_steps[rows],
        )

    def take_blocks(self, blocks: slice) -> Grid:
        """Return the grid of a range of blocks (`layout.block` columns each), as views."""
        first, last, _ = blocks.indices(self.scale.shape[1])
        ratio = self.layout.block // self.layout.group
        groups = slice(first * ratio, last * ratio)
        return Grid(
            self.form,
            self.layout,
            self.scale[:, first:last],
            None if self.steps is None else self.steps[:, groups],
            None if self.offset is None else self.offset[:, first:last],
            None if self.offset_steps is None else self.offset_steps[:, groups],
        )

    def _per_group(self, per_block: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.repeat(per_block, self.layout.block // self.layout.group, axis=1)


def concatenate(grids: Sequence[Grid]) -> Grid:
    """Join the grids of neighbouring column ranges of the same rows.

    A format with one scale a row has one block and nothing to join.
    """
    return _joined(grids, axis=1)


def stack(grids: Sequence[Grid]) -> Grid:
    """Join the grids of consecutive rows."""
    return _joined(grids, axis=0)


def values(codes: NDArray[np.uint8], grid: Grid) -> NDArray[np.float32]:
    """Return what codes decode to.

    Args:
        codes: uint8 [rows, columns], places in `grid.layout.levels`.
        grid: of that shape.

    Returns:
        float32 [rows, columns], bit for bit what decoding `join(codes, grid)` gives.
    """
    out = np.empty(codes.shape, np.float32)
    with np.errstate(all="ignore"):
        for rows in row_pieces(codes.shape):
            out[rows] = _values(codes[rows], grid.take_rows(rows))
    return out


def nearest(weight: NDArray[np.float32], grid: Grid) -> NDArray[np.uint8]:
    """Return the code of the level nearest to each weight, uint8 [rows, columns].

    The distance is measured after dividing by the scale in float32; ties go as `layout.ties` says.
    Where the scale is zero every code means the same; the one nearest to level 0 (or the zero
    point) is given.

    Args:
        weight: float32 [rows, columns], finite.
        grid: of that shape.
    """
    out = np.empty(weight.shape, np.uint8)
    with np.errstate(all="ignore"):
        for rows in row_pieces(weight.shape):
            out[rows] = _nearest(weight[rows], grid.take_rows(rows))
    return out


def places(quotients: NDArray[np.float32], layout: GridLayout) -> NDArray[np.uint8]:
    """Return the codes of quotients (value - offset) / scale, uint8 of the same shape.

    The quotients' memory is overwritten.
    """
    if not layout.integer:
        return _table_places(quotients, layout)
    match layout.ties:
        case Ties.EVEN | Ties.INWARD:
            np.rint(quotients, out=quotients)
        case Ties.UP:
            quotients += np.float32(0.5)
            np.floor(quotients, out=quotients)
        case Ties.AWAY:
            rounded = np.floor(np.abs(quotients) + np.float32(0.5))
            np.copysign(rounded, quotients, out=quotients)
    low, high = np.float32(layout.levels[0]), np.float32(layout.levels[-1])
    np.clip(quotients, low, high, out=quotients)
    quotients -= low
    return quotients.astype(np.uint8)


def levels_of(codes: NDArray[np.uint8], layout: GridLayout) -> NDArray[np.float32]:
    """Return the level of each code, float32 of the same shape."""
    if layout.integer:
        return codes.astype(np.float32) + np.float32(layout.levels[0])
    return np.array(layout.levels, np.float32)[codes]


def thresholds(layout: GridLayout) -> NDArray[np.float32]:
    """Return the quotients at which a code gives way to the next, float32 [levels - 1].

    Repeated levels (the two zeros of MXFP4) share a threshold, so the lower one is never chosen.
    """
    levels = np.array(layout.levels, np.float32)
    middles = (levels[1:] + levels[:-1]) / np.float32(2)
    twin = np.flatnonzero(levels[1:] == levels[:-1])
    middles[twin] = middles[twin - 1]
    return middles


def _table_places(quotients: NDArray[np.float32], layout: GridLayout) -> NDArray[np.uint8]:
    codes = np.zeros(quotients.shape, np.uint8)
    for middle in thresholds(layout):
        inward = layout.ties is Ties.INWARD and middle > 0
        codes += quotients > middle if inward else quotients >= middle
    return codes


def _values(codes: NDArray[np.uint8], grid: Grid) -> NDArray[np.float32]:
    groups = levels_of(codes, grid.layout).reshape(grid.rows, -1, grid.layout.group)
    if grid.layout.offset is Offset.ZERO:
        assert grid.offset_steps is not None
        groups -= grid.offset_steps.astype(np.float32)[:, :, None]
    groups *= grid.scales[:, :, None]
    if grid.layout.offset in (Offset.VALUE, Offset.STEPS):
        offsets = grid.offsets
        assert offsets is not None
        groups += offsets[:, :, None]
    return groups.reshape(codes.shape)


def _nearest(weight: NDArray[np.float32], grid: Grid) -> NDArray[np.uint8]:
    groups = weight.reshape(grid.rows, -1, grid.layout.group)
    if grid.layout.offset in (Offset.VALUE, Offset.STEPS):
        offsets = grid.offsets
        assert offsets is not None
        groups = groups - offsets[:, :, None]
    scales = grid.scales[:, :, None]
    quotients = np.divide(groups, scales, where=scales != 0, out=np.zeros_like(groups))
    if grid.layout.offset is Offset.ZERO:
        assert grid.offset_steps is not None
        # Rounded before the zero point is added: a tie goes to the even difference.
        np.rint(quotients, out=quotients)
        quotients += grid.offset_steps.astype(np.float32)[:, :, None]
    return places(quotients, grid.layout).reshape(weight.shape)


def _joined(grids: Sequence[Grid], axis: int) -> Grid:
    first = grids[0]
    assert all(grid.layout == first.layout for grid in grids)

    return Grid(
        first.form,
        first.layout,
        np.concatenate([grid.scale for grid in grids], axis=axis),
        _joined_parts([grid.steps for grid in grids], axis),
        _joined_parts([grid.offset for grid in grids], axis),
        _joined_parts([grid.offset_steps for grid in grids], axis),
    )


def _joined_parts(parts: Sequence[NDArray[_T] | None], axis: int) -> NDArray[_T] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present, axis=axis) if present else None


def row_pieces(shape: tuple[int, ...]) -> list[slice]:
    """Return slices of rows that cover a matrix a cache-sized piece at a time."""
    step = max(1, _PIECE // max(1, shape[1]))
    return [slice(start, start + step) for start in range(0, shape[0], step)]
