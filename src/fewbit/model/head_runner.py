"""A draft head ready to run beside a target: steps of its layer, and the fusing before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UnsupportedError
from fewbit.formats.registry import F32, decode, encode, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.config import CONTEXT_LIMIT
from fewbit.model.decoder import require_heads
from fewbit.model.head import (
    HIDDEN,
    STATES,
    TAPPED,
    HeadConfig,
    fuse_program,
    head_program,
    head_shapes,
    next_state,
)
from fewbit.model.head_source import EMBEDDING, HEAD, HeadSource
from fewbit.model.memory import FLOAT_BYTES, plan_memory, require_room
from fewbit.model.runner import Runner
from fewbit.program import Hadamard, Program, Slot
from fewbit.records.kernels import KernelRecord
from fewbit.records.loading import MemoryPlan
from fewbit.runtime.chooser import Demand, choose
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.reference import ReferenceExecutor, choose_reference
from fewbit.runtime.segment import ReferenceSegment, Segment
from fewbit.runtime.step import StepInput

Rows = NDArray[np.float32]

ROUNDED = "q8_0"
"""What a head's matrices are rounded to: half of 16 bits to read for every drafted token."""

_RUN = 32


@dataclass(frozen=True)
class HeadRunner:
    """A head with a KV store of its own, on the target's threads."""

    config: HeadConfig
    executor: NativeExecutor | ReferenceExecutor
    fusing: Segment | ReferenceSegment
    kernels: tuple[KernelRecord, ...]
    """Of every matrix, those of the target that it shares included."""
    memory: MemoryPlan
    """Counted before it was loaded; what it shares with the target is not in it."""

    @property
    def pages(self) -> int:
        """Pages in its store."""
        return self.executor.pages

    def page(self, page: int) -> bytes:
        """Return the keys and values of a page of its store."""
        return self.executor.page(page)

    @property
    def width(self) -> int:
        """Floats of the target's states for one position."""
        return TAPPED * self.config.target_hidden

    def fuse(self, states: Rows) -> Rows:
        """Return what the layer reads for verified positions, [rows, hidden].

        Args:
            states: float32 [rows, width], contiguous: the target's, side by side.
        """
        if not len(states):
            return np.empty((0, self.config.layer.hidden), np.float32)
        return self.fusing.run([len(states)], {STATES: states}, [HIDDEN])[HIDDEN]

    def step(self, step: StepInput, hidden: Rows) -> tuple[Rows, Rows]:
        """Run the layer.

        Args:
            step: rows of tokens.
            hidden: float32 [rows, hidden], contiguous: the state beside each.

        Returns:
            For the wanted rows the logits, float32 [wanted, n], valid until the next step, and the
            state that the next position reads, float32 [wanted, hidden].
        """
        logits = self.executor.step(step, {HIDDEN: hidden})
        return logits, self.executor.tap(*next_state(self.config))


def head_runner(source: HeadSource, target: Runner, pages: int, waiting: int = 0) -> HeadRunner:
    """Make a head ready to run beside its target.

    Its matrices are rounded to `ROUNDED` where that divides them; an embedding or a head that the
    file does not have is the target's.

    Args:
        source: the head.
        target: what it drafts for.
        pages: of its KV store.
        waiting: rows of the target's states that may be kept until they are read.

    Raises:
        UnsupportedError: the head is of a target of another shape.
        KernelError: no kernel runs a matrix.
        UsageError: too little memory, or keys that the target's type of KV cache does not fit.
    """
    config = source.config
    _require_fit(source, target)
    rotates = any(isinstance(op, Hadamard) and op.site == "k_rotate" for op in target.program.ops)
    cache_type = target.program.cache_type
    require_heads(config.layer.head_dim, cache_type, rotate_keys=rotates)
    # How far the head was trained to look back says its rope alone; positions are the target's.
    program = replace(head_program(config, cache_type, rotate_keys=rotates), context=target.context)
    weights = _Weights(source, target)
    layer = weights.bound(program)
    fuse = weights.bound(replace(fuse_program(config), context=CONTEXT_LIMIT))
    kernels = (*fuse.kernels.values(), *layer.kernels.values())
    memory = plan_memory(
        {slot: shape for slot, shape in head_shapes(config).items() if slot in source.tensors},
        [layer.program, fuse.program],
        [k for slot, k in {**fuse.kernels, **layer.kernels}.items() if slot in source.tensors],
        pages,
        waiting * TAPPED * config.target_hidden * FLOAT_BYTES,
    )
    require_room(memory, f"The head {source.path}", target.loading.memory)
    taps = frozenset([next_state(config)])
    everything = range(len(fuse.program.ops))
    executor = target.executor
    if not isinstance(executor, NativeExecutor):
        return HeadRunner(
            config,
            ReferenceExecutor(layer, pages, taps),
            ReferenceSegment(fuse, everything),
            kernels,
            memory,
        )
    pool, isa = executor.pool, executor.isa
    native = NativeExecutor(layer, pages=pages, threads=pool, isa=isa, taps=taps, given=(HIDDEN,))
    fusing = Segment(fuse, everything, threads=pool, isa=isa)
    return HeadRunner(config, native, fusing, kernels, memory)


