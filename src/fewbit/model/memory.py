"""The memory a model needs, counted before it is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fewbit.errors import UsageError
from fewbit.model.binding import is_vector
from fewbit.model.config import ModelConfig
from fewbit.model.decoder import slot_shapes
from fewbit.program import Mixture, Program
from fewbit.records.figures import size
from fewbit.records.kernels import KernelRecord
from fewbit.records.loading import MemoryPlan
from fewbit.runtime.kv import page_bytes
from fewbit.runtime.memory import available_memory

_FLOAT_BYTES = 4
_ROUTE_WORDS = 4
"""Of each choice of an expert: weight, expert, place and row."""
_CHUNK_ROWS = 256
"""Rows that the native executor takes through the layers together."""


def plan_memory(
    config: ModelConfig, program: Program, kernels: Iterable[KernelRecord], pages: int
) -> MemoryPlan:
    """Return what a model with these kernels and this many pages of keys and values needs.

    The tokenizer and Python itself are not in it: some hundred megabytes with large vocabularies.
    """
    shapes = slot_shapes(config)
    vectors = sum(shapes[slot][1] for slot in shapes if is_vector(slot))
    available = available_memory()
    return MemoryPlan(
        weights=sum(kernel.bytes for kernel in kernels) + _FLOAT_BYTES * vectors,
        store=pages * page_bytes(program),
        workspace=workspace_bound(program),
        available=available.bytes,
        limit=available.limit,
    )


def workspace_bound(program: Program) -> int:
    """Return bytes that a step's rows never pass: no two layers' values live together.

    Twice the float values, because each may have its rounded twin beside it.
    """
    widths: Counter[int] = Counter()
    for op in program.ops:
        if op.out != program.logits:
            widths[op.layer] += program.widths[op.out]
        if isinstance(op, Mixture):  # its inputs, its experts' and what they give, by choice
            width = 2 * program.widths[op.x] + op.width
            widths[op.layer] += op.used * (width + _ROUTE_WORDS) + len(op.experts)
    outside = widths.pop(-1, 0)
    return 2 * _FLOAT_BYTES * _CHUNK_ROWS * (outside + max(widths.values(), default=0))


def require_room(plan: MemoryPlan) -> None:
    """Check that the memory is there.

    Raises:
        UsageError: it is not; the message has the numbers.
    """
    if plan.available is None or plan.needed <= plan.available:
        return
    raise UsageError(
        f"The model needs {size(plan.needed)} of memory (weights {size(plan.weights)}, keys and "
        f"values {size(plan.store)}, workspace {size(plan.workspace)}) and {size(plan.available)} "
        f"is {plan.limit}; ask for a shorter context or fewer sequences, keep keys and values in "
        "fewer bits (int8), or quantize the model to fewer bits."
    )
