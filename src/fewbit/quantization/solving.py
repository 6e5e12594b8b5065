"""One tensor from one format to another, a few rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.formats.activations import static_scale
from fewbit.formats.affine import require_finite
from fewbit.formats.distance import PIECE, piece_rows, pieces, relative, squares
from fewbit.formats.registry import DECODABLE, decode, decode_rows
from fewbit.formats.spec import BlockSpec, NumberFormat, QuantTensor, join_rows
from fewbit.methods.propagation import propagated
from fewbit.methods.solution import Solution
from fewbit.methods.solvers import METHODS, Need, Solver
from fewbit.methods.statistics import InputStatistics
from fewbit.program import Slot
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.records.kernels import Activations

_PIECE_WITH_STATISTICS = 1 << 24
"""Elements at once where a solver prepares statistics first: 64 MiB of float32, so that a large
table is not decoded whole and the preparation (a Cholesky of the inputs) is the smaller part."""


@dataclass(frozen=True)
class Solved:
    """A tensor in its new format, ||W - W'|| / ||W||, and the solver's remarks, each once."""

    tensor: QuantTensor
    relative_error: float
    remarks: tuple[str, ...] = ()
    method: str = ""
    """The solver's name; empty where the source's tensor was kept."""
    input_scale: float | None = None
    """The scale of the layer's input, where its activations are static."""
    damping: float | None = None
    """As `Solution.damping`."""
    tokens: int | None = None
    """Calibration tokens that reached the layer, where statistics were taken."""


def solve(
    tensor: QuantTensor,
    form: NumberFormat,
    method: str,
    name: str,
    statistics: InputStatistics | None = None,
) -> Solved:
    """Encode a tensor in another format.

    Where rows do not depend on each other they are worked on in pieces, which changes no bit.

    Args:
        tensor: the source, in a format that can be decoded.
        form: the format to encode in.
        method: how, a key of `METHODS`.
        name: what the tensor is called in an error.
        statistics: of the matrix's inputs; larger pieces are taken with them, since a solver
            prepares them anew for each.

    Raises:
        NumericalError: a value is not finite or beyond the format; the message locates it.
    """
    rows, columns = tensor.shape
    solver = METHODS[method].solve
    elements = PIECE if statistics is None else _PIECE_WITH_STATISTICS
    step = piece_rows(columns, elements) if form.rows_independent else rows
    solved: list[QuantTensor] = []
    remarks = dict.fromkeys(() if statistics is None else statistics.remarks)
    total, error, damping = 0.0, 0.0, None
    for start in range(0, rows, step):
        values = decode_rows(tensor, slice(start, start + step))
        solution = _solve_piece(_Piece(values, start), form, solver, name, statistics)
        solved.append(solution.tensor)
        remarks.update(dict.fromkeys(solution.remarks))
        damping = solution.damping
        total += squares(values)
        error += squares(decode(solution.tensor) - values)
    return Solved(
        join_rows(solved),
        relative(error, total),
        tuple(remarks),
        method,
        damping=damping,
        tokens=None if statistics is None else statistics.tokens,
    )


def solve_with(
    planned: QuantizationPlan, tensor: PlannedTensor, statistics: InputStatistics
) -> Solved:
    """Return a matrix of a plan, solved by its method with the statistics of its inputs."""
    stored = planned.source.read(tensor.slot)
    solved = solve(stored, tensor.format, tensor.method, tensor.label, statistics)
    if tensor.activations is not Activations.STATIC:
        return solved
    return replace(solved, input_scale=static_scale(statistics.largest))


def solve_alone(planned: QuantizationPlan, tensor: PlannedTensor) -> Solved:
    """Return a matrix of a plan, solved without statistics.

    Where the method needs them, its stand-in is taken, and named in the result.
    """
    method = tensor.method
    if METHODS[method].needs is not Need.NOTHING:
        method = METHODS[method].without_inputs
    stored = planned.source.read(tensor.slot)
    return solve(stored, tensor.format, method, tensor.label)


def solve_rest(planned: QuantizationPlan, solved: Mapping[Slot, Solved]) -> dict[Slot, Solved]:
    """Return the matrices of a plan that are to be quantized and are not solved yet, alone."""
    rest = (t for t in planned.tensors if t.status == "quantized" and t.slot not in solved)
    return {tensor.slot: solve_alone(planned, tensor) for tensor in rest}


def check_finite(tensor: QuantTensor, name: str) -> None:
    """Refuse a tensor that decodes to a value that is not finite.

    Formats that cannot be decoded are passed over.

    Raises:
        NumericalError: the message has the name, row and column of the first such value.
    """
    if isinstance(tensor.spec, BlockSpec) and tensor.spec.name not in DECODABLE:
        return
    with _named(name):
        for rows in pieces(tensor.shape):
            require_finite(decode_rows(tensor, rows), first_row=rows.start)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some rows of a matrix, decoded, from row `start`."""

    values: NDArray[np.float32]
    start: int


def _solve_piece(
    piece: _Piece,
    form: NumberFormat,
    solver: Solver,
    name: str,
    statistics: InputStatistics | None,
) -> Solution:
    start = piece.start
    with _named(name):
        require_finite(piece.values, first_row=start)
    with _named(f"{name}, in the piece that begins at row {start}" if start else name):
        target = piece.values if statistics is None else propagated(piece.values, statistics, start)
        return solver(target, statistics, form)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except NumericalError as error:
        raise NumericalError(f"{name}: {error}") from error
