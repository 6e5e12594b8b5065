"""A slice of a bound Program over whole sequences, without a model around it.

Calibration walks a Program piece by piece: it hands in the buffers that a slice reads, and takes
those it asks for, for every row of every sequence. Nothing else is packed or held: the weights of
the slice, the keys and values of one batch of sequences, and a workspace of a fixed number of rows.
A row gets the bits that the whole Program gives it, since both run the same kernels and those are
row invariant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit._native import ThreadPool
from fewbit.errors import UsageError
from fewbit.formats.registry import decode
from fewbit.program import Buffer, Embed, Op, Program, RopeTable
from fewbit.runtime.chooser import choose_isa
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import thread_pool
from fewbit.runtime.native_program import ProgramWriter
from fewbit.runtime.reference import ReferenceExecutor
from fewbit.runtime.step import PAGE, Span, StepInput

Rows = NDArray[np.float32]

_BATCH_ROWS = 4096
"""Rows of whole sequences that run as one step; a longer sequence is a step of its own. Its keys
and values are what this bounds: a layer of 1024 of each takes 16 MiB in f16."""


@dataclass(frozen=True)
class Slice:
    """Ops of a Program that run together, and the buffers that they read and write."""

    ops: tuple[Op, ...]
    """In order; before them the rope tables they read, which depend on positions alone."""
    reads: tuple[Buffer, ...]
    """What must be given: buffers that no op of the slice writes."""
    writes: tuple[Buffer, ...]
    """What may be wanted."""

    @property
    def takes_tokens(self) -> bool:
        """Whether token ids are needed: an op looks up their embeddings."""
        return any(isinstance(op, Embed) for op in self.ops)


def slice_of(program: Program, ops: range | slice) -> Slice:
    """Return the ops of a Program at these indices, in the Program's order.

    Raises:
        UsageError: no op, or an index that the Program does not have.
    """
    indices = _indices(program, ops)
    chosen = [program.ops[i] for i in indices]
    read = dict.fromkeys(name for op in chosen for name in program.inputs(op))
    tables = [
        op
        for op in program.ops[: indices[0]]
        if isinstance(op, RopeTable) and op.out in read and op not in chosen
    ]
    written = dict.fromkeys(op.out for op in (*tables, *chosen))
    reads = tuple(name for name in read if name not in written)
    return Slice((*tables, *chosen), reads, tuple(written))


def _indices(program: Program, ops: range | slice) -> range:
    count = len(program.ops)
    indices = range(*ops.indices(count)) if isinstance(ops, slice) else ops
    if not indices or min(indices) < 0 or max(indices) >= count or indices.step < 0:
        raise UsageError(
            f"Ops {ops} are no slice of a program of {count} ops; name ascending indices within it."
        )
    return indices


class ReferenceSegment:
    """A slice of a bound Program op by op in NumPy: the truth that `Segment` is held to."""

    def __init__(self, binding: Binding, ops: range | slice) -> None:
        """Take what `Segment` takes; weights are decoded in each run."""
        self.slice = slice_of(binding.program, ops)
        self._binding = binding

    def run(
        self,
        lengths: Sequence[int],
        given: Mapping[Buffer, Rows],
        wanted: Sequence[Buffer],
        tokens: NDArray[np.int32] | None = None,
    ) -> dict[Buffer, Rows]:
        """Run whole sequences; arguments, result and errors are those of `Segment.run`."""
        work = _Work(self._binding.program, self.slice, lengths, given, wanted, tokens)
        work.check()
        results = work.new_results()
        executor = ReferenceExecutor(self._binding, work.pages)
        for rows, step in work.steps():
            read = {name: given[name][rows] for name in self.slice.reads}
            buffers = executor.trace_ops(self.slice.ops, read, step)
            for name, result in results.items():
                result[rows] = buffers[name]
        return results


class Segment:
    """A slice of a bound Program on native kernels, packed once for any number of runs."""

    def __init__(
        self,
        binding: Binding,
        ops: range | slice,
        *,
        threads: int | ThreadPool,
        isa: str | None = None,
    ) -> None:
        """Pack the slice's matrices that are not packed yet, releasing each slot as it is.

        Embeddings are looked up in the stored tensor and not packed.

        Args:
            binding: the Program, its tensors, and the kernel records the chooser made. Only the
                slots of the slice are read, so others may be missing.
            ops: indices into the Program's ops. The rope tables that they read come with them.
            threads: how many threads run it, the caller included; or a pool to share.
            isa: an instruction set to force, one of `available_isas()`; None for the best.

        Raises:
            UsageError: no op, an index that the Program does not have, or threads out of range.
            KernelError: no kernel reads a tensor, or this CPU lacks the instruction set.
        """
        self.slice = slice_of(binding.program, ops)
        self._isa = choose_isa(isa)
        self._pool = threads if isinstance(threads, ThreadPool) else thread_pool(threads)
        self._embeds = [op for op in self.slice.ops if isinstance(op, Embed)]
        self._given = (*self.slice.reads, *(op.out for op in self._embeds))
        part = _part_of(binding, self.slice)
        writer = ProgramWriter(part, (), self._pool.size, self._given)
        self._binding = replace(part, packed=writer.matrices, orders=writer.orders)
        self._prepared: _Prepared | None = None

    def run(
        self,
        lengths: Sequence[int],
        given: Mapping[Buffer, Rows],
        wanted: Sequence[Buffer],
        tokens: NDArray[np.int32] | None = None,
        into: Mapping[Buffer, Rows] | None = None,
    ) -> dict[Buffer, Rows]:
        """Run whole sequences, each from position 0, and return the wanted buffers' rows.

        Args:
            lengths: rows of each sequence; the rows of all arrays are theirs, one after the other.
            given: what the slice reads, float32 [rows, width] each, contiguous; others may be
                among them.
            wanted: buffers that the slice writes. Behind `SelectRows` every row is selected.
            tokens: int32 [rows], where the slice looks up embeddings.
            into: for each wanted buffer contiguous float32 [rows, width] to write to, which shares
                no memory with what is given; None for new arrays.

        Returns:
            float32 [rows, width] for each wanted buffer.

        Raises:
            UsageError: an array is missing or of another shape or type, a buffer is not written by
                the slice, a sequence is longer than the context, or a token outside the vocabulary.
        """
        work = _Work(self._binding.program, self.slice, lengths, given, wanted, tokens)
        work.check()
        results = work.new_results() if into is None else dict(into)
        prepared = self._prepare(frozenset(wanted), work.pages)
        for rows, step in work.steps():
            read = {name: given[name][rows] for name in self.slice.reads}
            for op in self._embeds:
                read[op.out] = _embedded(self._binding, op, step.tokens)
            prepared.run(step, read, {name: result[rows] for name, result in results.items()})
        return results

    def _prepare(self, wanted: frozenset[Buffer], pages: int) -> _Prepared:
        """Return an executor that hands out what is wanted: the last one, where that fits."""
        prepared = self._prepared
        if prepared is None or prepared.wanted != wanted or prepared.pages < pages:
            tapped = wanted.difference(self._given)
            writer = ProgramWriter(self._binding, tapped, self._pool.size, self._given)
            executor = _native.Executor(writer.program, max(pages, 1), self._pool, self._isa)
            self._prepared = prepared = _Prepared(executor, wanted, pages, writer.buffers)
        return prepared


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A native executor of the slice for a set of wanted buffers."""

    executor: _native.Executor
    wanted: frozenset[Buffer]
    pages: int
    buffers: Mapping[Buffer, int]

    def run(
        self, step: StepInput, read: Mapping[Buffer, Rows], results: Mapping[Buffer, Rows]
    ) -> None:
        """Run a step that reads and writes the caller's arrays."""
        for name in read.keys() & results.keys():
            results[name][...] = read[name]
        self.executor.run(
            step.tokens,
            [span.packed() for span in step.spans],
            step.wanted,
            [(self.buffers[name], rows) for name, rows in read.items()],
            [(self.buffers[name], rows) for name, rows in results.items() if name not in read],
        )


