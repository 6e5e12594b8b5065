"""How far a model's output moves when some of its matrices are replaced.

The source runs once over a few windows, layer by layer; what enters each layer is kept, and the
source's distribution at every token. A probe replaces matrices and runs only what lies behind the
first of them, from what entered there, and compares the distributions token by token. Both sides
run the same kernels on the same tokens, so a probe that changes nothing measures exactly 0: there
is no floor to subtract. Matrices in integer formats have their inputs rounded to bf16 here, not to
int8, whose rounding would add a noise as large as what one matrix does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import bind, is_vector
from fewbit.model.decoder import build_program
from fewbit.model.weights import ModelSource
from fewbit.program import OUTSIDE, Buffer, Linear, Mixture, Op, Program, Slot, slots_of
from fewbit.records.kernels import Activations, KernelRecord
from fewbit.runtime.chooser import Demand, choose, rounding_of
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import NativeExecutor, threads_of
from fewbit.runtime.segment import Segment, slice_of

Rows: TypeAlias = NDArray[np.float32]

_HEAD_ROWS = 256
"""Rows of logits at once: 50 MB with 49,152 tokens, 156 MB with 151,936."""

_BLOCK = 8192
"""Elements of a dot product given to BLAS at once; above 10,000 OpenBLAS wakes its own threads."""

_WEIGHT_ONLY = Demand(activations=rounding_of(Activations.BF16))


def divergence(log_source: Rows, logits: Rows) -> NDArray[np.float64]:
    """Return KL(source || candidate) of each row in nats, float64 [rows].

    With p the source's probabilities, d = candidate's logits - log p and m = E_p[d], it is
    log(1 + E_p[exp(d - m) - 1]) - E_p[d - m], which has no difference of large numbers. Elements
    and runs of 8192 are float32, all else float64, so what is lost are some 2^-24 nats.

    Args:
        log_source: float32 [rows, vocabulary], log-probabilities.
        logits: float32 of the same shape, finite.
    """
    vocabulary = logits.shape[1]
    blocks = (-(-vocabulary // _BLOCK), _BLOCK)
    p_blocks, d_blocks = np.zeros(blocks, np.float32), np.zeros(blocks, np.float32)
    p, d = p_blocks.reshape(-1)[:vocabulary], d_blocks.reshape(-1)[:vocabulary]
    found = np.empty(len(logits))
    for row, (log_p, candidate) in enumerate(zip(log_source, logits, strict=True)):
        np.exp(log_p, out=p)
        np.subtract(candidate, log_p, out=d)
        total = float(p.sum(dtype=np.float64))
        d -= np.float32(_dot(p_blocks, d_blocks) / total)
        mean = _dot(p_blocks, d_blocks) / total
        np.exp(d, out=d)
        d -= np.float32(1)
        found[row] = np.log1p(_dot(p_blocks, d_blocks) / total) - mean
    return np.maximum(found, 0.0)


class ProbeModel:
    """The source on native kernels, and what it gives on some windows."""

    def __init__(
        self, source: ModelSource, windows: Sequence[NDArray[np.int32]], threads: int | None = None
    ) -> None:
        """Pack the source and run it once.

        Args:
            source: the model.
            windows: token ids, int32 [tokens] each; every position is compared.
            threads: None for every core.

        Raises:
            KernelError: no kernel can run a matrix.
            NumericalError: a logit of the source is not finite.
            UsageError: a window is longer than the model's context.
        """
        self.program = build_program(source.config)
        self.lengths = tuple(map(len, windows))
        self.squares: dict[Slot, NDArray[np.float64]] = {}
        """The mean square of each input of a matrix, float64 [inputs]. An input table has none
        (its rows are looked up), nor has a matrix inside an expert behind the first."""
        self._tokens = np.concatenate(windows).astype(np.int32)
        self._threads = threads_of(threads)
        bound = bind(source, self.program, _kernel)
        executor = NativeExecutor(bound, pages=1, threads=self._threads)
        self._pool = executor.pool
        self._binding = replace(bound, packed=executor.matrices)
        self._parts = _Parts.of(self.program)
        self._entered: list[Mapping[Buffer, Rows]] = [{}]
        for part in range(len(self._parts.starts) - 1):
            self._run_part(part)
        head = (self.program.ops[index] for index in self._parts.head)
        self._square(dict(pair for op in head for pair in _inputs(op)), self._entered[-1])
        self._head = self._segment(self._binding, self._parts.head)
        logits = self._logits(self._head, self._entered[-1], len(self._tokens))
        self._source = [_log_softmax(_finite(rows)) for rows in logits]

    def measure(
        self, replaced: Mapping[Slot, QuantTensor], windows: int | None = None
    ) -> NDArray[np.float64]:
        """Return each window's mean KL(source || source with these tensors), float64 [windows].

        Args:
            replaced: the tensors that take a slot's place.
            windows: how many, from the first on; None for all.

        Raises:
            KernelError: no kernel can run a tensor.
            NumericalError: a logit is not finite.
        """
        lengths = self.lengths[:windows]
        binding = _with(self._binding, replaced)
        last = len(self._parts.starts) - 1
        part = min((self._parts.first_use(slot) for slot in replaced), default=last)
        entered = _first_rows(self._entered[part], sum(lengths))
        if part < last:
            body = range(self._parts.starts[part], self._parts.head.start)
            wanted = tuple(self._entered[last])
            tokens = self._tokens[: sum(lengths)]
            entered = self._segment(binding, body).run(lengths, entered, wanted, tokens)
        new = any(slot in replaced for slot in self._parts.head_slots)
        head = self._segment(binding, self._parts.head) if new else self._head
        rows = np.concatenate(self._compared(self._logits(head, entered, sum(lengths))))
        return np.array([part.mean() for part in np.split(rows, np.cumsum(lengths)[:-1])])

    def _run_part(self, part: int) -> None:
        """Run a part of the source, keep what enters the next one, and square the inputs."""
        starts = self._parts.starts
        ops = range(starts[part], starts[part + 1])
        left = range(starts[part + 1], self._parts.head.stop)
        kept = slice_of(self.program, left).reads
        inputs = {slot: x for i in ops for slot, x in _inputs(self.program.ops[i])}
        wanted = tuple(dict.fromkeys((*kept, *inputs.values())))
        segment = self._segment(self._binding, ops)
        found = segment.run(self.lengths, self._entered[part], wanted, self._tokens)
        self._square(inputs, found)
        self._entered.append({name: found[name] for name in kept})

    def _square(self, inputs: Mapping[Slot, Buffer], found: Mapping[Buffer, Rows]) -> None:
        for slot, x in inputs.items():
            if x in found:
                squares = np.einsum("ri,ri->i", found[x], found[x])
                self.squares[slot] = squares.astype(np.float64) / len(self._tokens)

    def _segment(self, binding: Binding, ops: range) -> Segment:
        return Segment(binding, ops, threads=self._pool)

    def _logits(self, head: Segment, given: Mapping[Buffer, Rows], count: int) -> Iterator[Rows]:
        """Yield the logits of rows, some at a time; behind the last layer rows stand alone."""
        for start in range(0, count, _HEAD_ROWS):
            rows = slice(start, min(start + _HEAD_ROWS, count))
            some = {name: values[rows] for name, values in given.items()}
            ones = (1,) * (rows.stop - start)
            yield head.run(ones, some, (self.program.logits,))[self.program.logits]

    def _compared(self, logits: Iterator[Rows]) -> list[NDArray[np.float64]]:
        found = []
        with ThreadPoolExecutor(self._threads) as pool:
            for whole, block in zip(self._source, logits, strict=False):  # not all may be run
                _finite(block)
                log_p = whole[: len(block)]
                parts = np.array_split(np.arange(len(block)), self._threads)
                jobs = [pool.submit(divergence, log_p[part], block[part]) for part in parts]
                found += [job.result() for job in jobs]
        return found


@dataclass(frozen=True)
class _Parts:
    """Where a Program is cut: before its first layer, each layer, and its head."""

    starts: tuple[int, ...]
    """The first op of every part in front of the head, then that of the head."""
    head: range
    uses: tuple[frozenset[Slot], ...]
    """The slots of each part in front of the head."""
    head_slots: frozenset[Slot]

    @classmethod
    def of(cls, program: Program) -> _Parts:
        """Cut a Program."""
        ops = program.ops
        head = next(i for i, op in enumerate(ops) if isinstance(op, Linear) and op.layer == OUTSIDE)
        first: dict[int, int] = {}
        for index, op in enumerate(ops[:head]):
            if op.layer != OUTSIDE:
                first.setdefault(op.layer, index)
        starts = (0, *first.values(), head)
        uses = tuple(_slots(ops[start:end]) for start, end in itertools.pairwise(starts))
        return cls(starts, range(head, len(ops)), uses, _slots(ops[head:]))

    def first_use(self, slot: Slot) -> int:
        """Return the first part that reads a slot; the head's is the last."""
        return next((i for i, slots in enumerate(self.uses) if slot in slots), len(self.uses))


