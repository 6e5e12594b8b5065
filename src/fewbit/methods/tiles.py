"""Rows in tiles of 64, as the native loops of GPTQ and of coordinate descent want them.

Lanes are rows: a tile is a matrix [columns, 64], and what is done to a row is the same whatever
rows lie beside it. Rows beyond the last are zero.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fewbit._native import (
    GridShape,
    ThreadPool,
    advance_targets,
    round_columns,
    rounding_tile_rows,
    search_block,
    search_scales,
)
from fewbit.formats import grid as grids
from fewbit.formats.grid import Grid, GridLayout, Offset, ScaleStorage
from fewbit.formats.grid.fit import FLOOR
from fewbit.formats.grid.grid import thresholds
from fewbit.formats.grid.storable import stored_scale
from fewbit.formats.spec import NumberFormat

_T = TypeVar("_T", bound=np.generic)


def to_tiles(matrix: NDArray[_T]) -> NDArray[_T]:
    """Return a matrix [rows, columns] as tiles [tiles, columns, 64] of the same type."""
    rows, columns = matrix.shape
    whole = rows // rounding_tile_rows
    tiles = np.zeros((-(-rows // rounding_tile_rows), columns, rounding_tile_rows), matrix.dtype)
    cut = whole * rounding_tile_rows
    tiles[:whole] = matrix[:cut].reshape(whole, rounding_tile_rows, columns).transpose(0, 2, 1)
    if cut < rows:
        tiles[whole, :, : rows - cut] = matrix[cut:].T
    return tiles


def from_tiles(tiles: NDArray[_T], rows: int) -> NDArray[_T]:
    """Return tiles [tiles, columns, 64] as a matrix [rows, columns]."""
    return tiles.transpose(0, 2, 1).reshape(-1, tiles.shape[1])[:rows]


def thread_pool(threads: int | None) -> ThreadPool:
    """Return a pool of so many threads; None for one on each core that this process may use."""
    if threads is None:
        usable = getattr(os, "sched_getaffinity", None)
        threads = len(usable(0)) if usable else os.cpu_count() or 1
    return ThreadPool(threads)


def searches(layout: GridLayout) -> bool:
    """Return whether the native search knows a layout: integers with one level of free scales."""
    free = layout.scale_type is not ScaleStorage.E8M0 and layout.offset is not Offset.ZERO
    return layout.integer and layout.steps is None and free


def searches_block(layout: GridLayout) -> bool:
    """Return whether the native search of blocks does: two levels of scales, or a table."""
    plain = layout.scale_type is ScaleStorage.F16 and layout.offset in (Offset.NONE, Offset.STEPS)
    return plain and (layout.steps is not None or not layout.integer)


def native_shape(layout: GridLayout) -> GridShape:
    """Return a layout as native solvers take it."""
    low, high = layout.steps or (0, 0)
    offset_low, offset_high = layout.offset_steps or (0, 0)
    return GridShape(
        levels=layout.levels,
        midpoints=() if layout.integer else thresholds(layout).tolist(),
        group=layout.group,
        block=layout.block,
        scale_type=layout.scale_type.value,
        offset=layout.offset.value,
        steps=(low, high),
        offset_steps=(offset_low, offset_high),
    )


@dataclass(frozen=True, eq=False)
class Targets:
    """What the columns first..last are rounded to, float32 tiles [tiles, last - first, 64]."""

    first: int
    values: NDArray[np.float32]

    @property
    def last(self) -> int:
        """The column behind the last."""
        return self.first + int(self.values.shape[1])

    def columns(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the targets of some of the columns, as a view."""
        return self.values[:, first - self.first : last - self.first]


