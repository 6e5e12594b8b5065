"""From one integer format to another that has all of its values: codes move, nothing is rounded.

A value is scale * level[code] + offset, so a format holds another's values wherever its levels
include the other's, its groups divide the other's groups and its scales are stored as finely. Q4_0
holds int4 with groups of 64 in that way, Q5_0 int4 with zero points (whose codes less the zero
point lie in -15 to 15), and Q8_0 the table of IQ4_NL.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import FewbitError, NumericalError
from fewbit.formats.grid import Grid, GridLayout, Offset, ScaleStorage, join, layout, split
from fewbit.formats.registry import F32, FLOATS, decode, encode
from fewbit.formats.spec import Granularity, NumberFormat, QuantSpec, QuantTensor, is_ordered

_SCALE_ORDER = (ScaleStorage.F16, ScaleStorage.F32)


def holds(form: NumberFormat, other: NumberFormat, columns: int) -> bool:
    """Return whether `form` stores every matrix in `other` with these columns value for value.

    A float holds narrower floats only: integers turned into floats are no longer in a format of
    their kind. What depends on a tensor's values (an fp16 scale beyond the range of another type)
    counts as not held. An order of columns is held by formats with an order alone.
    """
    if form == other:
        return True
    if is_ordered(form) and is_ordered(other):
        return holds(form.laid_out, other.laid_out, columns)
    if form in FLOATS or other in FLOATS:
        return form == F32 and other in FLOATS
    pair = _layouts(form, other, columns)
    return pair is not None and _same_codes(*pair) and _scales_fit(*pair)


def keeps_codes(form: NumberFormat, other: NumberFormat, columns: int) -> bool:
    """Return whether only scales are rounded on the way from `other` to `form`."""
    if is_ordered(form) and is_ordered(other):
        return keeps_codes(form.laid_out, other.laid_out, columns)
    pair = _layouts(form, other, columns)
    return pair is not None and _same_codes(*pair)


def recode(tensor: QuantTensor, form: NumberFormat) -> QuantTensor:
    """Return a tensor in another format that keeps its codes; see `holds` and `keeps_codes`.

    Args:
        tensor: [rows, columns].
        form: for which `holds` or `keeps_codes` is true. Scales are rounded to nearest where it
            stores them in fewer bits.

    Raises:
        NumericalError: a scale is beyond the range of the other format's.
    """
    if tensor.spec == form:
        return tensor
    if is_ordered(form) and tensor.order is not None:
        return recode(tensor.laid_out, form.laid_out).in_order(tensor.order)
    if form in FLOATS:
        return encode(decode(tensor), form)
    codes, grid = split(_per_row(tensor))
    target = layout(form, tensor.shape[1])
    repeats = grid.layout.group // target.group
    zeros = _zeros(grid, target)
    moved = Grid(
        form,
        target,
        _rounded(np.repeat(grid.scale, repeats, axis=1), target),
        offset=None if grid.offset is None else np.repeat(grid.offset, repeats, axis=1),
        offset_steps=None if zeros is None else np.repeat(zeros, repeats, axis=1),
    )
    return join(_moved_codes(codes, grid, target), moved)


def _layouts(
    form: NumberFormat, other: NumberFormat, columns: int
) -> tuple[GridLayout, GridLayout] | None:
    """Return the grids of both, where both have one level of scales per row or group."""
    try:
        pair = layout(form, columns), layout(_row_format(other), columns)
    except FewbitError:
        return None
    return pair if all(grid.steps is None for grid in pair) else None


def _row_format(form: NumberFormat) -> NumberFormat:
    if isinstance(form, QuantSpec) and form.granularity is Granularity.TENSOR:
        return replace(form, granularity=Granularity.ROW)
    return form


def _per_row(tensor: QuantTensor) -> QuantTensor:
    """Return a tensor with one scale for all as one with that scale for each row."""
    spec = _row_format(tensor.spec)
    if spec == tensor.spec:
        return tensor
    shape = (tensor.shape[0], 1)
    assert tensor.scales is not None
    scales = np.broadcast_to(tensor.scales, shape)
    zeros = None if tensor.zeros is None else np.broadcast_to(tensor.zeros, shape)
    return QuantTensor(spec, tensor.shape, tensor.codes, scales, zeros)


def _same_codes(form: GridLayout, other: GridLayout) -> bool:
    if other.group % form.group:
        return False
    match form.offset, other.offset:
        case (Offset.NONE, Offset.NONE) | (Offset.VALUE, Offset.VALUE):
            return set(other.levels) <= set(form.levels)
        case Offset.NONE, Offset.ZERO:
            reach = other.levels[-1]
            return {-reach, reach} <= set(form.levels) and form.integer
        case Offset.ZERO, Offset.ZERO:
            return other.levels == form.levels
        case Offset.ZERO, Offset.NONE:
            return other.integer and len(other.levels) <= len(form.levels)
    return False


def _scales_fit(form: GridLayout, other: GridLayout) -> bool:
    if other.scale_type not in _SCALE_ORDER or form.scale_type not in _SCALE_ORDER:
        return form.scale_type is other.scale_type
    return _SCALE_ORDER.index(form.scale_type) >= _SCALE_ORDER.index(other.scale_type)


def _zeros(grid: Grid, target: GridLayout) -> NDArray[np.int16] | None:
    if target.offset is not Offset.ZERO:
        return None
    if grid.offset_steps is not None:
        return grid.offset_steps
    return np.full(grid.scale.shape, -int(grid.layout.levels[0]), np.int16)


def _moved_codes(codes: NDArray[np.uint8], grid: Grid, target: GridLayout) -> NDArray[np.uint8]:
    """Return the places of the same values in the target's levels."""
    source = grid.layout
    if target.offset is Offset.ZERO:
        return codes
    if source.offset is Offset.ZERO:
        assert grid.offset_steps is not None
        per_input = np.repeat(grid.offset_steps, source.group, axis=1)
        return (codes - per_input - int(target.levels[0])).astype(np.uint8)
    places = np.searchsorted(np.array(target.levels), np.array(source.levels)).astype(np.uint8)
    return places[codes]


def _rounded(scale: NDArray[np.float32], target: GridLayout) -> NDArray[np.float32]:
    if target.scale_type is not ScaleStorage.F16:
        return scale
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16).astype(np.float32)
    if not np.isfinite(half).all():
        raise NumericalError(
            "A scale is beyond the range of fp16 (65,504), in which the other format stores it; "
            "choose one with float32 scales, or floats."
        )
    return half
