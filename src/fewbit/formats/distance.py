"""How far a tensor lies from another, decoded a few rows at a time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.registry import decode_rows
from fewbit.formats.spec import QuantTensor

PIECE = 1 << 18
"""Elements decoded at once: a megabyte of float32 stays in a core's cache."""


def relative_error(source: QuantTensor, found: QuantTensor) -> float:
    """Return ||W - W'|| / ||W|| of two tensors of one shape, Frobenius norms; ||W'|| for W = 0.

    Tensors of the same format and bytes are not decoded.
    """
    if _same_bytes(source, found):
        return 0.0
    total = error = 0.0
    for rows in pieces(source.shape):
        values = decode_rows(source, rows)
        total += squares(values)
        error += squares(values - decode_rows(found, rows))
    return relative(error, total)


def relative(error: float, total: float) -> float:
    """Return the root of a squared error over a squared norm; of the error alone where that is 0.

    So a matrix of zeros that came back as zeros has the error 0, and any other result has not.
    """
    return math.sqrt(error / total if total else error)


def squares(values: NDArray[np.float32]) -> float:
    """Return the sum of squares, in float64."""
    return float(np.square(values, dtype=np.float64).sum())


def piece_rows(columns: int, elements: int = PIECE) -> int:
    """Return how many rows make about so many elements, at least one."""
    return max(1, elements // columns)


def pieces(shape: tuple[int, int], elements: int = PIECE) -> list[slice]:
    """Return the rows of a matrix in pieces of about so many elements."""
    step = piece_rows(shape[1], elements)
    return [slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def _same_bytes(one: QuantTensor, other: QuantTensor) -> bool:
    if one.spec != other.spec:
        return False
    pairs = ((one.codes, other.codes), (one.scales, other.scales), (one.zeros, other.zeros))
    return all(
        a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs
    )
