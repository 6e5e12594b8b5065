"""What a step has to read and to compute, from the Program and the kernels that were chosen.

Established facts about a model and its kernels, not measurements: with a step's time they say how
much of the machine is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fractions import Fraction

from fewbit.program import Attention, Embed, Linear, Mixture, Program, SelectRows, Slot, slots_of
from fewbit.records.kernels import KernelRecord


def weight_bytes(program: Program, kernels: Iterable[KernelRecord]) -> int:
    """Return the bytes of weights that a step of one row reads, as the kernels hold them.

    Of an input table that no matrix product shares only the tokens' rows are read: not counted. Of
    a mixture those of the experts that a row passes are, as large as the mean of all.
    """
    multiplied = {op.weight for op in program.ops if isinstance(op, Linear)}
    tables = {op.weight for op in program.ops if isinstance(op, Embed)} - multiplied
    shares = _shares(program)
    read = (k.bytes * shares.get(k.slot, Fraction(1)) for k in kernels if k.slot not in tables)
    return round(sum(read))


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
    return total + _expert_operations(program, integer, rows)


def _expert_operations(program: Program, integer: Collection[Slot], rows: int) -> int:
    """Return those in experts: of each matrix, for the rows that pass it where all fare alike."""
    total = Fraction(0)
    for op in program.ops:
        if isinstance(op, Mixture):
            weights = program.widths[op.x] * op.width
            rounded = sum(slot in integer for slot in slots_of(op))
            total += 2 * weights * rounded * rows * Fraction(op.used, len(op.experts))
    return round(total)


def _shares(program: Program) -> dict[Slot, Fraction]:
    """Return the share of each expert's matrices that one row reads, on average."""
    mixtures = [op for op in program.ops if isinstance(op, Mixture)]
    return {s: Fraction(op.used, len(op.experts)) for op in mixtures for s in slots_of(op)}


def _linear(program: Program) -> Iterator[tuple[Linear, bool]]:
    """Yield every linear op, and whether it runs for the wanted rows only."""
    selected: set[str] = set()
    for op in program.ops:
        if isinstance(op, SelectRows) or selected.intersection(program.inputs(op)):
            selected.add(op.out)
        if isinstance(op, Linear):
            yield op, op.out in selected
