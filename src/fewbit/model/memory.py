"""The memory a model needs, counted before it is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from fewbit.errors import UsageError
from fewbit.model.binding import is_vector
from fewbit.program import Mixture, Program, Slot
from fewbit.records.figures import size
from fewbit.records.kernels import KernelRecord
from fewbit.records.loading import MemoryPlan
from fewbit.runtime.kv import page_bytes
from fewbit.runtime.memory import available_memory

FLOAT_BYTES = 4
_ROUTE_WORDS = 4
"""Of each choice of an expert: weight, expert, place and row."""
_CHUNK_ROWS = 256
"""Rows that the native executor takes through the layers together."""


def plan_memory(
    shapes: Mapping[Slot, tuple[int, int]],
    programs: Iterable[Program],
    kernels: Iterable[KernelRecord],
    pages: int,
    states: int = 0,
) -> MemoryPlan:
    """Return what a model needs. Tokenizer and Python are not in it: some hundred megabytes.

    Args:
        shapes: of its own slots' tensors, [outputs, inputs].
        programs: what is run, the one with keys and values first.
        kernels: of its own matrices.
        pages: of keys and values.
        states: bytes of a target's hidden states that may wait to be read.
    """
    vectors = sum(shape[1] for slot, shape in shapes.items() if is_vector(slot))
    available, (program, *others) = available_memory(), programs
    return MemoryPlan(
        weights=sum(kernel.bytes for kernel in kernels) + FLOAT_BYTES * vectors,
        store=pages * page_bytes(program),
        workspace=sum(map(workspace_bound, (program, *others))),
        states=states,
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
    return 2 * FLOAT_BYTES * _CHUNK_ROWS * (outside + max(widths.values(), default=0))


def require_room(
    plan: MemoryPlan, what: str = "The model", target: MemoryPlan | None = None
) -> None:
    """Check that the memory is there for a model, or for what is named.

    Args:
        plan: what it needs.
        what: what that is for.
        target: of the model that it drafts for, which is loaded and has yet to serve.

    Raises:
        UsageError: it is not; the message has the numbers.
    """
    waiting = target.yet_to_take if target else 0
    if plan.available is None or plan.needed + waiting <= plan.available:
        return
    beside = f" beside {size(waiting)} that its target takes as it serves," if target else ""
    raise UsageError(
        f"{what} needs {plan.described}{beside} and {size(plan.available)} is {plan.limit}; ask "
        "for a shorter context or fewer sequences, keep keys and values in fewer bits (int8), or "
        "quantize the model to fewer bits."
    )
