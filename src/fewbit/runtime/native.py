"""The native executor: a bound Program walked in C++ by a pool of threads.

A token's row gets the same bits whatever other rows share the step, however the prompt was cut
into steps, wherever its pages lie, and on any number of threads; on any instruction set too, but
for bf16 weights, which have bits of their own on AMX.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit._native import PackedMatrix, ThreadPool
from fewbit.errors import FaultError, UsageError
from fewbit.program import Buffer, Program, Slot
from fewbit.runtime.chooser import choose_isa
from fewbit.runtime.executor import Binding, Tap
from fewbit.runtime.native_program import ProgramWriter
from fewbit.runtime.step import PAGE, StepInput

_INT32 = np.dtype(np.int32)
_ALL = slice(None)
_NOTHING: Mapping[Buffer, NDArray[np.float32]] = MappingProxyType({})


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_of(asked: int | None) -> int:
    """Return how many threads to run on: those asked for, or one for every core.

    Raises:
        UsageError: fewer than one.
    """
    if asked is not None and asked < 1:
        raise UsageError(f"threads is {asked}; it must be a whole number, at least 1.")
    return asked or available_cores()


class NativeExecutor:
    """Runs steps of a bound Program over a KV store; satisfies `runtime.executor.Executor`.

    Memory is the packed weights, the KV store (touched page by page as it fills) and one workspace
    of a fixed number of rows; logits and taps take their rows' bytes beyond that. Steps from
    several Python threads take turns, and each releases the interpreter's lock for its whole run.
    In the child of a fork, which has none of the pool's threads, the caller's runs alone.
    """

    def __init__(  # noqa: PLR0913
        self,
        binding: Binding,
        *,
        pages: int,
        threads: int | ThreadPool,
        isa: str | None = None,
        taps: frozenset[Tap] = frozenset(),
        given: Collection[Buffer] = (),
    ) -> None:
        """Pack the weights that are not packed yet, releasing each slot of the binding as it is.

        Args:
            binding: the Program, its tensors, and the kernel records the chooser made.
            pages: pages of `PAGE` positions in the KV store.
            threads: how many threads run a step, the caller included; or a pool to share between
                executors of one process (a target and its draft), so they do not compete.
            isa: an instruction set to force, one of `available_isas()`; None for the best.
            taps: ops whose results `tap` returns after a step.
            given: buffers that no op writes; each step brings their rows.

        Raises:
            UsageError: pages or threads below 1, more weights or pages than memory can hold, more
                threads than the system gives, or a tap that names no op of the Program.
            KernelError: no kernel reads a tensor, or this CPU lacks the instruction set.
            FaultError: the Program is not well-formed.
        """
        if pages < 1:
            raise UsageError(f"pages is {pages}; the KV store needs at least one page.")
        isa = choose_isa(isa)
        pool = threads if isinstance(threads, ThreadPool) else thread_pool(threads)
        writer = _written(binding, pool.size, taps, given)
        try:
            native = _native.Executor(writer.program, pages, pool, isa)
        except ValueError as error:
            raise FaultError(f"The program cannot run: {error}") from error
        except MemoryError as error:
            raise UsageError(
                f"There is no memory for a KV store of {pages} pages of {PAGE} positions; ask for "
                "a shorter context or fewer sequences."
            ) from error
        self._take(native, writer, pool, isa, _numbers(binding.program, writer, taps))

    @classmethod
    def beside(cls, target: NativeExecutor, binding: Binding) -> NativeExecutor:
        """Return an executor with weights of its own over a target's KV store and threads.

        What either writes the other reads; steps of both take turns. It is made for steps of a few
        rows (a draft's), with little memory for more: they run in pieces, to the same bits.

        Args:
            target: the executor whose store, threads and instruction set it shares.
            binding: the Program and its tensors. Its layers may be fewer, and must keep keys and
                values as the target's do.

        Raises:
            UsageError: no memory for the weights.
            KernelError: no kernel reads a tensor.
            FaultError: the Program is not well-formed, or its keys and values do not fit the store.
        """
        writer = _written(binding, target.pool.size)
        try:
            native = _native.Executor(writer.program, target._native)
        except ValueError as error:
            raise FaultError(f"The program cannot run beside another: {error}") from error
        made = cls.__new__(cls)
        made._take(native, writer, target.pool, target.isa, {})
        return made

    def _take(
        self,
        native: _native.Executor,
        writer: ProgramWriter,
        pool: ThreadPool,
        isa: str,
        taps: dict[Tap, int],
    ) -> None:
        self._native = native
        self._isa = isa
        self.pool = pool
        """The threads of a step; between two steps they can do other work."""
        self._matrices = writer.matrices
        self._buffers = writer.buffers
        self._taps = taps

    @property
    def pages(self) -> int:
        """Pages in the KV store."""
        return self._native.pages

    @property
    def matrices(self) -> Mapping[Slot, PackedMatrix]:
        """The packed weights by slot."""
        return self._matrices

    @property
    def isa(self) -> str:
        """The instruction set that runs."""
        return self._isa

    @property
    def store_bytes(self) -> int:
        """Bytes of the KV store when every page is in use."""
        return self._native.store_bytes

    def step(
        self, step: StepInput, given: Mapping[Buffer, NDArray[np.float32]] = _NOTHING
    ) -> NDArray[np.float32]:
        """Return the wanted rows' logits, float32 [wanted, vocabulary], valid until the next step.

        Args:
            step: what is run.
            given: contiguous float32 [rows, width] for each buffer that is brought with a step.

        Raises:
            UsageError: token, page or wanted row out of range, spans that do not cover the rows,
                positions beyond the context, arrays of another type, a buffer that is not given,
                or no memory for the logits; nothing was run.
        """
        _check_arrays(step)
        spans = [span.packed() for span in step.spans]
        rows = [(self._buffers[name], array) for name, array in given.items()]
        try:
            return self._native.step(step.tokens, spans, step.wanted, rows)
        except ValueError as error:
            raise UsageError(f"The step cannot run: {error}") from error
        except MemoryError as error:
            raise UsageError(
                f"There is no memory for a step of {len(step.tokens)} rows with the logits of "
                f"{len(step.wanted)}; run fewer rows at once."
            ) from error

    def page(self, page: int) -> bytes:
        """Return a copy of a page of the KV store: all layers' keys and values as they lie there.

        Two pages written with the same tokens at the same positions are equal in every bit.

        Raises:
            UsageError: there is no such page.
        """
        try:
            return self._native.page(page)
        except ValueError as error:
            raise UsageError(f"The page cannot be read: {error}") from error

    def tap(
        self, layer: int, site: str, rows: slice | NDArray[np.integer] = _ALL
    ) -> NDArray[np.float32]:
        """Return a copy of what a tapped op wrote in the last step, float32 [rows, width].

        Rows are those of the step, or the wanted ones for an op behind `SelectRows`; of them, the
        chosen ones.

        Raises:
            UsageError: the op was not tapped when the executor was made.
        """
        if (layer, site) not in self._taps:
            raise UsageError(
                f"Layer {layer}, site '{site}' is not tapped; name it in `taps` when the executor "
                "is made."
            )
        found = self._native.tap(self._taps[layer, site])[rows]
        return found.copy() if isinstance(rows, slice) else found


Pool: TypeAlias = ThreadPool
"""Threads that share work, for type annotations of modules above this floor."""


def thread_pool(threads: int) -> ThreadPool:
    """Return a pool of that many threads, the caller of a step included.

    Raises:
        UsageError: threads outside 1 to 1024, or more than the system gives.
    """
    try:
        return ThreadPool(threads)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check_arrays(step: StepInput) -> None:
    for i, array in enumerate((step.tokens, step.wanted, *[span.pages for span in step.spans])):
        if array.dtype != _INT32 or array.ndim != 1 or not array.flags.c_contiguous:
            name = ("tokens", "wanted")[i] if i < 2 else f"pages of span {i - 2}"
            raise UsageError(
                f"The step cannot run: {name} is {array.dtype} of shape {array.shape}; it must be "
                "a contiguous int32 vector."
            )


def _written(
    binding: Binding,
    threads: int,
    taps: frozenset[Tap] = frozenset(),
    given: Collection[Buffer] = (),
) -> ProgramWriter:
    """Write a whole Program, its weights packed."""
    try:
        writer = ProgramWriter(binding, _outputs(binding.program, taps), threads, given)
    except MemoryError as error:
        raise UsageError(
            "There is no memory for the model's weights; quantize the model to fewer bits, or "
            "free memory."
        ) from error
    writer.program.logits = writer.buffers[binding.program.logits]
    return writer


def _numbers(program: Program, writer: ProgramWriter, taps: frozenset[Tap]) -> dict[Tap, int]:
    places = {(op.layer, op.site): op.out for op in program.ops}
    return {tap: writer.buffers[places[tap]] for tap in taps}


def _outputs(program: Program, taps: frozenset[Tap]) -> frozenset[Buffer]:
    """Return the buffers that the tapped ops write."""
    places = {(op.layer, op.site): op.out for op in program.ops}
    unknown = sorted(taps - places.keys())
    if unknown:
        raise UsageError(
            f"The program has no op at layer {unknown[0][0]}, site '{unknown[0][1]}' to tap."
        )
    return frozenset(places[tap] for tap in taps)
