"""Solving with an importance matrix in place of calibration text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from fewbit.calibrate.importance import ImportanceMatrix, read_importance
from fewbit.errors import UsageError
from fewbit.methods.solvers import METHODS, Need
from fewbit.methods.statistics import InputStatistics
from fewbit.model.families import expert_of, gguf_name
from fewbit.program import Slot
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.quantization.solving import Solved, solve_alone, solve_with
from fewbit.records.calibration import ImportanceFacts


@dataclass(frozen=True)
class GivenImportance:
    """An importance matrix that was read, and what is recorded of it."""

    matrix: ImportanceMatrix
    facts: ImportanceFacts


def given_importance(path: Path) -> GivenImportance:
    """Read an importance matrix; raises as `read_importance`."""
    matrix = read_importance(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = ImportanceFacts(name=path.name, sha256=digest, tensors=len(matrix.entries))
    return GivenImportance(matrix, facts)


def solve_given(planned: QuantizationPlan, given: GivenImportance) -> dict[Slot, Solved]:
    """Return every quantized matrix, solved with the importance of its inputs.

    A matrix that the file has no values for (an input table, or a shared one, as llama.cpp has it)
    is solved without; its entry in the manifest says so.

    Raises:
        UsageError: the recipe's method needs more than squares, values of another width, or
            transforms, behind which inputs are not those that the file knows.
    """
    if planned.recipe.transforms:
        raise UsageError(
            f"The recipe '{planned.recipe.name}' transforms the model "
            f"({', '.join(planned.recipe.transforms)}), and an importance matrix knows the inputs "
            "before that; give a text with --calibration, or leave the transforms out."
        )
    method = next((m for m in planned.recipe.methods if METHODS[m].needs is Need.GRAM), None)
    if method is not None:
        raise UsageError(
            f"The method '{method}' needs how inputs go together, and an importance matrix has "
            "only the square of each; give a text with --calibration, or take imatrix."
        )
    return {
        tensor.slot: _solved(planned, tensor, given.matrix)
        for tensor in planned.tensors
        if tensor.status == "quantized"
    }


def _solved(planned: QuantizationPlan, tensor: PlannedTensor, matrix: ImportanceMatrix) -> Solved:
    statistics = _statistics(planned, tensor, matrix)
    if statistics is not None:
        return solve_with(planned, tensor, statistics)
    remark = f"The importance matrix has no values for {gguf_name(tensor.slot)}."
    return replace(solve_alone(planned, tensor), remarks=(remark,))


def _statistics(
    planned: QuantizationPlan, tensor: PlannedTensor, matrix: ImportanceMatrix
) -> InputStatistics | None:
    name, expert = gguf_name(tensor.slot), expert_of(tensor.slot)
    entry = matrix.entries.get(name)
    if entry is None:
        return None
    mixture = planned.source.config.mixture
    experts = 1 if expert is None or mixture is None else mixture.experts
    each = entry.with_experts(experts)
    found = each.statistics() if expert is None else each.blended(expert)
    columns = tensor.source.matrix_shape[1]
    if found.inputs != columns:
        raise UsageError(
            f"The importance matrix has {found.inputs} values for {name}, which has {columns} "
            "columns; take the importance matrix of this model."
        )
    return found
