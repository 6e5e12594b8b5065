"""How fast values are trained: in proportion to what quantization has moved.

The divergence's gradient comes from the student's error: with half the error in all weights its
mean is half as large, and so is its noise over batches. Adam's steps do not see that, they are as
long as the rate says. So the right rate is a share of the error that is there, and a rate that
suits 4 bits suits 5 and 6 with that factor. Codes move in units of their scale, which is in
proportion already; scales, offsets and vectors move relative to themselves. They all get the factor
of the whole model, because each can make up for what others have lost.

That is a guess made beforehand. A look at the held-out windows that finds nothing gained says that
steps are too long for what is left to gain, and makes those behind it shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from fewbit.tune.matrix import GridMatrix, pieces

USUAL_ERROR = 0.1
"""The relative error that the rates of the settings are for: about that of q4_0."""

SLOWED = 1 / 3
"""What a look without gain leaves of every rate: about the distance between a rate at which the
first half of the steps gained nothing and one at which it gained most (docs/log.md)."""


def pace(matrices: Iterable[GridMatrix], exact: int) -> float:
    """Return the relative error of a model over the usual one.

    Args:
        matrices: all that are on a grid.
        exact: weights of the matrices beside them, which count as without error.
    """
    errors = [(squared_error(matrix), matrix.levels.numel()) for matrix in matrices]
    weights = exact + sum(count for _, count in errors)
    if not weights:
        return 1.0
    return math.sqrt(sum(error * count for error, count in errors) / weights) / USUAL_ERROR


def squared_error(matrix: GridMatrix) -> float:
    """Return the mean squared rounding error over the mean square of the values.

    It is taken from the grid alone, as if values had fallen between two levels with even odds: the
    variance in a group is (scale * distance)^2 / 12.
    """
    table = matrix.layout.levels
    distance = (table[-1] - table[0]) / (len(table) - 1)
    with torch.no_grad():
        rounding = float(matrix.scales().double().square().mean()) * distance**2 / 12
        values = matrix.values(torch.bfloat16)
        total = sum(float(values[piece].float().square().sum()) for piece in pieces(values.shape))
    return rounding * values.numel() / total if total else 0.0
