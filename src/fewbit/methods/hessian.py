"""The curvature of a layer's error, H = X^T X, damped and factored for rounding with feedback.

GPTQ (Frantar et al. 2023) takes a Cholesky factor of the inverse of H. The inverse is not needed
(Chen et al. 2025, "The geometry of LLM quantization: GPTQ as Babai's nearest plane algorithm"):
with H = M^T M, M lower triangular, the error of a row e = w - q costs

    e H e^T = |M e|^2 = sum_j M_jj^2 (t_j - q_j)^2,   t_j = w_j + sum_{k<j} (M_jk / M_jj) e_k,

so rounding each column to its target t_j, in ascending j, is what GPTQ does, and M_jj^2 is what a
squared error of column j costs once later columns have made up for it as well as they can.

Text that a model meets later has other correlations than the calibration text, so H's diagonal is
raised: by a part of its mean (`DAMPING`), and by a part of itself (`SHRINKAGE`), which takes the
correlations for a little weaker than they were seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit._native import ThreadPool, factor_hessian
from fewbit.errors import NumericalError, UsageError
from fewbit.methods.statistics import InputStatistics

DAMPING = 0.01
"""Added to the diagonal of H, as a part of its mean; from the GPTQ paper."""

SHRINKAGE = 0.1
"""Added to each element of the diagonal, as a part of it.

Eleven matrices of SmolLM2-135M in Q4_0, calibrated on a book and code, measured on Wikipedia: the
error falls by 2% on average, by 5 to 10% in the MLP; 0.3 of it, or 0.1 of the mean, are worse."""

_MOST_DAMPING = 1e4
"""No sum of outer products needs as much: rounding errors of float32 sums lie far below."""


@dataclass(frozen=True, eq=False)
class Factor:
    """The factor of a damped H whose columns were put in the order they are rounded in."""

    feedback: NDArray[np.float32]
    """M_jk / M_jj, float32 [inputs, inputs]: lower triangular with ones on the diagonal."""
    variance: NDArray[np.float32]
    """M_jj^2 in units of H's mean diagonal, float32 [inputs]."""
    remarks: tuple[str, ...]
    """Sentences on damping that had to be raised and on columns that were never activated."""
    damping: float = DAMPING
    """What was added to the diagonal, as a part of its mean."""


def require_gram(statistics: InputStatistics | None, method: str, columns: int) -> InputStatistics:
    """Return the statistics if they have a finite Gram matrix of that many columns.

    Raises:
        UsageError: there is none, or it belongs to another layer.
        NumericalError: it is not finite.
    """
    if statistics is None or statistics.gram is None:
        raise UsageError(
            f"The method {method} needs the Gram matrix of the layer's inputs and has "
            f"{'no statistics' if statistics is None else 'their magnitudes only'}; run "
            "calibration text through the model (an importance matrix does not have it), or "
            "choose a method without it, such as imatrix, mse or hqq."
        )
    if statistics.inputs != columns:
        raise UsageError(
            f"The statistics are of {statistics.inputs} inputs and the weight has {columns}; give "
            "those of the same layer."
        )
    statistics.require_finite()
    return statistics


def idle_columns(statistics: InputStatistics) -> NDArray[np.bool_]:
    """Return which inputs were never other than zero, bool [inputs]."""
    assert statistics.gram is not None
    idle: NDArray[np.bool_] = statistics.gram.diagonal() <= 0
    return idle


def mean_diagonal(statistics: InputStatistics) -> float:
    """Return the mean of the Gram matrix's diagonal; 1 where it is zero."""
    assert statistics.gram is not None
    return float(statistics.gram.diagonal().mean(dtype=np.float64)) or 1.0


def damped_diagonal(statistics: InputStatistics, damping: float = DAMPING) -> NDArray[np.float64]:
    """Return H's raised diagonal in units of its mean, float64 [inputs]; at least `damping`."""
    assert statistics.gram is not None
    diagonal = statistics.gram.diagonal().astype(np.float64) / mean_diagonal(statistics)
    raised: NDArray[np.float64] = np.maximum(diagonal, 0) * (1 + SHRINKAGE) + damping
    return raised


def damped_hessian(statistics: InputStatistics, damping: float = DAMPING) -> NDArray[np.float64]:
    """Return H over its mean diagonal with the diagonal raised, float64 [inputs, inputs]."""
    assert statistics.gram is not None
    matrix: NDArray[np.float64] = statistics.gram.astype(np.float64)
    matrix /= mean_diagonal(statistics)
    np.fill_diagonal(matrix, damped_diagonal(statistics, damping))
    return matrix


def factorize(
    statistics: InputStatistics,
    order: NDArray[np.int64],
    pool: ThreadPool,
    damping: float = DAMPING,
) -> Factor:
    """Factor H with its columns in the given order.

    In float32 (native/src/solvers/factor.h): Cholesky's rounding errors are those of the matrix
    scaled to a unit diagonal, however unequal the diagonal is (Demmel 1989), and with `SHRINKAGE`
    the least eigenvalue of that is 0.09.

    Args:
        statistics: with a finite Gram matrix.
        order: a permutation of the inputs: the order they are rounded in.
        pool: the threads that share the work; the result does not depend on them.
        damping: what is added to the diagonal at first, as a part of its mean. A column that was
            never activated has nothing else, so no error reaches it and it is rounded to nearest.

    Raises:
        NumericalError: no damping makes the matrix positive definite.
    """
    remarks = []
    idle = int(np.count_nonzero(idle_columns(statistics)))
    if idle:
        remarks.append(
            f"{idle} of {statistics.inputs} inputs were never activated in calibration; their "
            "columns are rounded to nearest."
        )
    feedback, variance, used = _factored(statistics, order, pool, damping)
    if used > damping:
        remarks.append(
            f"The Hessian was not positive definite: damping was raised from {damping:g} to "
            f"{used:g} of the mean diagonal."
        )
    return Factor(feedback, variance, tuple(remarks), used)


def _factored(
    statistics: InputStatistics, order: NDArray[np.int64], pool: ThreadPool, damping: float
) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """Return feedback and variance (see `Factor`), and the damping that they took."""
    assert statistics.gram is not None
    feedback = np.empty(statistics.gram.shape, np.float32)
    variance = np.empty(len(order), np.float32)
    while damping <= _MOST_DAMPING:
        if factor_hessian(
            pool,
            gram=statistics.gram,
            order=order,
            unit=mean_diagonal(statistics),
            diagonal=damped_diagonal(statistics, damping)[order],
            feedback=feedback,
            variance=variance,
        ):
            return feedback, variance, damping
        damping *= 10
    raise NumericalError(
        f"The Gram matrix of the layer's inputs stays indefinite with {damping / 10:g} times its "
        "mean diagonal added, so it is no sum of outer products; collect the statistics again."
    )
