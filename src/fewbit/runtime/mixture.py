"""Which experts of a mixture a row passes through, and how their outputs are summed, in NumPy.

The truth for the native executor, and what calibration gathers an expert's rows by.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.program import Mixture


def route(router: NDArray[np.float32], op: Mixture) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return the experts of each row of logits, by rank, and their weights.

    Args:
        router: float32 [rows, experts], finite.
        op: how many experts a row passes through, and whether their weights sum to one.

    Returns:
        Expert ids and float32 weights, both [rows, op.used]: the largest logit first, of equal ones
        the lower id. Weights are computed in float64 and rounded once.
    """
    order = np.argsort(-router, axis=-1, kind="stable")[:, : op.used]
    logits = router.astype(np.float64)
    chosen = np.take_along_axis(logits, order, axis=-1)
    powers = np.exp(chosen - chosen[:, :1])
    summed = powers if op.normalized else np.exp(logits - chosen[:, :1])
    return order, (powers / summed.sum(axis=-1, keepdims=True)).astype(np.float32)


def rows_of_expert(
    chosen: NDArray[np.intp], expert: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows that chose an expert, ascending, and its rank in each."""
    rows, ranks = np.nonzero(chosen == expert)
    return rows, ranks


def mixed(outputs: NDArray[np.float32], weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the weighted sums over ranks, in float64 and rounded once: float32 [rows, width].

    Args:
        outputs: of the experts of each row by rank, [rows, used, width].
        weights: theirs, [rows, used].
    """
    products: NDArray[np.float64] = outputs.astype(np.float64) * weights[..., None]
    sums: NDArray[np.float64] = products.sum(axis=1)
    return sums.astype(np.float32)
