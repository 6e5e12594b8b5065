"""A model whose tensors are replaced while it is walked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource
from fewbit.program import Buffer, Expert, Mixture, Program, Slot
from fewbit.quantization.experts import inner_program
from fewbit.quantization.walk import Rows
from fewbit.records.kernels import Activations, KernelRecord
from fewbit.runtime.chooser import ANY, choose, rounding_of
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import Pool
from fewbit.runtime.segment import Segment


class BoundModel:
    """The source's tensors, and what has taken their place so far; runs ops with these."""

    def __init__(
        self,
        source: ModelSource,
        program: Program,
        pool: Pool,
        release: Callable[[Slot], None] | None = None,
    ) -> None:
        """Begin with the source's tensors; `release` is called with a slot that was packed."""
        self.program = program
        self._release = release or source.release
        self._source = source
        self._pool = pool
        self._replaced: dict[Slot, QuantTensor] = {}
        self._kernels: dict[Slot, KernelRecord] = {}
        self._segment: tuple[range, Segment] | None = None
        self._expert: tuple[Expert, Segment] | None = None

    def replace(
        self,
        slot: Slot,
        tensor: QuantTensor,
        activations: Activations = Activations.INT8,
        input_scale: float | None = None,
    ) -> None:
        """Let a tensor stand for a slot from now on.

        Raises:
            KernelError: no kernel can run it.
        """
        self._replaced[slot] = tensor
        if not is_vector(slot):
            self._kernels[slot] = _kernel(slot, tensor, activations, input_scale)
        self._segment = self._expert = None

    def __call__(  # noqa: PLR0913
        self,
        ops: range,
        lengths: Sequence[int],
        given: Mapping[Buffer, Rows],
        wanted: Sequence[Buffer],
        tokens: NDArray[np.int32],
        *,
        into: Mapping[Buffer, Rows] | None = None,
    ) -> dict[Buffer, Rows]:
        """Run ops; see `walk.RunOps`. The weights stay packed until other ops are run."""
        if self._segment is None or self._segment[0] != ops:
            self._segment = None  # so that two segments' weights never lie in memory together
            chosen = replace(self.program, ops=tuple(self.program.ops[i] for i in ops))
            binding = self.binding(self.program, chosen.slots())
            self._segment = ops, Segment(binding, ops, threads=self._pool)
        return self._segment[1].run(lengths, given, wanted, tokens, into)

    def expert(self, op: Mixture, number: int, x: Rows) -> Rows:
        """Run the gate, up and activation of an expert; see `walk.RunOps`."""
        expert = op.experts[number]
        if self._expert is None or self._expert[0] != expert:
            self._segment = self._expert = None
            program = inner_program(op, number, x.shape[1])
            binding = self.binding(program, program.slots())
            self._expert = expert, Segment(binding, slice(None), threads=self._pool)
        return self._expert[1].run([len(x)], {"x": x}, ["activation"])["activation"]

    def binding(self, program: Program, slots: Sequence[Slot]) -> Binding:
        """Return a Program with some slots filled with the tensors that stand for them now.

        Raises:
            KernelError: no kernel can run a matrix.
        """
        tensors = {slot: self._tensor(slot) for slot in slots}
        kernels = {slot: self._kernel(slot) for slot in tensors if not is_vector(slot)}
        return Binding(program, tensors, kernels, self._release)

    def _tensor(self, slot: Slot) -> QuantTensor:
        found = self._replaced.get(slot)
        return self._source.read(slot) if found is None else found

    def _kernel(self, slot: Slot) -> KernelRecord:
        if slot not in self._kernels:
            stored = self._source.activations(slot)
            scale = self._source.input_scale(slot)
            self._kernels[slot] = _kernel(slot, self._source.outline(slot), stored, scale)
        return self._kernels[slot]


def _kernel(
    slot: Slot, tensor: QuantTensor, activations: Activations, input_scale: float | None
) -> KernelRecord:
    if activations is Activations.INT8:  # the chooser's default
        return choose(slot, tensor)
    wanted = replace(ANY, activations=rounding_of(activations), input_scale=input_scale)
    return choose(slot, tensor, wanted)