def _part_of(binding: Binding, piece: Slice) -> Binding:
    """Return the binding of the slice alone, without the ops that look up embeddings."""
    ops = tuple(op for op in piece.ops if not isinstance(op, Embed))
    program = replace(binding.program, ops=ops)
    kernels = {slot: binding.kernels[slot] for slot in program.slots() if slot in binding.kernels}
    return replace(binding, program=program, kernels=kernels)


def _embedded(binding: Binding, op: Embed, tokens: NDArray[np.int32]) -> Rows:
    """Return the scaled embeddings of tokens as the native op computes them."""
    rows = decode(binding.tensors[op.weight].take_rows(tokens.astype(np.intp)))
    return np.ascontiguousarray(rows * np.float32(op.scale))


@dataclass(frozen=True, eq=False)
class _Work:
    """The arguments of a run, and its rows as steps of whole sequences."""

    program: Program
    piece: Slice
    lengths: Sequence[int]
    given: Mapping[Buffer, Rows]
    wanted: Sequence[Buffer]
    tokens: NDArray[np.int32] | None

    @property
    def rows(self) -> int:
        """Rows of all sequences."""
        return int(sum(self.lengths))

    def check(self) -> None:
        """Raise UsageError where the arguments are not what `Segment.run` asks for."""
        for i, length in enumerate(self.lengths):
            if not 1 <= length <= self.program.context:
                raise UsageError(
                    f"Sequence {i} has {length} rows; it must have 1 to {self.program.context}, "
                    "the model's context."
                )
        for name in self.piece.reads:
            self._check_given(name)
        for name in self.wanted:
            if name not in self.piece.writes:
                raise UsageError(
                    f"The slice does not write buffer '{name}'; it writes "
                    f"{', '.join(self.piece.writes)}."
                )
        if self.piece.takes_tokens:
            self._check_tokens()

    @property
    def pages(self) -> int:
        """Pages that the step with the most of them takes."""
        return max((_pages(batch) for batch in batches(self.lengths, _BATCH_ROWS)), default=0)

    def new_results(self) -> dict[Buffer, Rows]:
        """Return memory for all rows of the wanted buffers."""
        widths = self.program.widths
        return {name: np.empty((self.rows, widths[name]), np.float32) for name in self.wanted}

    def steps(self) -> Iterator[tuple[slice, StepInput]]:
        """Yield each step with its place among all rows; every row of it is wanted."""
        tokens = np.zeros(self.rows, np.int32) if self.tokens is None else self.tokens
        start = 0
        for batch in batches(self.lengths, _BATCH_ROWS):
            rows = slice(start, start + sum(batch))
            wanted = np.arange(sum(batch), dtype=np.int32)
            yield rows, StepInput(np.ascontiguousarray(tokens[rows]), spans_of(batch), wanted)
            start = rows.stop

    def _check_given(self, name: Buffer) -> None:
        if name not in self.given:
            raise UsageError(f"The slice reads buffer '{name}', which is not given.")
        array, shape = self.given[name], (self.rows, self.program.widths[name])
        if array.dtype != np.float32 or array.shape != shape or not array.flags.c_contiguous:
            raise UsageError(
                f"Buffer '{name}' is given as {array.dtype} of shape {array.shape}; it must be "
                f"contiguous float32 of shape {shape}."
            )

    def _check_tokens(self) -> None:
        tokens = self.tokens
        if tokens is None:
            raise UsageError("The slice looks up embeddings; give the token id of every row.")
        if tokens.dtype != np.int32 or tokens.shape != (self.rows,):
            raise UsageError(
                f"Tokens are {tokens.dtype} of shape {tokens.shape}; they must be int32 of shape "
                f"({self.rows},)."
            )
        outside = (tokens < 0) | (tokens >= self.program.vocabulary)
        if outside.any():
            row = int(np.argmax(outside))
            raise UsageError(
                f"Token {tokens[row]} in row {row} is outside the vocabulary of "
                f"{self.program.vocabulary}."
            )


def batches(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield consecutive sequences of at most `most` rows together; a longer one stands alone."""
    batch: list[int] = []
    for length in lengths:
        if batch and sum(batch) + length > most:
            yield batch
            batch = []
        batch.append(length)
    if batch:
        yield batch


def spans_of(lengths: Sequence[int]) -> tuple[Span, ...]:
    """Return whole sequences, one after the other, each on pages of its own."""
    spans = []
    row = page = 0
    for length in lengths:
        pages = -(-length // PAGE)
        spans.append(Span(row, length, 0, np.arange(page, page + pages, dtype=np.int32)))
        row, page = row + length, page + pages
    return tuple(spans)


def _pages(lengths: Sequence[int]) -> int:
    return sum(-(-length // PAGE) for length in lengths)