class _Over(Mapping[Slot, QuantTensor]):
    """Tensors of which some are replaced."""

    def __init__(
        self, below: Mapping[Slot, QuantTensor], above: Mapping[Slot, QuantTensor]
    ) -> None:
        self._below = below
        self._above = above

    def __getitem__(self, slot: Slot) -> QuantTensor:
        found = self._above.get(slot)
        return self._below[slot] if found is None else found

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._below)

    def __len__(self) -> int:
        return len(self._below)


def _with(base: Binding, replaced: Mapping[Slot, QuantTensor]) -> Binding:
    matrices = {slot: tensor for slot, tensor in replaced.items() if not is_vector(slot)}
    return replace(
        base,
        tensors=_Over(base.tensors, replaced),
        kernels={**base.kernels, **{slot: _kernel(slot, t) for slot, t in matrices.items()}},
        packed={slot: packed for slot, packed in base.packed.items() if slot not in matrices},
    )


def _kernel(slot: Slot, tensor: QuantTensor) -> KernelRecord:
    return choose(slot, tensor, _WEIGHT_ONLY)


def _first_rows(given: Mapping[Buffer, Rows], count: int) -> dict[Buffer, Rows]:
    return {name: values[:count] for name, values in given.items()}


def _slots(ops: Sequence[Op]) -> frozenset[Slot]:
    return frozenset(slot for op in ops for slot in slots_of(op))


def _inputs(op: Op) -> Iterator[tuple[Slot, Buffer]]:
    """Yield the matrices that an op multiplies with a buffer, and that buffer."""
    if isinstance(op, Linear):
        yield op.weight, op.x
    elif isinstance(op, Mixture):
        for expert in op.experts:
            yield expert.gate, op.x
            yield expert.up, op.x


def _log_softmax(logits: Rows) -> Rows:
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True))
    return np.asarray(shifted - total.astype(np.float32))


def _finite(logits: Rows) -> Rows:
    finite = np.isfinite(logits).all(axis=1)
    if not finite.all():
        raise NumericalError(
            f"The logits of row {int(np.argmin(finite))} of the probe text are not finite; a "
            "weight of the model is out of range."
        )
    return logits


def _dot(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.vecdot(one, other).sum(dtype=np.float64))
