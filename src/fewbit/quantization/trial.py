"""Tensors of a plan in memory, to be measured before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.grid import fit, join, nearest, stack
from fewbit.formats.registry import decode_rows
from fewbit.formats.spec import QuantTensor
from fewbit.methods.solvers import Need, greatest_need
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.quantization.calibrated import Solving, solve_plan
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.quantization.solving import solve_alone
from fewbit.records.recipe import Recipe

MANY_WEIGHTS = 400_000_000
"""From so many weights on, choices are compared by rounding: solving both would take too long."""


def many_weights(source: ModelSource) -> bool:
    """Say whether a model has so many weights that what measures it takes shortcuts."""
    infos = source.checkpoint.tensors.values()
    return sum(math.prod(info.shape) for info in infos) >= MANY_WEIGHTS


Squares = Mapping[Slot, NDArray[np.float64]]
"""The mean square of each input of a matrix, float64 [inputs]; matrices may be missing."""

_PIECE = 1 << 20
"""Elements fitted at once."""


@dataclass(frozen=True)
class Builder:
    """Makes the tensors of a plan's quantized matrices."""

    method: str
    """How, in a record."""
    make: Callable[[QuantizationPlan, Squares], Mapping[Slot, QuantTensor]]


def builder(source: ModelSource, base: Recipe, solving: Solving | None, threads: int) -> Builder:
    """Return what makes the tensors that choices of formats are compared by.

    That is the recipe's method, and rounding where a model is so large that solving it twice for
    a comparison would take too long.

    Args:
        source: the model.
        base: the recipe whose method counts.
        solving: how it solves; None where it needs no calibration text.
        threads: of the rounding.
    """
    if many_weights(source):
        name = "rounding on scales fitted with the squares of the inputs"
        return Builder(name, lambda planned, squares: rounded_tensors(planned, squares, threads))
    return Builder(base.method, lambda planned, _: solved_tensors(planned, solving))


def solved_tensors(planned: QuantizationPlan, solving: Solving | None) -> dict[Slot, QuantTensor]:
    """Return the quantized matrices of a plan as its method makes them, without transforms.

    Args:
        planned: the plan.
        solving: how; needed where the method looks at a layer's inputs.

    Raises:
        As `solve_plan` and `solve_alone`.
    """
    found: dict[Slot, QuantTensor] = {}
    if solving is not None and greatest_need(planned.recipe.methods) is not Need.NOTHING:
        found = {slot: solved.tensor for slot, solved in solve_plan(planned, solving).items()}
    for tensor in _quantized(planned):
        if tensor.slot not in found:
            found[tensor.slot] = solve_alone(planned, tensor).tensor
    return found


def rounded_tensors(
    planned: QuantizationPlan, squares: Squares, threads: int
) -> dict[Slot, QuantTensor]:
    """Return the quantized matrices of a plan on scales fitted with the squares of their inputs.

    Much faster than a solver, and close enough to it to compare two choices of formats.

    Raises:
        NumericalError: a weight is not finite.
    """
    with ThreadPoolExecutor(threads) as pool:
        tensors = _quantized(planned)
        jobs = [pool.submit(_rounded, planned, t, squares.get(t.slot)) for t in tensors]
        return {tensor.slot: job.result() for tensor, job in zip(tensors, jobs, strict=True)}


def _rounded(
    planned: QuantizationPlan, tensor: PlannedTensor, squares: NDArray[np.float64] | None
) -> QuantTensor:
    stored = planned.source.read(tensor.slot)
    rows, columns = stored.shape
    importance = None if squares is None else squares.astype(np.float32)
    step = max(1, _PIECE // columns)
    codes, grids = [], []
    for start in range(0, rows, step):
        weight = decode_rows(stored, slice(start, start + step))
        grids.append(fit(weight, tensor.format, importance))
        codes.append(nearest(weight, grids[-1]))
    return join(np.concatenate(codes), stack(grids))


def _quantized(planned: QuantizationPlan) -> list[PlannedTensor]:
    return [tensor for tensor in planned.tensors if tensor.status == "quantized"]
