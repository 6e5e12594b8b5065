"""Scales by search: the grid of least squared error, weighted by importance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.grid.grid import Grid
from fewbit.formats.grid.layout import GridLayout, Offset, layout
from fewbit.formats.grid.storable import storable
from fewbit.formats.spec import NumberFormat


def fit(
    weight: NDArray[np.float32], form: NumberFormat, importance: NDArray[np.float32] | None = None
) -> Grid:
    """Return the scales for a matrix that leave the least squared error, weighted by importance.

    Args:
        weight: float32 [rows, columns], finite.
        form: a format with a grid.
        importance: float32 [columns] or [rows, columns], what a squared error counts; None: 1.

    Raises:
        NumericalError: a weight is not finite, or a scale is beyond what the format stores.
        UnsupportedError, UsageError: as `layout`.
    """
    shape = layout(form, weight.shape[1])
    return storable(form, shape, *_covering(weight, shape))


def fit_block(
    weight: NDArray[np.float32], form: NumberFormat, importance: NDArray[np.float32] | None = None
) -> Grid:
    """Return the grid of one block of columns, [rows, layout.block], as `fit`."""
    return fit(weight, form, importance)


def _covering(
    weight: NDArray[np.float32], shape: GridLayout
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return scales and offsets that cover each group's range, widened to hold zero."""
    groups = weight.reshape(weight.shape[0], -1, shape.group)
    low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
    if shape.offset is not Offset.NONE:
        return (high - low) / np.float32(shape.levels[-1] - shape.levels[0]), low
    longest = np.where(high > -low, high, low)
    return longest / np.float32(shape.levels[0]), None