class RowTiles:
    """A weight that is being rounded: errors and codes so far, columns in the order of a factor.

    `factor`, float32 [columns, columns]: row j says how much of each column's error is added to
    column j's target (see native/src/solvers/rounding.h).
    """

    def __init__(
        self,
        weight: NDArray[np.float32],
        factor: NDArray[np.float32],
        layout: GridLayout,
        pool: ThreadPool,
    ) -> None:
        self.rows = weight.shape[0]
        self._layout = layout
        self.factor = factor
        self.weights = to_tiles(weight)
        self.errors = np.zeros_like(self.weights)
        self._codes = np.zeros(self.weights.shape, np.uint8)
        self._levels = np.array(layout.levels, np.float32)
        self._midpoints = None if layout.integer else thresholds(layout)
        self._pool = pool

    def targets(self, first: int, last: int, *sources: tuple[int, int]) -> Targets:
        """Return the weights of a span of columns plus the errors of the columns in `sources`."""
        targets = Targets(first, self.weights[:, first:last].copy())
        for start, stop in sources:
            advance_targets(
                self._pool, self.factor, self.errors, targets.values, first, start, stop
            )
        return targets

    def round(self, targets: Targets, first: int, grid: Grid, groups: NDArray[np.integer]) -> None:
        """Round columns of a span in ascending order, carrying each one's error to later targets.

        Args:
            targets: of the span; those of later columns are updated.
            first: the first column to round.
            grid: the scales of these columns.
            groups: [columns to round], whose scale in `grid` each has.
        """
        offsets = grid.offsets
        round_columns(
            self._pool,
            factor=self.factor,
            weights=self.weights,
            errors=self.errors,
            targets=targets.values,
            codes=self._codes,
            scales=to_tiles(grid.scales),
            offsets=None if offsets is None else to_tiles(offsets),
            groups=groups.astype(np.int32),
            origin=targets.first,
            first=first,
            levels=self._levels,
            midpoints=self._midpoints,
        )

    def search(
        self,
        targets: Targets,
        first: int,
        importance: NDArray[np.float32],
        form: NumberFormat,
        layout: GridLayout,
    ) -> Grid:
        """Return the grid of one group of targets with the least error, as `grid.fit_block`.

        Args:
            targets: of a span.
            first: the first column of the group, its columns in any order.
            importance: float32 [columns], what a squared error counts.
            form: a format whose layout `searches`.
            layout: its layout.
        """
        scales, offsets = search_scales(
            self._pool,
            targets.values,
            first - targets.first,
            importance=_floored(importance),
            low=layout.levels[0],
            high=layout.levels[-1],
            shifts=layout.offset is Offset.VALUE,
        )
        return grids.storable(
            form,
            layout,
            from_tiles(scales, self.rows),
            None if layout.offset is Offset.NONE else from_tiles(offsets, self.rows),
        )

    def search_block(
        self,
        targets: Targets,
        first: int,
        places: NDArray[np.integer],
        importance: NDArray[np.float32],
        form: NumberFormat,
    ) -> Grid:
        """Return the grid of one block of targets with the least error, as `grid.fit_block`.

        Args:
            targets: of a span.
            first: the first column of the block.
            places: [columns], where each column of the block lies behind the first.
            importance: float32 [columns], what a squared error counts, in the order of `places`.
            form: the format; its layout is one that `searches_block`.

        Raises:
            NumericalError: a unit is beyond what the format stores.
        """
        layout = self._layout
        parts = search_block(
            self._pool,
            native_shape(layout),
            targets.values,
            first - targets.first,
            places=places.astype(np.int32),
            importance=_floored(importance),
        )
        scale, steps, offset, offset_steps = (
            None if part is None else from_tiles(part, self.rows) for part in parts
        )
        assert scale is not None
        stored_scale(form, layout.scale_type, scale)
        if offset is not None:
            stored_scale(form, layout.scale_type, offset)
        return Grid(form, layout, scale, _integers(steps), offset, _integers(offset_steps))

    @property
    def codes(self) -> NDArray[np.uint8]:
        """The codes so far, uint8 [rows, columns] in the factor's order."""
        return from_tiles(self._codes, self.rows)


def _floored(importance: NDArray[np.float32]) -> NDArray[np.float32]:
    floored: NDArray[np.float32] = np.maximum(importance, importance.mean() * np.float32(FLOOR))
    return floored


def _integers(steps: NDArray[np.float32] | None) -> NDArray[np.int16] | None:
    return None if steps is None else steps.astype(np.int16)
