"""Affine integers: q = clip(round_half_even(x / s) + z), x' = s (q - z), in float32.

A scale covers the range of its group: s = absmax / (2^bits - 1) * 2 when symmetric, so that the
codes' whole range is used and both ends stay within half a step, and s = (max - min) / (2^bits - 1)
over the range widened to hold zero when asymmetric. Codes are computed with the scale as stored, so
storing it costs step size and nothing else: |x - x'| <= s / 2 plus what the range lost, at most
2^-11 of it with fp16 scales. Rules at the edges:

* an all-zero group has s = 0 and decodes to exact zeros;
* a scale below the smallest normal number is rounded up where the nearest would not reach the
  range, so a group that is not zero never loses its scale or part of its range;
* a scale whose range the scale type cannot hold is refused, and so is a value that is not finite.

An order of columns comes with a file; encoding makes none.

Codes are stored as q - spec.low, unsigned, so a symmetric code has the offset 2^(bits-1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError, UsageError
from fewbit.formats.pack import pack, unpack
from fewbit.formats.spec import QuantSpec, QuantTensor, ScaleType


def encode(x: NDArray[np.float32], spec: QuantSpec) -> QuantTensor:
    """Encode a matrix with scales that cover each group's range.

    Args:
        x: float32 [rows, columns], finite.
        spec: the format; its groups must divide the columns.

    Raises:
        NumericalError: a value is not finite, or a group's range exceeds its scale type.
        UsageError: the group size does not divide the columns, or the format has an order of them.
    """
    if spec.ordered:
        raise UsageError(
            f"Nothing is encoded as {spec.name}: an order of columns comes with a file whose "
            f"method chose it; take {spec.laid_out.name}."
        )
    scales, zeros = fit(x, spec)
    return encode_with(x, spec, scales, zeros)


def fit(
    x: NDArray[np.float32], spec: QuantSpec, clip: float = 1.0
) -> tuple[NDArray[np.floating], NDArray[np.uint8] | None]:
    """Return the scales, as stored, and the zero points that cover `clip` times each group's range.

    Both have `spec.scale_shape`; zero points are None when symmetric. Raises as `encode`.
    """
    require_finite(x)
    low, high = ranges(x, spec)
    low, high = low * np.float32(clip), high * np.float32(clip)
    levels = spec.high - spec.low
    if spec.symmetric:
        return _steps(np.maximum(-low, high), levels / 2, spec), None
    with np.errstate(over="ignore"):
        scales = _steps(high - low, levels, spec)
    zeros = np.rint(_divide(-low, scales.astype(np.float32))).clip(spec.low, spec.high)
    return scales, zeros.astype(np.uint8)


def encode_with(
    x: NDArray[np.float32],
    spec: QuantSpec,
    scales: NDArray[np.floating],
    zeros: NDArray[np.uint8] | None,
) -> QuantTensor:
    """Encode a finite matrix with given scales (as stored) and zero points, in `scale_shape`.

    A code of a group whose scale is zero is the zero point.
    """
    rows, columns = x.shape
    codes = _round(x, spec, scales, zeros) - np.float32(spec.low)
    packed = pack(codes.astype(np.uint8).reshape(rows, columns), spec.bits)
    return QuantTensor(spec, (rows, columns), packed, scales, zeros)


def round_trip(
    x: NDArray[np.float32],
    spec: QuantSpec,
    scales: NDArray[np.floating],
    zeros: NDArray[np.uint8] | None,
) -> NDArray[np.float32]:
    """Return what decoding `encode_with(x, spec, scales, zeros)` gives, without packing."""
    return _value(_round(x, spec, scales, zeros), scales, zeros).reshape(x.shape)


def decode(tensor: QuantTensor) -> NDArray[np.float32]:
    """Return s (q - z), float32 [rows, columns]; the product is rounded once."""
    if tensor.order is not None:
        values = np.empty(tensor.shape, np.float32)
        values[:, tensor.order] = decode(tensor.laid_out)
        return values
    scales = tensor.scales
    assert scales is not None
    codes = integers(tensor).astype(np.float32).reshape(tensor.shape[0], scales.shape[1], -1)
    return _value(codes, scales, tensor.zeros).reshape(tensor.shape)


def integers(tensor: QuantTensor) -> NDArray[np.int16]:
    """Return the codes q as they lie, int16 [rows, columns], in [spec.low, spec.high]."""
    assert isinstance(tensor.spec, QuantSpec)
    codes = unpack(tensor.codes, tensor.spec.bits, tensor.shape[1])
    signed: NDArray[np.int16] = codes.astype(np.int16) + np.int16(tensor.spec.low)
    return signed


def require_finite(x: NDArray[np.float32], first_row: int = 0) -> None:
    """Raise NumericalError at the first element of a matrix that is NaN or infinite.

    `first_row` is the number of the matrix's first row, where it is a piece of a larger one.
    """
    finite = np.isfinite(x)
    if finite.all():
        return
    row, column = (int(i) for i in np.argwhere(~finite)[0])
    raise NumericalError(
        f"The value at row {first_row + row}, column {column} is {x[row, column]}; "
        "a tensor must be finite to be quantized."
    )


def ranges(
    x: NDArray[np.float32], spec: QuantSpec
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return each group's minimum and maximum, widened to hold zero, in `scale_shape`."""
    if 0 in x.shape:
        raise UsageError(
            f"A matrix of shape {x.shape} has nothing to quantize; "
            "give at least one row and one column."
        )
    scale_rows, scale_columns = spec.scale_shape((x.shape[0], x.shape[1]))
    groups = x.reshape(x.shape[0], scale_columns, -1)
    low, high = groups.min(axis=2), groups.max(axis=2)
    if scale_rows == 1:
        low, high = low.min(axis=0, keepdims=True), high.max(axis=0, keepdims=True)
    zero = np.float32(0)
    return np.minimum(low, zero), np.maximum(high, zero)


