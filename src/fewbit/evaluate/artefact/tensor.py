"""One stored matrix, looked at beside the source's: what no sound quantization leaves behind.

Rounding to the nearest level is never worse than a zero, so what is worse than that over a whole
row, or has lost a group that mattered, was not rounded but damaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UnsupportedError
from fewbit.formats import fp8
from fewbit.formats.distance import pieces, relative
from fewbit.formats.grid import Grid, GridLayout, layout, split
from fewbit.formats.registry import FLOATS, decode
from fewbit.formats.spec import BlockSpec, Fp8Spec, QuantTensor

Floats: TypeAlias = NDArray[np.float32]
Map: TypeAlias = Callable[[Callable[[slice], "_Piece"], Iterable[slice]], Iterable["_Piece"]]
"""The built-in `map`, or that of a pool of threads."""

NEGLIGIBLE = 1e-6
"""Mean square over that of the whole matrix: a group or row of less (a thousandth of the usual
magnitude) may be stored as zeros."""

WORSE_THAN_NOTHING = 1.05
"""Relative error of a row. Zeros have 1, which rounding to a grid with a zero never passes but for
the rounding of scales."""

BLOCK_ROWS = 16
"""Rows whose error is taken together: a head has them several times over."""

FAR = 4.0
"""Times the usual error from which a block of rows, or a matrix, stands out. Of sound matrices in
13 formats (SmolLM2-135M, Qwen2.5-Coder-0.5B) no block of rows had more than 2.3 times the median of
its matrix, and no matrix more than 1.6 times that of its format; the scales of another head make
that ten and more in 8 bits."""

LEAST_FAR = 0.02
"""Relative error below which nothing stands out, whatever the others have."""

_LEAST_BLOCKS = 4

CLIPPED_ERROR = 0.1
"""Relative error from which a group at the ends of its range counts as clipped: a group of equal
values lies at an end and loses nothing."""


@dataclass(frozen=True)
class Places:
    """Rows and columns of a matrix, and the mean square of the source there; arrays [places]."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    squares: NDArray[np.float64]
    width: int
    """Columns of one place."""

    def where(self, kept: NDArray[np.bool_]) -> Places:
        """Return some of the places."""
        return Places(self.rows[kept], self.columns[kept], self.squares[kept], self.width)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.rows)

    def first(self) -> str:
        """Name the first."""
        row, start = int(self.rows[0]), int(self.columns[0])
        if self.width == 1:
            return f"row {row}, column {start}"
        return f"row {row}, columns {start} to {start + self.width - 1}"


@dataclass(frozen=True)
class Suspicion:
    """Places of one kind, of so many."""

    kind: str
    places: Places
    of: int


@dataclass(frozen=True)
class TensorScan:
    """A matrix beside the source's."""

    relative_error: float
    """Of all; NaN where a value is not finite."""
    suspicions: tuple[Suspicion, ...]
    opaque: bool
    """Codes and scales could not be looked at apart."""


@dataclass(frozen=True)
class _Piece:
    """Some rows; kinds of places with how many there are to look at."""

    source_squares: NDArray[np.float64]
    error_squares: NDArray[np.float64]
    found: dict[str, tuple[Places, int]]


def scan_tensor(
    source: QuantTensor, candidate: QuantTensor, *, compared: bool = True, over: Map = map
) -> TensorScan:
    """Look at a matrix.

    Args:
        source: the source's, [rows, columns] in any format.
        candidate: of that shape.
        compared: False where the source was transformed before it was quantized, so that its
            values say nothing but which rows and groups matter.
        over: what maps a function over pieces of rows.
    """
    examine = partial(_examined, source, candidate, compared)
    parts = list(over(examine, pieces(candidate.shape)))
    squares = sum(float(part.source_squares.sum()) for part in parts)
    error = sum(float(part.error_squares.sum()) for part in parts)
    usual = squares / (candidate.shape[0] * candidate.shape[1])
    found = (*_joined(parts, usual), *_uneven(parts, candidate.shape[1], usual))
    return TensorScan(relative(error, squares), found, _is_opaque(candidate))


def values(tensor: QuantTensor) -> Floats:
    """Decode a matrix, float32 [rows, columns]; an FP8 code that is no number is NaN."""
    if isinstance(tensor.spec, Fp8Spec):
        assert tensor.scales is not None
        return fp8.VALUES[tensor.codes] * tensor.scales.astype(np.float32)
    return decode(tensor)


