"""Layers for the solvers' tests: correlated inputs with outliers, weights with heavy tails."""

from __future__ import annotations

import numpy as np

from fewbit.formats.registry import decode
from fewbit.formats.spec import QuantTensor
from fewbit.methods.statistics import InputStatistics


def layer(
    rows: int, columns: int, seed: int = 0, tokens: int | None = None
) -> tuple[np.ndarray, InputStatistics]:
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(columns, columns)) / np.sqrt(columns)
    x = rng.normal(size=(tokens or 4 * columns, columns)) @ mixing
    x = (x * np.exp(rng.normal(0, 1, columns))).astype(np.float32)
    weight = rng.standard_t(5, size=(rows, columns)).astype(np.float32) * np.float32(0.05)
    return weight, statistics_of(x)


def statistics_of(x: np.ndarray) -> InputStatistics:
    wide = x.astype(np.float64)
    return InputStatistics(
        count=len(x),
        squares=(wide**2).sum(axis=0),
        largest=np.abs(x).max(axis=0),
        absolute=np.abs(wide).sum(axis=0),
        gram=(wide.T @ wide).astype(np.float32),
    )


def row_objectives(
    weight: np.ndarray, tensor: QuantTensor, statistics: InputStatistics
) -> np.ndarray:
    """e H e^T of every row, float64."""
    error = weight.astype(np.float64) - decode(tensor)
    assert statistics.gram is not None
    return np.einsum("rc,rc->r", error @ statistics.gram.astype(np.float64), error)


def objective(weight: np.ndarray, tensor: QuantTensor, statistics: InputStatistics) -> float:
    return float(row_objectives(weight, tensor, statistics).sum())