@dataclass(frozen=True)
class _Weights:
    """What fills the slots of a head's Programs."""

    source: HeadSource
    target: Runner

    def bound(self, program: Program) -> Binding:
        own = self.source.tensors
        slots = program.slots()
        tensors = {slot: self._own(slot) for slot in slots if slot in own}
        executor = self.target.executor
        packed = {}
        if isinstance(executor, NativeExecutor):
            packed = {s: executor.matrices[self._theirs(s)] for s in slots if s not in own}
        else:
            tensors |= {
                s: self.target.binding.tensors[self._theirs(s)] for s in slots if s not in own
            }
        kernels = {s: self._kernel(s, tensors) for s in slots if not is_vector(s)}
        orders = self.target.binding.orders
        named = {s: self._theirs(s) for s in kernels if s not in own}
        orders = {s: orders[theirs] for s, theirs in named.items() if theirs in orders}
        return Binding(program, tensors, kernels, packed=packed, orders=orders)

    def _theirs(self, slot: Slot) -> Slot:
        """Return the target's slot that stands in for one that the head does not have."""
        return EMBEDDING if slot == HEAD and self.target.config.tied else slot

    def _own(self, slot: Slot) -> QuantTensor:
        tensor = self.source.tensors[slot]
        if is_vector(slot):
            return encode(decode(tensor), F32)
        if tensor.shape[1] % _RUN:
            return tensor
        return encode(decode(tensor), parse_format(ROUNDED))

    def _kernel(self, slot: Slot, tensors: Mapping[Slot, QuantTensor]) -> KernelRecord:
        if slot not in self.source.tensors:
            return self.target.binding.kernels[self._theirs(slot)]
        executor = self.target.executor
        if isinstance(executor, NativeExecutor):
            return choose(slot, tensors[slot], Demand(isa=executor.isa))
        return choose_reference(slot, tensors[slot])


def _require_fit(source: HeadSource, target: Runner) -> None:
    config, theirs = source.config, target.config
    pairs: Sequence[tuple[str, int, int]] = (
        ("hidden size", config.target_hidden, theirs.hidden),
        ("vocabulary", config.layer.vocabulary, theirs.vocabulary),
    )
    for what, wanted, found in pairs:
        if wanted != found:
            raise UnsupportedError(
                f"The head {source.path} was made for a target with a {what} of {wanted:,}, and "
                f"{target.source.path} has {found:,}; it belongs to another model."
            )
    config.taps(theirs.layers)
    missing = [slot for slot in (EMBEDDING, HEAD) if slot not in source.tensors]
    if missing and config.layer.hidden != theirs.hidden:
        raise UnsupportedError(
            f"The head {source.path} has no matrix of its own for {missing[0].partition('.')[0]}, "
            f"and the target's has {theirs.hidden} columns, not {config.layer.hidden}; fetch a "
            "head that has its own."
        )
    if HEAD in missing and config.layer.head_rows != theirs.vocabulary:
        raise UnsupportedError(
            f"The head {source.path} has no matrix for its {config.layer.head_rows:,} tokens; "
            "fetch it again."
        )