def not_finite(x: Floats, first_row: int = 0) -> Places:
    """Return the values that are NaN or infinite; `first_row` is the number of the first row."""
    rows, columns = np.nonzero(~np.isfinite(x))
    return Places(rows + first_row, columns, np.full(len(rows), np.inf), 1)


def _examined(source: QuantTensor, candidate: QuantTensor, compared: bool, rows: slice) -> _Piece:  # noqa: FBT001
    """Look at some rows of a matrix."""
    stored = candidate.take_rows(rows)
    with np.errstate(all="ignore"):
        one, other = values(source.take_rows(rows)), values(stored)
        squares = np.square(one, dtype=np.float64)
        lost = other - one if compared else np.zeros_like(one)
        errors = np.square(lost, dtype=np.float64)
        found = dict(_whole_rows(squares, errors, other, rows.start))
        found |= _scales_and_codes(stored, squares, errors, rows.start)
    return _Piece(squares.sum(axis=1), errors.sum(axis=1), found)


def _whole_rows(
    squares: NDArray[np.float64], errors: NDArray[np.float64], other: Floats, start: int
) -> Iterator[tuple[str, tuple[Places, int]]]:
    """Look at decoded rows: values that are not finite, dead rows, rows worse than nothing."""
    yield "non-finite", (not_finite(other, start), other.size)
    of_rows, of_errors = squares.sum(axis=1), errors.sum(axis=1)
    lost = {
        "dead-rows": ~other.any(axis=1),
        "error": (of_errors > WORSE_THAN_NOTHING**2 * of_rows) & np.isfinite(of_errors),
    }
    for kind, which in lost.items():
        yield kind, (_row_places(which, of_rows, start, other.shape[1]), len(other))


def _row_places(
    which: NDArray[np.bool_], squares: NDArray[np.float64], start: int, width: int
) -> Places:
    rows = np.flatnonzero(which)
    return Places(rows + start, np.zeros_like(rows), squares[rows] / width, width)


def _scales_and_codes(
    stored: QuantTensor, squares: NDArray[np.float64], errors: NDArray[np.float64], start: int
) -> dict[str, tuple[Places, int]]:
    """Look at scales that are zero or not finite, and at groups whose codes all lie at an end.

    Where columns lie in an order, a place is named by where its codes lie.
    """
    if stored.order is not None:
        order = stored.order
        stored, squares, errors = stored.laid_out, squares[:, order], errors[:, order]
    if not _has_grid(stored):
        scales = stored.scales
        if scales is None:
            return {}
        per_row = np.broadcast_to(scales.astype(np.float32), (len(squares), scales.shape[1]))
        return {"scales": _unset(per_row, squares, start)}
    codes, grid = split(stored)
    flat = grid.scales == 0
    return {
        "scales": _unset(grid.scale, squares, start),
        "clipped": _clipped(codes, grid, squares, errors, start),
        "zeroed": _flat(flat if grid.steps is not None else np.zeros_like(flat), squares, start),
    }


def _flat(flat: NDArray[np.bool_], squares: NDArray[np.float64], start: int) -> tuple[Places, int]:
    """Return the groups whose second-level scale is zero, so that all their weights are equal.

    A search by importance leaves a few such groups where their inputs hardly ever differ from zero.
    """
    width = squares.shape[1] // flat.shape[1]
    rows, groups = np.nonzero(flat)
    mean = squares.reshape(*flat.shape, width)[rows, groups].mean(axis=1)
    return Places(rows + start, groups * width, mean, width), flat.size


def _unset(
    scales: NDArray[np.float32], squares: NDArray[np.float64], start: int
) -> tuple[Places, int]:
    """Return the blocks whose scale is zero or not finite, [rows, blocks] of a row each."""
    width = squares.shape[1] // scales.shape[1]
    rows, blocks = np.nonzero((scales == 0) | ~np.isfinite(scales))
    of_blocks = squares.reshape(*scales.shape, width)[rows, blocks].mean(axis=1)
    broken = ~np.isfinite(scales[rows, blocks])
    mean = np.where(broken, np.inf, of_blocks)
    return Places(rows + start, blocks * width, mean, width), scales.size


