"""What a step has to read and to compute, from the Program and the kernels that were chosen.

Established facts about a model and its kernels, not measurements: with a step's time they say how
much of the machine is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fewbit.program import Attention, Embed, Linear, Program, SelectRows
from fewbit.records.kernels import KernelRecord


def weight_bytes(program: Program, kernels: Iterable[KernelRecord]) -> int:
    """Return the bytes of weights that a step reads, as the kernels hold them.

    Of an input table that no matrix product shares only the tokens' rows are read: not counted.
    """
    multiplied = {op.weight for op in program.ops if isinstance(op, Linear)}
    tables = {op.weight for op in program.ops if isinstance(op, Embed)} - multiplied
    return sum(kernel.bytes for kernel in kernels if kernel.slot not in tables)


def cache_bytes(program: Program, position_bytes: float, context: int) -> int:
    """Return the bytes of keys and values that one row reads.

    Args:
        program: the model.
        position_bytes: bytes of one position in all layers of the store.
        context: positions before the row and its own; a windowed layer reads no more than its
            window.
    """
    layers = [op for op in program.ops if isinstance(op, Attention)]
    widths = [op.kv_heads * op.head_dim for op in layers]
    seen = [min(context, op.window or context) for op in layers]
    read = sum(width * count for width, count in zip(widths, seen, strict=True))
    return round(position_bytes * read / sum(widths))


def integer_operations(
    program: Program, kernels: Iterable[KernelRecord], rows: int, wanted: int
) -> int:
    """Return the operations of a step in matrices whose inputs the kernels round to int8.

    A multiplication and an addition are two.

    Args:
        program: the model.
        kernels: its kernels.
        rows: rows of the step.
        wanted: rows whose logits are wanted; what comes behind `SelectRows` runs for these only.
    """
    integer = {kernel.slot for kernel in kernels if kernel.activations.startswith("int8")}
    total = 0
    for op, behind in _linear(program):
        if op.weight in integer:
            weights = program.widths[op.x] * program.widths[op.out]
            total += 2 * weights * (wanted if behind else rows)
    return total


def _linear(program: Program) -> Iterator[tuple[Linear, bool]]:
    """Yield every linear op, and whether it runs for the wanted rows only."""
    selected: set[str] = set()
    for op in program.ops:
        if isinstance(op, SelectRows) or selected.intersection(program.inputs(op)):
            selected.add(op.out)
        if isinstance(op, Linear):
            yield op, op.out in selected
