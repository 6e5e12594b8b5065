"""Matrices to number formats and back, for arrays of one's own."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.errors import UsageError
from fewbit.formats import registry
from fewbit.formats.spec import BlockSpec, Fp8Spec, NumberFormat, QuantSpec, QuantTensor


def encode(x: ArrayLike, form: NumberFormat | str) -> QuantTensor:
    """Encode a matrix by rounding to nearest.

    Args:
        x: numbers, [rows, columns], computed with in float32.
        form: a format, or its name, such as `int4-g32`.

    Raises:
        UsageError: no matrix of numbers, or columns that the format's groups do not divide.
        UnsupportedError: the format has no encoder, or there is none of that name.
        NumericalError: a value is not finite, or beyond the format.
    """
    known = registry.parse_format(form) if isinstance(form, str) else form
    if not isinstance(known, QuantSpec | BlockSpec | Fp8Spec):
        raise UsageError(
            f"The format is of type {type(form).__name__}; give a name such as int4-g32, or what "
            "fewbit.parse_format returns."
        )
    return registry.encode(_matrix(x), known)


def decode(tensor: QuantTensor) -> NDArray[np.float32]:
    """Return the values of an encoded matrix, float32 [rows, columns].

    Raises:
        UsageError: no QuantTensor.
        UnsupportedError: the format can be named but not decoded.
        NumericalError: a code of FP8 is NaN.
    """
    if not isinstance(tensor, QuantTensor):
        raise UsageError(
            f"What is to be decoded is of type {type(tensor).__name__}; give a fewbit.QuantTensor, "
            "as fewbit.encode returns."
        )
    return registry.decode(tensor)


def _matrix(x: ArrayLike) -> NDArray[np.float32]:
    try:
        values = np.asarray(x, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise UsageError(f"What is to be encoded is no matrix of numbers: {error}.") from error
    if values.ndim != 2 or not values.size:
        raise UsageError(
            f"What is to be encoded has shape {values.shape}; give a matrix [rows, columns] with "
            "at least one of each."
        )
    return values