def _clipped(
    codes: NDArray[np.uint8],
    grid: Grid,
    squares: NDArray[np.float64],
    errors: NDArray[np.float64],
    start: int,
) -> tuple[Places, int]:
    """Return the groups of which every code lies at an end of the range and much was lost.

    Not those with a scale of zero, whose codes mean nothing, nor those that lost no more than a
    step of the grid: beside one huge weight all others of a group round to the far end.
    """
    form, scales = grid.layout, grid.scales
    grouped = (len(codes), codes.shape[1] // form.group, form.group)
    at_ends = (codes == 0) | (codes == len(form.levels) - 1)
    rows, groups = np.nonzero(at_ends.reshape(grouped).all(axis=2) & (scales != 0))
    of_source = squares.reshape(grouped)[rows, groups].mean(axis=1)
    of_error = errors.reshape(grouped)[rows, groups].mean(axis=1)
    # Rounding errs by half a gap between levels at most, a solver's feedback by little more.
    gap = np.diff(form.levels).max() * np.abs(scales[rows, groups], dtype=np.float64)
    lossy = of_error > np.maximum(CLIPPED_ERROR**2 * of_source, gap**2)
    places = Places(rows + start, groups * form.group, of_source, form.group)
    return places.where(lossy), grouped[0] * grouped[1]


def chance_clipped(form: GridLayout, groups: int) -> float:
    """Return how many groups of so many lie at the ends by chance, at most.

    Rounding leaves a code at one of the two ends no more often than 2 in as many as there are
    levels; with four levels and 16 inputs that is one group in 65,536. Four deviations are added.
    """
    expected = groups * math.pow(2 / len(form.levels), form.group)
    return expected + 4 * math.sqrt(expected)


def _joined(parts: Sequence[_Piece], usual: float) -> Iterator[Suspicion]:
    """Yield the places of each kind in all pieces that are not negligible."""
    for kind in dict.fromkeys(chain.from_iterable(part.found for part in parts)):
        found = [part.found[kind] for part in parts if kind in part.found]
        of = sum(count for _, count in found)
        places = _together([places for places, _ in found])
        counted = places.where(~(places.squares <= NEGLIGIBLE * usual))
        if len(counted):
            yield Suspicion(kind, counted, of)


def _uneven(parts: Sequence[_Piece], columns: int, usual: float) -> Iterator[Suspicion]:
    """Yield the blocks of rows whose relative error is far from that of the others."""
    squares, errors = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("source_squares", "error_squares")
    )
    blocks = len(squares) // BLOCK_ROWS
    whole = slice(0, blocks * BLOCK_ROWS)
    of_source = squares[whole].reshape(blocks, BLOCK_ROWS).sum(axis=1)
    of_error = errors[whole].reshape(blocks, BLOCK_ROWS).sum(axis=1)
    mean = of_source / (BLOCK_ROWS * columns)
    counted = mean > NEGLIGIBLE * usual
    if counted.sum() < _LEAST_BLOCKS:
        return
    found = np.sqrt(np.divide(of_error, of_source, out=np.zeros(blocks), where=counted))
    far = found > max(FAR * float(np.median(found[counted])), LEAST_FAR)
    if far.any():
        places = _row_places(far, mean * columns, 0, columns)
        yield Suspicion("rows", replace(places, rows=places.rows * BLOCK_ROWS), blocks)


def _together(parts: Sequence[Places]) -> Places:
    return Places(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.columns for part in parts]),
        np.concatenate([part.squares for part in parts]),
        parts[0].width,
    )


def _has_grid(tensor: QuantTensor) -> bool:
    if tensor.spec in FLOATS or isinstance(tensor.spec, Fp8Spec):
        return False
    return layout_of(tensor) is not None


def layout_of(tensor: QuantTensor) -> GridLayout | None:
    """Return the grid of a matrix's format; None where it has none with scales per row or group."""
    try:
        return layout(tensor.laid_out.spec, tensor.shape[1])
    except UnsupportedError:
        return None


def _is_opaque(tensor: QuantTensor) -> bool:
    return (
        isinstance(tensor.spec, BlockSpec)
        and tensor.spec not in FLOATS
        and layout_of(tensor) is None
    )
