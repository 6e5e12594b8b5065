"""Stored tensors as NumPy arrays of their own type and shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fewbit.checkpoint.checkpoint import Checkpoint, TensorInfo
from fewbit.checkpoint.mapped import quoted
from fewbit.checkpoint.missing import missing_tensor
from fewbit.errors import BadFileError
from fewbit.formats.registry import F16, FLOATS, decode

_INTEGERS: Mapping[str, DTypeLike] = {
    "i64": "<i8",
    "i32": "<i4",
    "i16": "<i2",
    "i8": "i1",
    "u8": "u1",
    "f8_e4m3": "u1",
    "f8_e8m0": "u1",
}
"""Kinds that are read as they lie; the bytes of 8-bit floats as numbers."""


def integers_of(checkpoint: Checkpoint, name: str, *kinds: str) -> NDArray[Any]:
    """Return a tensor of integers, or the bytes of one of 8-bit floats, in its shape.

    A view of the file.

    Args:
        checkpoint: what holds it.
        name: of the tensor.
        kinds: the element types that it may have, by their names in `TensorInfo`.

    Raises:
        MissingError: there is no such tensor.
        BadFileError: it is of another type.
    """
    info = info_of(checkpoint, name)
    if info.format.name not in kinds:
        raise _wrong_kind(checkpoint, info, kinds)
    codes = np.ascontiguousarray(checkpoint.read(name).codes)
    return codes.view(_INTEGERS[info.format.name]).reshape(info.shape)


def floats_of(checkpoint: Checkpoint, name: str) -> NDArray[np.floating]:
    """Return a tensor of floats in its shape: float16 as it is, others as float32, exactly.

    Raises as `integers_of`.
    """
    info = info_of(checkpoint, name)
    if info.format not in FLOATS:
        raise _wrong_kind(checkpoint, info, tuple(form.name for form in FLOATS))
    tensor = checkpoint.read(name)
    if info.format == F16:
        return np.ascontiguousarray(tensor.codes).view("<f2").reshape(info.shape)
    return decode(tensor).reshape(info.shape)


def info_of(checkpoint: Checkpoint, name: str) -> TensorInfo:
    """Return a tensor's description; raises MissingError, with near names, without one."""
    try:
        return checkpoint.tensors[name]
    except KeyError:
        raise missing_tensor(checkpoint.path, name, checkpoint.tensors) from None


def require_shape(checkpoint: Checkpoint, name: str, *shapes: tuple[int, ...]) -> None:
    """Raise BadFileError where a tensor has none of the shapes."""
    info = info_of(checkpoint, name)
    if info.shape not in shapes:
        wanted = " or ".join(str(shape) for shape in shapes)
        raise bad_tensor(checkpoint, name, f"has shape {info.shape} where {wanted} is expected")


def bad_tensor(checkpoint: Checkpoint, name: str, problem: str) -> BadFileError:
    """Return the error for a tensor that cannot be what it should."""
    return BadFileError(
        f"{checkpoint.path}: {quoted(name)} {problem}; the file is damaged or its configuration "
        "belongs to another, get both again from their publisher."
    )


def _wrong_kind(checkpoint: Checkpoint, info: TensorInfo, kinds: tuple[str, ...]) -> BadFileError:
    return bad_tensor(
        checkpoint, info.name, f"is in {info.format.name} where {' or '.join(kinds)} is expected"
    )
