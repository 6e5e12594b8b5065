"""The reference executor: every op of a Program in plain NumPy, the truth that kernels are held to.

Every op computes in float64 from float32 inputs and rounds once to float32, so its result is
within half a unit in the last place of the exact value of its formula (products over `n` inputs:
plus n * 2^-53 of the sum of magnitudes). An executor in float32 is within the error bound of its
own arithmetic of what is computed here, and nothing more needs to be allowed for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import singledispatchmethod
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import KernelError, NumericalError
from fewbit.formats.activations import (
    ACTIVATION_RUN,
    quantize_activations,
    quantize_static,
    quantize_tokens,
)
from fewbit.formats.floats import decode_bf16, encode_bf16
from fewbit.formats.registry import decode, is_integer
from fewbit.formats.spec import QuantTensor, is_ordered
from fewbit.program import (
    Activation,
    Add,
    Attention,
    Buffer,
    Embed,
    Expert,
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
from fewbit.records.kernels import Activations, KernelRecord
from fewbit.runtime.chooser import rounding_of
from fewbit.runtime.executor import Binding, Tap
from fewbit.runtime.kv import rounded_queries, rounded_rows
from fewbit.runtime.mixture import mixed, route, rows_of_expert
from fewbit.runtime.reference_attention import attention, read_rows, write_spans
from fewbit.runtime.step import PAGE, StepInput

Floats: TypeAlias = NDArray[np.float32]

_OUTPUTS = 2048
"""Rows of a matrix that are widened to float64 at once, so that a large head fits in memory."""


def rms_norm(x: Floats, weight: Floats, width: int, eps: float, offset: float) -> Floats:
    """Normalize each run of `width` elements of x [rows, n * width]; weight [width]."""
    runs = x.reshape(len(x), x.shape[1] // width, width).astype(np.float64)
    inverse = 1.0 / np.sqrt(np.mean(runs * runs, axis=-1, keepdims=True) + eps)
    factor = (weight + np.float32(offset)).astype(np.float64)
    normed: Floats = (runs * inverse * factor).reshape(x.shape).astype(np.float32)
    return normed


def rope_table(
    positions: NDArray[np.int32], frequencies: tuple[float, ...], factor: float
) -> Floats:
    """Return [rows, 2 n]: cosines, then sines, of position times each of n frequencies."""
    angles = positions.astype(np.float64)[:, None] * np.asarray(frequencies, np.float64)
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * factor
    return table.astype(np.float32)


def rope(x: Floats, table: Floats, head_dim: int) -> Floats:
    """Rotate the halves of every head of x [rows, heads * head_dim] by table [rows, head_dim]."""
    half = head_dim // 2
    heads = x.reshape(len(x), x.shape[1] // head_dim, head_dim).astype(np.float64)
    cos, sin = table[:, None, :half].astype(np.float64), table[:, None, half:].astype(np.float64)
    a, b = heads[..., :half], heads[..., half:]
    turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return turned.reshape(x.shape).astype(np.float32)


def hadamard(x: Floats, size: int) -> Floats:
    """Multiply every run of x [rows, runs * size] with the normalized Hadamard matrix."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    runs = x.reshape(len(x), x.shape[1] // size, size).astype(np.float64)
    turned: Floats = (runs @ matrix / np.sqrt(size)).reshape(x.shape).astype(np.float32)
    return turned


def gated_activation(gate: Floats, up: Floats, activation: Activation) -> Floats:
    """Return activation(gate) * up."""
    x = gate.astype(np.float64)
    match activation:
        case Activation.SILU:
            with np.errstate(over="ignore"):
                shaped = x / (1.0 + np.exp(-x))
        case Activation.GELU_TANH:
            inner = np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)
            shaped = 0.5 * x * (1.0 + np.tanh(inner))
    return (shaped * up).astype(np.float32)


def softcap(x: Floats, cap: float) -> Floats:
    """Return cap * tanh(x / cap)."""
    return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


def round_to_bf16(x: Floats) -> Floats:
    """Round to bf16, to nearest and ties to even, and back; a NaN stays a NaN."""
    return np.where(np.isnan(x), x, decode_bf16(encode_bf16(x)))


def rounded_activations(
    x: Floats, activations: str, input_scale: float | None = None
) -> NDArray[np.float64]:
    """Return what a kernel that rounds its input as `activations` says multiplies with.

    Args:
        x: float32 [rows, inputs].
        activations: as a `KernelRecord` has it.
        input_scale: the scale of `int8-static`.

    Raises:
        KernelError: an activation format that this executor cannot emulate.
    """
    match activations:
        case "f32":
            return x.astype(np.float64)
        case "int8-g32":
            q, scales = quantize_activations(x)
            return q.astype(np.float64) * np.repeat(scales.astype(np.float64), ACTIVATION_RUN, -1)
        case "int8-token":
            q, scales = quantize_tokens(x)
            return q.astype(np.float64) * scales[:, None].astype(np.float64)
        case "int8-static" if input_scale is not None:
            return quantize_static(x, input_scale).astype(np.float64) * np.float32(input_scale)
        case "bf16":
            return round_to_bf16(x).astype(np.float64)
        case _:
            raise KernelError(
                f"The reference executor cannot emulate activations '{activations}'; it knows "
                "f32, int8-g32, int8-token, int8-static with a scale, and bf16."
            )


