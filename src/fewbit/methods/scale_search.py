"""Round to nearest with scales searched for, a squared error weighted by how large an input is.

To first order a change dw of a weight changes the output by dw x, so with inputs uncorrelated the
expected squared change is dw^2 E[x^2]: that mean square is the weight's importance. It is what
llama.cpp calls an importance matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.formats.grid import fit, join, nearest
from fewbit.formats.registry import is_integer
from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.methods.rtn import round_to_nearest
from fewbit.methods.solution import Solution
from fewbit.methods.statistics import InputStatistics


def search_scales(
    weight: NDArray[np.float32], statistics: InputStatistics | None, form: NumberFormat
) -> Solution:
    """Encode with the scales of least squared error, weighted by the inputs' mean squares.

    Zeros are floored (`grid.fit`): a column that was never activated is rounded with its
    neighbours' scale. Inputs that calibration never reached count alike; both are remarked on.

    Args:
        weight: float32 [outputs, inputs], finite.
        statistics: of the layer's inputs; `squares` and `count` are read.
        form: any format; one without scales (f16) or whose scale has no choice (fp8) is rounded.

    Raises:
        UsageError: there are no statistics.
        NumericalError: a weight or statistic is not finite, or a scale beyond the format.
        UnsupportedError: a scale belongs to the whole tensor or to columns.
    """
    if statistics is None:
        raise UsageError(
            "The method 'imatrix' needs statistics of the layer's inputs and got none; give "
            "calibration text or an importance matrix, or choose mse or hqq."
        )
    if not is_integer(form):
        return Solution(round_to_nearest(weight, form))
    statistics.require_finite()
    grid = fit(weight, form, importance_of(statistics))
    return Solution(join(nearest(weight, grid), grid), _remarks(statistics))


def search_scales_plainly(weight: NDArray[np.float32], form: NumberFormat) -> QuantTensor:
    """Encode with the scales of least squared error, every weight counting alike.

    Raises:
        NumericalError: a weight is not finite, or a scale beyond the format.
        UnsupportedError, UsageError: as `grid.layout`.
    """
    grid = fit(weight, form)
    return join(nearest(weight, grid), grid)


def importance_of(statistics: InputStatistics) -> NDArray[np.float32] | None:
    """Return each input's mean square, float32 [inputs]; None where no row was counted."""
    if statistics.count == 0 or not statistics.squares.any():
        return None
    # Relative to the mean, so that no square leaves float32's range.
    relative: NDArray[np.float32] = (statistics.squares / statistics.squares.mean()).astype(
        np.float32
    )
    return relative


def _remarks(statistics: InputStatistics) -> tuple[str, ...]:
    if importance_of(statistics) is None:
        return ("calibration never reached this layer's inputs; all columns counted alike",)
    silent = int((statistics.squares == 0).sum())
    if not silent:
        return ()
    return (f"{silent} of {statistics.inputs} inputs were never activated and counted least",)