def _round(
    x: NDArray[np.float32],
    spec: QuantSpec,
    scales: NDArray[np.floating],
    zeros: NDArray[np.uint8] | None,
) -> NDArray[np.float32]:
    """Return the codes as float32 [rows, groups of a row, elements of a group]."""
    groups = x.reshape(x.shape[0], scales.shape[1], -1)
    codes = _divide(groups, scales.astype(np.float32)[:, :, None])
    np.rint(codes, out=codes)
    if zeros is not None:
        codes += zeros.astype(np.float32)[:, :, None]
    return codes.clip(spec.low, spec.high, out=codes)


def _value(
    codes: NDArray[np.float32],
    scales: NDArray[np.floating],
    zeros: NDArray[np.uint8] | None,
) -> NDArray[np.float32]:
    """Return s (q - z) in the shape of the codes, in their memory."""
    if zeros is not None:
        codes -= zeros.astype(np.float32)[:, :, None]
    codes *= scales.astype(np.float32)[:, :, None]
    return codes


def _steps(span: NDArray[np.float32], levels: float, spec: QuantSpec) -> NDArray[np.floating]:
    """Return span / levels in the type scales are stored in.

    A subnormal result that would not reach the span is rounded up; what the type cannot hold is
    refused.
    """
    kind = np.float16 if spec.scale_type is ScaleType.F16 else np.float32
    exact: NDArray[np.float32] = np.divide(span, np.float32(levels))
    with np.errstate(over="ignore", under="ignore"):
        stored: NDArray[np.floating] = exact.astype(kind)
        reach = stored.astype(np.float32) * np.float32(1 << spec.bits)
    _require_reach(reach, exact, spec)
    short = stored.astype(np.float64) * levels < span
    lowered = short & (exact < float(np.finfo(kind).smallest_normal))
    return np.where(lowered, np.nextafter(stored, kind(np.inf)), stored)


def _require_reach(
    reach: NDArray[np.float32], scales: NDArray[np.float32], spec: QuantSpec
) -> None:
    beyond = ~np.isfinite(reach)
    if beyond.any():
        row, group = (int(i) for i in np.argwhere(beyond)[0])
        raise NumericalError(
            f"The scale of {spec.name} at row {row}, group {group} would be {scales[row, group]}, "
            f"beyond what {spec.scale_type.value} holds; store the scales as f32 or rescale the "
            "weights."
        )


def _divide(x: NDArray[np.float32], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return x / s in float32, and 0 where s is 0."""
    quotient = np.zeros(np.broadcast_shapes(x.shape, scales.shape), np.float32)
    return np.divide(x, scales, out=quotient, where=scales != 0)
