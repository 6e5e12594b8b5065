"""The weight that makes up for errors of the layers before it.

Where the source's layer reads x + d, the same layer of the quantized model reads x. A solver that
fits the rounded weight to W x takes d as given; fitted to W (x + d), the source's own outputs, the
layer undoes what of d can be seen in x. The weight of least squared error is

    W' = W + W D H^-1,    D = sum of d x^T,    H = sum of x x^T,

and a solver then rounds W' against the same H (GPTAQ, Li et al. 2025, arXiv 2504.02692; QEP, Arai
and Ichikawa 2025, arXiv 2504.09629). Where outputs are added to the residual stream and that lags
behind the source's by r, the layer is to put out r more as well:

    W' = W + (W D + R) H^-1,    R = sum of r x^T.

H is damped as in `hessian`, and d and r are a part of the differences only (QEP's alpha): what
errors and inputs have in common on the calibration text they have less of on other text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.methods.hessian import damped_hessian, mean_diagonal, require_gram
from fewbit.methods.statistics import InputStatistics


def propagated(
    weight: NDArray[np.float32], statistics: InputStatistics, first: int = 0
) -> NDArray[np.float32]:
    """Return W + (W D + R) H^-1, the weight to round in place of W; W where there is no drift.

    Args:
        weight: W, float32 [outputs, inputs].
        statistics: of the layer's inputs, with a Gram matrix where there is a drift.
        first: the matrix's row that W begins with.

    Raises:
        UsageError: there is no Gram matrix, or it is of another layer.
        NumericalError: they are not finite.
    """
    if statistics.drift is None:
        return weight
    checked = require_gram(statistics, "propagation", weight.shape[1])
    correction, addition = checked.derived("propagation", lambda: _corrections(checked))
    found: NDArray[np.float32] = weight + weight @ correction
    if addition is not None:
        found += addition[first : first + len(weight)]
    return found


def _corrections(
    statistics: InputStatistics,
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Return D H^-1 and R H^-1, float32 [inputs, inputs] and [outputs, inputs]."""
    drift, lag = statistics.drift, statistics.lag
    assert drift is not None
    sums = drift if lag is None else np.concatenate([drift, lag])
    right = sums.T / mean_diagonal(statistics)
    solved = np.linalg.solve(damped_hessian(statistics), right).T.astype(np.float32)
    return solved[: len(drift)], None if lag is None else solved[len(drift) :]