def linear(
    x: Floats,
    weight: Floats,
    bias: Floats | None = None,
    activations: str = "f32",
    input_scale: float | None = None,
) -> Floats:
    """Return round(x) [rows, inputs] @ weight.T [inputs, outputs], rounded, plus bias [outputs]."""
    rounded = rounded_activations(x, activations, input_scale)
    out = np.empty((len(x), len(weight)), np.float32)
    for start in range(0, len(weight), _OUTPUTS):
        block = slice(start, start + _OUTPUTS)
        out[:, block] = rounded @ weight[block].astype(np.float64).T
    return out if bias is None else out + bias


def choose_reference(
    slot: Slot,
    tensor: QuantTensor,
    activations: Activations = Activations.INT8,
    input_scale: float | None = None,
) -> KernelRecord:
    """Return the record of this executor for a matrix, rounding inputs as native kernels do.

    Raises:
        KernelError: an integer format whose inputs do not divide into runs of 32, or static
            activations without a scale.
    """
    exact = not is_integer(tensor.spec)
    rows, columns = tensor.shape
    if not exact and columns % ACTIVATION_RUN:
        raise KernelError(
            f"'{slot}' has {columns} inputs in {tensor.spec.name}; integer kernels need a "
            f"multiple of {ACTIVATION_RUN}."
        )
    static = not exact and activations is Activations.STATIC
    if static and input_scale is None:
        raise KernelError(f"'{slot}' has no calibrated scale for its input; it needs one.")
    return KernelRecord(
        slot=slot,
        format=tensor.spec.name,
        kernel="reference",
        activations="f32" if exact else rounding_of(activations),
        bytes=rows * columns * 4,
        input_scale=input_scale if static else None,
        gathered=is_ordered(tensor.spec),
    )


