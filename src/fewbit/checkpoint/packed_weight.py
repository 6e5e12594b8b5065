"""Weights that another tool packed, in our formats.

Integer codes become a `QuantSpec` whose kernels run them; where groups follow an order of the
columns ("act-order"), codes are moved so that groups are runs, and the tensor keeps the order. What
no kernel reads (groups of unequal size or of no multiple of 32 inputs, rows that are no multiple of
32, scales beyond fp16) is decoded: to f16 where its scales are fp16, as the runtimes of such files
do, otherwise to f32, exactly. The note of its `TensorInfo` says so, as it does where scales are
rounded to fp16, as kernels have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.errors import NumericalError
from fewbit.formats.pack import take_columns, unpack
from fewbit.formats.registry import F16, F32, encode, encoded_bytes
from fewbit.formats.spec import BlockSpec, Granularity, NumberFormat, QuantSpec, QuantTensor
from fewbit.records.kernels import Activations
from fewbit.runtime.pack import obstacle

_HALF_ULP = 2.0**-11
"""The largest relative error of rounding to a normal fp16 number."""


@dataclass(frozen=True)
class PackedWeight:
    """A weight made from several stored tensors."""

    info: TensorInfo
    """Of what `make` gives."""
    parts: tuple[str, ...]
    """The stored tensors that it is made from."""
    make: Callable[[], QuantTensor]


@dataclass(frozen=True, kw_only=True)
class IntegerWeight:
    """A matrix of integers as another tool stores it; its arrays are read when they are asked for.

    A value is scale * (code - zero), with scale and zero of the code's row and group.
    """

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, int]
    """[outputs, inputs]."""
    bits: int
    groups: int
    """Scales of a row."""
    codes: Callable[[], NDArray[np.uint8]]
    """uint8 [outputs, ceil(inputs * bits / 8)], packed by `pack`."""
    scales: Callable[[], NDArray[np.floating]]
    """Floats [outputs, groups]."""
    zeros: Callable[[], NDArray[np.uint8]] | None = None
    """uint8 [outputs, groups]; None where all are 2^(bits-1)."""
    group_of: NDArray[np.integer] | None = None
    """The group of each input; None where groups are runs of equal length."""
    activations: Activations = Activations.BF16
    input_scale: float | None = None
    notes: tuple[str, ...] = ()


def integer_weight(weight: IntegerWeight) -> PackedWeight:
    """Return an integer matrix in the format that holds it, or decoded where no kernel reads that.

    Raises:
        NumericalError: a scale is NaN or infinite.
    """
    spec = _spec(weight)
    scales = weight.scales()
    _require_finite(weight.name, scales)
    reason = _no_kernel(weight, spec)
    if reason is not None:
        return _decoded(weight, reason, F16 if scales.dtype == np.float16 else F32)
    assert spec is not None
    rounding = scale_rounding(scales)
    if rounding is None:
        return _decoded(weight, "its scales exceed fp16", F32)
    info = TensorInfo(
        weight.name,
        spec,
        weight.shape,
        encoded_bytes(spec, weight.shape),
        weight.activations,
        weight.input_scale,
        "; ".join(filter(None, (*weight.notes, rounding))),
        _order(weight) if spec.ordered else None,
    )
    return PackedWeight(info, weight.parts, lambda: _as_stored(weight, spec, info.order))


def scale_rounding(scales: NDArray[np.floating]) -> str | None:
    """Say what keeping scales in fp16 costs: nothing (""), rounding, or None where it cannot be."""
    if scales.dtype == np.float16:
        return ""
    with np.errstate(over="ignore", under="ignore"):
        stored = scales.astype(np.float16).astype(np.float32)
    if np.array_equal(stored, scales):
        return ""
    error = np.abs(stored - scales)
    if not (error <= np.float32(_HALF_ULP) * np.abs(scales)).all():
        return None
    return f"its {scales.dtype} scales are rounded to fp16 (by at most 2^-11 of each)"


def float_info(name: str, form: BlockSpec, shape: tuple[int, int], note: str) -> TensorInfo:
    """Describe a weight that is read as floats; `note` says why."""
    return TensorInfo(name, form, shape, encoded_bytes(form, shape), note=note)


def decoded_weight(
    info: TensorInfo, parts: tuple[str, ...], values: Callable[[], NDArray[np.float32]]
) -> PackedWeight:
    """Return a weight that is read as floats."""
    form = info.format
    return PackedWeight(info, parts, lambda: encode(values(), form))


def checked_groups(
    found: NDArray[Any], groups: int, bad: Callable[[str], Exception]
) -> NDArray[np.integer] | None:
    """Return the group of each input where it says more than runs do.

    Args:
        found: integers [inputs], as stored.
        groups: how many there are.
        bad: gives the error for a problem in words.

    Raises:
        BadFileError: a group that is not there.
    """
    outside = (found < 0) | (found >= groups)
    if outside.any():
        column = int(np.argmax(outside))
        raise bad(f"puts input {column} into group {found[column]} of {groups}")
    columns = len(found)
    if columns % groups == 0 and np.array_equal(found, np.arange(columns) // (columns // groups)):
        return None
    return found


def _spec(weight: IntegerWeight) -> QuantSpec | None:
    """Return the format whose groups are the weight's, or None where none has such groups."""
    columns, group_of = weight.shape[1], weight.group_of
    if columns % weight.groups:
        return None
    size = columns // weight.groups
    if group_of is not None and (np.bincount(group_of, minlength=weight.groups) != size).any():
        return None
    symmetric = weight.zeros is None
    if weight.groups == 1:
        return QuantSpec(weight.bits, Granularity.ROW, symmetric=symmetric)
    ordered = group_of is not None
    return QuantSpec(weight.bits, Granularity.GROUP, size, symmetric, ordered=ordered)


