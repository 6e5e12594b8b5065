"""Statistics of the inputs of a layer, sequence after sequence.

Every sequence is added on its own, in blocks counted from its start, so the sums do not depend on
which sequences were run together or on how long the padding behind them is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.methods.statistics import InputStatistics

_BLOCK = 64
"""Rows whose squares and magnitudes are summed in float32 before float64 takes over: the rounding
of such a sum is at most 64 * 2^-24 of it."""

AddGram: TypeAlias = Callable[[NDArray[np.float32], NDArray[np.float32]], None]
"""Adds x^T x of x [rows, inputs] to a matrix [inputs, inputs]."""


def add_gram_reference(gram: NDArray[np.float32], x: NDArray[np.float32]) -> None:
    """Add x^T x, both triangles, by NumPy: the truth for native kernels."""
    gram += x.T @ x


class Collector:
    """Sums over the rows of one layer's input."""

    def __init__(self, inputs: int, add_gram: AddGram | None) -> None:
        """Start with no rows; without `add_gram` there is no Gram matrix."""
        self._add_gram = add_gram
        self._count = 0
        self._squares = np.zeros(inputs, np.float64)
        self._absolute = np.zeros(inputs, np.float64)
        self._largest = np.zeros(inputs, np.float32)
        self._gram = None if add_gram is None else np.zeros((inputs, inputs), np.float32)

    def add(self, x: NDArray[np.float32], mask: NDArray[np.bool_], sequence: int) -> None:
        """Count the rows of one sequence.

        Args:
            x: float32 [tokens, inputs].
            mask: bool [tokens]; rows where it is false are left out.
            sequence: its number, for an error.

        Raises:
            NumericalError: a value of a row that counts is not finite; says which.
        """
        rows = x if mask.all() else np.ascontiguousarray(x[mask])
        squares = np.zeros_like(self._squares)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            squares += np.einsum("ri,ri->i", block, block)
            size = np.abs(block)
            self._absolute += size.sum(axis=0)
            np.maximum(self._largest, size.max(axis=0), out=self._largest)
        if not np.isfinite(squares).all():
            _refuse(x, mask, sequence)
        self._squares += squares
        self._count += len(rows)
        if self._add_gram is not None and self._gram is not None:
            self._add_gram(self._gram, rows)

    def statistics(self) -> InputStatistics:
        """Return the sums so far."""
        return InputStatistics(
            count=self._count,
            squares=self._squares,
            largest=self._largest,
            absolute=self._absolute,
            gram=self._gram,
        )


def _refuse(x: NDArray[np.float32], mask: NDArray[np.bool_], sequence: int) -> None:
    with np.errstate(over="ignore"):
        wrong = ~np.isfinite(np.square(x)) & mask[:, None]
    if not wrong.any():  # the sum of a block alone overflowed
        wrong = (np.abs(x) == np.abs(x[mask]).max()) & mask[:, None]
    token, column = (int(i) for i in np.argwhere(wrong)[0])
    raise NumericalError(
        f"element {column} of token {token} in calibration window {sequence} is "
        f"{x[token, column]:g}; a weight of the layers before is out of range, or the text drives "
        "them out of it: check the source, or leave that window out."
    )
