"""Statistics of the inputs of a layer, some sequences at a time.

The sums go through the rows that count, sequence after sequence, so they depend neither on which
sequences are handed in together nor on the padding behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.methods.statistics import InputStatistics
from fewbit.runtime.gram import add_cross, add_gram, add_moments, mirror_gram
from fewbit.runtime.native import Pool


class Collector:
    """Sums over the rows of one layer's input."""

    def __init__(
        self, inputs: int, pool: Pool, *, gram: bool, drift: bool = False, outputs: int = 0
    ) -> None:
        """Start with no rows.

        Args:
            inputs: of the layer.
            pool: the threads that share the work.
            gram: whether there is a Gram matrix.
            drift: whether there is a drift.
            outputs: of the layer, where there is a lag; else 0.
        """
        self._pool = pool
        self._count = 0
        self._squares = np.zeros(inputs, np.float64)
        self._absolute = np.zeros(inputs, np.float64)
        self._largest = np.zeros(inputs, np.float32)
        self._gram = np.zeros((inputs, inputs), np.float32) if gram else None
        self._drift = np.zeros((inputs, inputs), np.float32) if drift else None
        self._lag = np.zeros((outputs, inputs), np.float32) if outputs else None

    def add(
        self, x: NDArray[np.float32], masks: Sequence[NDArray[np.bool_]], first: int = 0
    ) -> None:
        """Count the rows of some sequences.

        Args:
            x: float32 [tokens, inputs], the sequences one after the other.
            masks: bool [tokens of it] of each sequence; rows where it is false are left out.
            first: the number of the first sequence, for an error.

        Raises:
            NumericalError: a value of a row that counts is not finite; says which.
        """
        mask = np.concatenate(masks)
        rows = np.ascontiguousarray(x if mask.all() else x[mask])
        add_moments(self._squares, self._absolute, self._largest, rows, self._pool)
        if not (np.isfinite(self._squares).all() and np.isfinite(self._largest).all()):
            _refuse(x, masks, first)
        if self._gram is not None:
            lengths = [int(counted.sum()) for counted in masks]
            add_gram(self._gram, rows, self._pool, lengths=lengths)
        self._count += len(rows)

    def add_drift(
        self, d: NDArray[np.float32], x: NDArray[np.float32], masks: Sequence[NDArray[np.bool_]]
    ) -> None:
        """Count d x^T of the rows of some sequences; d is as x, and all arguments as `add`."""
        assert self._drift is not None
        self._add_products(self._drift, d, x, masks)

    def add_lag(
        self, r: NDArray[np.float32], x: NDArray[np.float32], masks: Sequence[NDArray[np.bool_]]
    ) -> None:
        """Count r x^T of the rows of some sequences; r is float32 [tokens, outputs]."""
        assert self._lag is not None
        self._add_products(self._lag, r, x, masks)

    def _add_products(
        self,
        sums: NDArray[np.float32],
        left: NDArray[np.float32],
        right: NDArray[np.float32],
        masks: Sequence[NDArray[np.bool_]],
    ) -> None:
        mask = np.concatenate(masks)
        lengths = [int(counted.sum()) for counted in masks]
        one, other = (np.ascontiguousarray(y if mask.all() else y[mask]) for y in (left, right))
        add_cross(sums, one, other, self._pool, lengths=lengths)

    def statistics(self) -> InputStatistics:
        """Return the sums so far."""
        if self._gram is not None:
            mirror_gram(self._gram, self._pool)
        return InputStatistics(
            count=self._count,
            squares=self._squares,
            largest=self._largest,
            absolute=self._absolute,
            gram=self._gram,
            drift=self._drift,
            lag=self._lag,
        )


def _refuse(x: NDArray[np.float32], masks: Sequence[NDArray[np.bool_]], first: int) -> None:
    start = 0
    for number, mask in enumerate(masks, first):
        rows = x[start : start + len(mask)]
        wrong = ~np.isfinite(rows) & mask[:, None]
        if wrong.any():
            token, column = (int(i) for i in np.argwhere(wrong)[0])
            raise NumericalError(
                f"element {column} of token {token} in calibration window {number} is "
                f"{rows[token, column]}; a weight of the layers before is out of range, or the "
                "text drives them out of it: check the source, or leave that window out."
            )
        start += len(mask)
    raise AssertionError("sums of finite float32 values are finite in float64")
