"""Rotating the residual stream: who reads it, who writes it, and which norms must be folded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UnsupportedError
from fewbit.formats.registry import decode
from fewbit.model.decoder import build_program
from fewbit.model.sites import columns_read
from fewbit.model.transforms import Fold, RotateResidual
from fewbit.model.weights import ModelSource
from fewbit.program import (
    Add,
    Buffer,
    Embed,
    Linear,
    Mixture,
    Op,
    Program,
    RmsNorm,
    SelectRows,
    Slot,
    slots_of,
)


def rotate_residual(source: ModelSource, matrix: NDArray[np.float64]) -> RotateResidual:
    """Return the rotation of a model's residual stream by an orthogonal matrix [hidden, hidden].

    Norms are folded into the matrices behind them, except those whose weight is the same for every
    channel, which commute with the rotation. A table shared by input and output takes the rotation
    as it is, but not the final norm's fold: it becomes two (`untied`).

    Raises:
        UnsupportedError: something stands between a matrix and the residual stream, as the norms
            after attention and MLP of Gemma do, whose weights cannot be folded.
    """
    program = build_program(source.config)
    stream = _stream(program)
    readers: dict[Slot, None] = {}
    folds: dict[Slot, Fold] = {}
    for op in program.ops:
        if isinstance(op, RmsNorm) and op.x in stream:
            consumers = _consumers(program, op)
            readers |= dict.fromkeys(consumers)
            factors = decode(source.read(op.weight))[0].astype(np.float64) + op.offset
            if np.ptp(factors) > 0:
                folds[op.weight] = Fold(factors, op.offset, consumers)
    table = next(op.weight for op in program.ops if isinstance(op, Embed))
    untied = table in readers and any(table in fold.consumers for fold in folds.values())
    if untied:
        readers |= {"head.weight": None}
        folds = {norm: _apart(fold, table) for norm, fold in folds.items()}
    readers |= {table: None}
    return RotateResidual(matrix, tuple(readers), _writers(program, stream), folds, untied)


def _apart(fold: Fold, table: Slot) -> Fold:
    """Return the fold into a head of its own where it was into the shared table."""
    consumers = tuple("head.weight" if slot == table else slot for slot in fold.consumers)
    return replace(fold, consumers=consumers)


def _stream(program: Program) -> set[Buffer]:
    """Return the buffers that hold the residual stream: the embedding and every sum with it."""
    stream = {op.out for op in program.ops if isinstance(op, Embed)}
    for op in program.ops:
        adds = isinstance(op, Add) and op.x in stream
        if adds or (isinstance(op, SelectRows) and op.x in stream):
            stream.add(op.out)
    return stream


def _writers(program: Program, stream: set[Buffer]) -> tuple[Slot, ...]:
    """Return matrices and biases whose output is added to the stream."""
    by_output = {op.out: op for op in program.ops}
    found: list[Slot] = []
    for op in program.ops:
        if isinstance(op, Add) and op.x in stream:
            writer = by_output[op.y]
            if isinstance(writer, Linear):
                found += slots_of(writer)
            elif isinstance(writer, Mixture):
                found += [expert.down for expert in writer.experts]
            else:
                raise _refused(writer, f"writes '{op.y}' to")
    return tuple(found)


def _consumers(program: Program, norm: RmsNorm) -> tuple[Slot, ...]:
    found: list[Slot] = []
    for op in program.ops:
        if norm.out in program.inputs(op):
            slots = columns_read(op, norm.out)
            if not slots:
                raise _refused(op, f"reads the norm '{norm.out}' of")
            found += slots
    return tuple(found)


def _refused(op: Op, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"The residual stream of this model cannot be rotated: '{op.out}', a {type(op).__name__}, "
        f"{what} the stream, and only matrices can take the rotation in; leave rotate-residual out."
    )