class ReferenceExecutor:
    """Runs a bound Program op by op; it holds every used weight decoded to float32.

    Raises:
        KernelError: a kernel record names activations that cannot be emulated (at the first step).
    """

    def __init__(self, binding: Binding, pages: int, taps: frozenset[Tap] = frozenset()) -> None:
        self._binding = binding
        self._places = {
            (op.layer, op.site): op.out for op in binding.program.ops if (op.layer, op.site) in taps
        }
        self._tapped: dict[Buffer, Floats] = {}
        self._pages = pages
        self._decoded: dict[Slot, Floats] = {}
        self._keys: dict[int, Floats] = {}
        self._values: dict[int, Floats] = {}

    @classmethod
    def beside(cls, target: ReferenceExecutor, binding: Binding) -> ReferenceExecutor:
        """Return an executor with weights of its own over a target's KV store."""
        made = cls(binding, target.pages)
        made._keys, made._values = target._keys, target._values
        return made

    @property
    def pages(self) -> int:
        """Pages in the KV store."""
        return self._pages

    def step(
        self, step: StepInput, given: Mapping[Buffer, Floats] = MappingProxyType({})
    ) -> Floats:
        """Return the wanted rows' logits, float32 [wanted, vocabulary].

        Args:
            step: what is run.
            given: float32 [rows, width] for each buffer that no op writes.

        Raises:
            NumericalError: an op wrote a NaN or an infinity; the message names it.
        """
        return self._run(step, given)[self._binding.program.logits]

    def tap(self, layer: int, site: str, rows: slice | NDArray[np.integer] = slice(None)) -> Floats:
        """Return chosen rows of what a tapped op wrote in the last step, float32 [rows, width]."""
        return self._tapped[self._places[layer, site]][rows]

    def page(self, page: int) -> bytes:
        """Return a copy of a page of the KV store: all layers' keys and values as they are read."""
        stores = [store[i] for i in sorted(self._keys) for store in (self._keys, self._values)]
        return b"".join(store[page].tobytes() for store in stores)

    def trace(self, step: StepInput) -> Mapping[Buffer, Floats]:
        """Run a step and return every buffer of the Program, for comparison op by op."""
        return self.trace_ops(self._binding.program.ops, {}, step)

    def trace_ops(
        self, ops: Iterable[Op], given: Mapping[Buffer, Floats], step: StepInput
    ) -> Mapping[Buffer, Floats]:
        """Run some ops of the Program on given buffers and return those with what the ops wrote.

        Raises:
            NumericalError: as `step` does.
        """
        buffers = dict(given)
        for op in ops:
            buffers[op.out] = _finite(self._op(op, buffers, step), op)
        return buffers

    def _run(self, step: StepInput, given: Mapping[Buffer, Floats]) -> dict[Buffer, Floats]:
        program = self._binding.program
        last_use = {name: i for i, op in enumerate(program.ops) for name in program.inputs(op)}
        buffers = dict(given)
        kept = set(self._places.values())
        for i, op in enumerate(program.ops):
            buffers[op.out] = _finite(self._op(op, buffers, step), op)
            if op.out in kept:
                self._tapped[op.out] = buffers[op.out]
            for name in program.inputs(op):
                if last_use[name] == i:
                    buffers.pop(name, None)
        return buffers

    @singledispatchmethod
    def _op(self, op: Op, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        raise AssertionError(f"no reference for op {type(op).__name__}")

    @_op.register
    def _(self, op: Embed, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        tensor = self._binding.tensors[op.weight]
        rows = decode(tensor.take_rows(step.tokens.astype(np.intp)))
        return rows * np.float32(op.scale)

    @_op.register
    def _(self, op: RopeTable, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return rope_table(step.positions(), op.frequencies, op.factor)

    @_op.register
    def _(self, op: RmsNorm, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return rms_norm(buffers[op.x], self._vector(op.weight), op.width, op.eps, op.offset)

    @_op.register
    def _(self, op: Linear, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        bias = None if op.bias is None else self._vector(op.bias)
        return self._linear(buffers[op.x], op.weight, bias)

    @_op.register
    def _(self, op: Rope, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return rope(buffers[op.x], buffers[op.table], op.head_dim)

    @_op.register
    def _(self, op: Hadamard, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return hadamard(buffers[op.x], op.size)

    @_op.register
    def _(self, op: Attention, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        cache_type = self._binding.program.cache_type
        q = buffers[op.q]
        queries = rounded_queries(q, cache_type)
        keys, values = self._store(op)
        for store, rows in ((keys, buffers[op.k]), (values, buffers[op.v])):
            write_spans(store, rounded_rows(rows, cache_type), step.spans)
        out = np.empty_like(q)
        for span in step.spans:
            own = slice(span.start, span.start + span.count)
            seen = read_rows(keys, span), read_rows(values, span)
            out[own] = attention(queries[own], *seen, span.position, op)
        return out

    @_op.register
    def _(self, op: GatedActivation, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return gated_activation(buffers[op.gate], buffers[op.up], op.activation)

    @_op.register
    def _(self, op: Mixture, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        x = buffers[op.x]
        chosen, weights = route(buffers[op.router], op)
        outputs = np.empty((*chosen.shape, x.shape[1]), np.float32)
        for number in np.unique(chosen):
            rows, ranks = rows_of_expert(chosen, number)
            outputs[rows, ranks] = self._expert(op.experts[number], x[rows], op.activation)
        return mixed(outputs, weights)

    @_op.register
    def _(self, op: Add, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return buffers[op.x] + buffers[op.y]

    @_op.register
    def _(self, op: SelectRows, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return buffers[op.x][step.wanted]

    @_op.register
    def _(self, op: Softcap, buffers: Mapping[Buffer, Floats], step: StepInput) -> Floats:
        return softcap(buffers[op.x], op.cap)

    def _linear(self, x: Floats, slot: Slot, bias: Floats | None = None) -> Floats:
        kernel, weight = self._binding.kernels[slot], self._weight(slot)
        if kernel.gathered:  # which runs of 32 inputs share a scale depends on the order
            order = self._binding.order(slot)
            x, weight = x[:, order], weight[:, order]
        return linear(x, weight, bias, kernel.activations, kernel.input_scale)

    def _expert(self, expert: Expert, x: Floats, activation: Activation) -> Floats:
        gate, up = self._linear(x, expert.gate), self._linear(x, expert.up)
        return self._linear(gated_activation(gate, up, activation), expert.down)

    def _weight(self, slot: Slot) -> Floats:
        if slot not in self._decoded:
            self._decoded[slot] = decode(self._binding.tensors[slot])
            self._binding.release(slot)
        return self._decoded[slot]

    def _vector(self, slot: Slot) -> Floats:
        vector: Floats = self._weight(slot)[0]
        return vector

    def _store(self, op: Attention) -> tuple[Floats, Floats]:
        """Return keys and values of a layer as they are read, [pages, PAGE, width] each."""
        if op.layer not in self._keys:
            shape = self._pages, PAGE, op.kv_heads * op.head_dim
            self._keys[op.layer] = np.zeros(shape, np.float32)
            self._values[op.layer] = np.zeros(shape, np.float32)
        return self._keys[op.layer], self._values[op.layer]


def _finite(out: Floats, op: Op) -> Floats:
    if np.isfinite(out).all():
        return out
    row, column = np.argwhere(~np.isfinite(out))[0]
    raise NumericalError(
        f"'{op.out}' is {out[row, column]} at row {row}, element {column}; a weight or an input "
        "of the model is out of range."
    )