def _order(weight: IntegerWeight) -> NDArray[np.int32]:
    """Return the columns by their groups, in a group ascending."""
    assert weight.group_of is not None
    return np.argsort(weight.group_of, kind="stable").astype(np.int32)


def _no_kernel(weight: IntegerWeight, spec: NumberFormat | None) -> str | None:
    if spec is None:
        return "its groups are not equally many inputs each"
    outline = QuantTensor(spec, weight.shape, np.empty((weight.shape[0], 0), np.uint8))
    reason = obstacle(outline)
    return None if reason is None else f"no kernel runs {spec.name} as {reason}"


def _require_finite(name: str, scales: NDArray[np.floating]) -> None:
    finite = np.isfinite(scales)
    if not finite.all():
        row, group = (int(i) for i in np.argwhere(~finite)[0])
        raise NumericalError(
            f"The scale of {name} at row {row}, group {group} is {scales[row, group]}; the weights "
            "are damaged, fetch them again."
        )


def _as_stored(
    weight: IntegerWeight, spec: QuantSpec, order: NDArray[np.int32] | None
) -> QuantTensor:
    codes = weight.codes()
    if order is not None:
        codes = take_columns(codes, weight.bits, order)
    with np.errstate(under="ignore"):
        scales = np.ascontiguousarray(weight.scales()).astype(np.float16, copy=False)
    zeros = None if weight.zeros is None else np.ascontiguousarray(weight.zeros())
    return QuantTensor(spec, weight.shape, codes, scales, zeros, order)


def _decoded(weight: IntegerWeight, reason: str, form: BlockSpec) -> PackedWeight:
    def values() -> NDArray[np.float32]:
        return _values(weight)

    notes = (*weight.notes, f"{reason}, so it is decoded to {form.name}")
    info = float_info(weight.name, form, weight.shape, "; ".join(notes))
    return decoded_weight(info, weight.parts, values)


def _values(weight: IntegerWeight) -> NDArray[np.float32]:
    """Return scale * (code - zero), float32 [outputs, inputs]; the product is rounded once."""
    columns = weight.shape[1]
    group_of = weight.group_of
    if group_of is None:
        group_of = np.arange(columns) // -(-columns // weight.groups)
    codes = unpack(weight.codes(), weight.bits, columns).astype(np.float32)
    zeros = np.float32(1 << (weight.bits - 1))
    codes -= zeros if weight.zeros is None else weight.zeros().astype(np.float32)[:, group_of]
    codes *= weight.scales().astype(np.float32)[:, group_of]
    return codes
