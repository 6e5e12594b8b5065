"""A binding's Program as the native executor walks it, its weights packed."""

from __future__ import annotations

from collections.abc import Collection
from functools import singledispatchmethod

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit._native import PackedArena, PackedMatrix
from fewbit.errors import FaultError, KernelError
from fewbit.formats.registry import decode
from fewbit.program import (
    Add,
    Attention,
    Buffer,
    Embed,
    GatedActivation,
    Hadamard,
    Linear,
    Mixture,
    Op,
    RmsNorm,
    Rope,
    RopeTable,
    SelectRows,
    Slot,
    Softcap,
)
from fewbit.runtime.chooser import executed_rounding
from fewbit.runtime.executor import Binding
from fewbit.runtime.pack import layout_of, pack


class ProgramWriter:
    """Writes a binding's Program as the native one, packing every slot on first use.

    Rows of the buffers in `given` come from the caller with each step, so the Program needs no op
    that writes them. Who runs a whole Program names the buffer of its logits.
    """

    def __init__(
        self,
        binding: Binding,
        tapped: Collection[Buffer],
        threads: int,
        given: Collection[Buffer] = (),
    ) -> None:
        program = binding.program
        self._binding = binding
        self._threads = threads
        self._arena = PackedArena()
        self.matrices: dict[Slot, PackedMatrix] = dict(binding.packed)
        self.orders: dict[Slot, NDArray[np.int32]] = dict(binding.orders)
        self.program = _native.Program(
            program.layers, program.vocabulary, program.context, program.cache_type.value
        )
        self.buffers: dict[Buffer, int] = {
            name: self.program.buffer(width, name in tapped)
            for name, width in program.widths.items()
        }
        self._pack_largest_first()
        for name in given:
            self.program.given(self.buffers[name])
        for op in program.ops:
            self._write(op, self.buffers[op.out])

    def _pack_largest_first(self) -> None:
        """Pack while little is packed yet what needs the most room for its stored bytes."""
        kernels = self._binding.kernels
        for slot in sorted(kernels, key=lambda slot: -kernels[slot].bytes):
            self._matrix(slot)

    def _matrix(self, slot: Slot) -> PackedMatrix:
        if slot not in self.matrices:
            layout = layout_of(self._binding.kernels[slot].kernel)
            tensor = self._binding.tensors[slot]
            self.matrices[slot] = pack(tensor, self._threads, self._arena, layout)
            if tensor.order is not None:
                self.orders[slot] = tensor.order
            self._binding.release(slot)
        return self.matrices[slot]

    def _vector(self, slot: Slot) -> NDArray[np.float32]:
        values = decode(self._binding.tensors[slot]).reshape(-1).astype(np.float32)
        self._binding.release(slot)
        return np.ascontiguousarray(values)

    @singledispatchmethod
    def _write(self, op: Op, out: int) -> None:
        raise FaultError(f"The native executor does not know the op {type(op).__name__} ({out}).")

    @_write.register
    def _(self, op: Embed, out: int) -> None:
        if self._binding.kernels[op.weight].gathered:
            raise KernelError(
                f"No kernel takes rows of '{op.weight}', a table whose columns lie in an order of "
                "their own; requantize the model, or export it to hf and run that."
            )
        self.program.embed(out, self._matrix(op.weight), op.scale)

    @_write.register
    def _(self, op: RopeTable, out: int) -> None:
        self.program.rope_table(out, np.asarray(op.frequencies, np.float32), op.factor)

    @_write.register
    def _(self, op: RmsNorm, out: int) -> None:
        weight = self._vector(op.weight) + np.float32(op.offset)
        self.program.rms_norm(out, self.buffers[op.x], weight, op.width, op.eps)

    @_write.register
    def _(self, op: Linear, out: int) -> None:
        bias = None if op.bias is None else self._vector(op.bias)
        kernel = self._binding.kernels[op.weight]
        self.program.linear(
            out,
            self.buffers[op.x],
            self._matrix(op.weight),
            bias,
            executed_rounding(kernel),
            kernel.input_scale or 0.0,
            self._order(op.weight),
        )

    @_write.register
    def _(self, op: Rope, out: int) -> None:
        self.program.rope(out, self.buffers[op.x], self.buffers[op.table], op.head_dim)

    @_write.register
    def _(self, op: Hadamard, out: int) -> None:
        self.program.hadamard(out, self.buffers[op.x], op.size)

    @_write.register
    def _(self, op: Attention, out: int) -> None:
        self.program.attention(
            out,
            self.buffers[op.q],
            self.buffers[op.k],
            self.buffers[op.v],
            layer=op.layer,
            heads=op.heads,
            kv_heads=op.kv_heads,
            head_dim=op.head_dim,
            scale=op.scale,
            window=op.window or 0,
            softcap=op.softcap or 0.0,
        )

    @_write.register
    def _(self, op: GatedActivation, out: int) -> None:
        self.program.gated_activation(
            out, self.buffers[op.gate], self.buffers[op.up], op.activation.value
        )

    @_write.register
    def _(self, op: Mixture, out: int) -> None:
        kernels = self._binding.kernels

        def rounding(slot: Slot) -> str:
            return executed_rounding(kernels[slot])

        experts = [
            (
                self._matrix(expert.gate),
                self._matrix(expert.up),
                self._matrix(expert.down),
                rounding(expert.gate),
                rounding(expert.up),
                rounding(expert.down),
                self._shared_scale(expert.gate, expert.up),
                kernels[expert.down].input_scale or 0.0,
                self._shared_order(expert.gate, expert.up),
                self._order(expert.down),
            )
            for expert in op.experts
        ]
        self.program.mixture(
            out,
            self.buffers[op.x],
            self.buffers[op.router],
            experts,
            op.used,
            op.normalized,
            op.activation.value,
        )

    def _shared_scale(self, gate: Slot, up: Slot) -> float:
        """Return the static scale of the input that two matrices of an expert read."""
        scales = {self._binding.kernels[slot].input_scale for slot in (gate, up)} - {None}
        if len(scales) > 1:
            raise KernelError(
                f"'{gate}' and '{up}' read one input, but have different static scales for it; "
                "calibrate them together."
            )
        return scales.pop() or 0.0 if scales else 0.0

    def _shared_order(self, gate: Slot, up: Slot) -> NDArray[np.int32] | None:
        """Return the order in which two matrices of an expert take the input that both read."""
        kernels = self._binding.kernels
        integers = [slot for slot in (gate, up) if kernels[slot].activations != "f32"]
        orders = [self._order(slot) for slot in integers]
        if any(not _same(orders[0], order) for order in orders):
            raise KernelError(
                f"'{gate}' and '{up}' read one input, but their columns lie in different orders; "
                "requantize the model, or export it to hf and run that."
            )
        return orders[0] if orders else None

    def _order(self, slot: Slot) -> NDArray[np.int32] | None:
        if not self._binding.kernels[slot].gathered:
            return None
        if slot not in self.orders:
            raise FaultError(f"The matrix of '{slot}' has an order of columns that was not given.")
        return np.ascontiguousarray(self.orders[slot], np.int32)

    @_write.register
    def _(self, op: Add, out: int) -> None:
        self.program.add(out, self.buffers[op.x], self.buffers[op.y])

    @_write.register
    def _(self, op: SelectRows, out: int) -> None:
        self.program.select_rows(out, self.buffers[op.x])

    @_write.register
    def _(self, op: Softcap, out: int) -> None:
        self.program.softcap(out, self.buffers[op.x], op.cap)


def _same(one: NDArray[np.int32] | None, other: NDArray[np.int32] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
