"""The float types F32, F16 and BF16, as GGUF types of one element a block (little endian)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def decode_f32(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32 [rows, columns] of uint8 [rows, 4 * columns]."""
    return np.ascontiguousarray(codes).view("<f4").astype(np.float32, copy=False)


def decode_f16(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32 [rows, columns] of uint8 [rows, 2 * columns]."""
    return np.ascontiguousarray(codes).view("<f2").astype(np.float32)


def decode_bf16(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return float32 [rows, columns] of uint8 [rows, 2 * columns]: the upper half of a float32."""
    halves = np.ascontiguousarray(codes).view("<u2").astype(np.uint32)
    return (halves << np.uint32(16)).view(np.float32)


def encode_f32(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return uint8 [rows, 4 * columns] of float32 [rows, columns]."""
    return np.ascontiguousarray(values, dtype="<f4").view(np.uint8)


def encode_f16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return uint8 [rows, 2 * columns], rounded to nearest even; too large gives infinity."""
    return np.ascontiguousarray(values).astype("<f2").view(np.uint8)


def encode_bf16(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return uint8 [rows, 2 * columns], rounded to nearest even; too large gives infinity.

    Values must not be NaN: the carry of the rounding would run into the sign.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    tie_to_even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + tie_to_even) >> np.uint32(16)
    return rounded.astype("<u2").view(np.uint8)
