"""The torch executor: whole sequences through a Program, with gradients for everything.

It has no KV store: keys and values are used as they were computed, whatever `cache_type` says. Two
arithmetics exist. In float32 every op computes in float32, so it agrees with the reference executor
within the error of that arithmetic. In bf16, linear layers and attention multiply bf16 values and
give bf16; the residual stream is float32, and norms, rope and softmax compute in float32. That is
several times as fast where the processor multiplies bf16 matrices, and is meant for training.

Buffers are [batch, length, width]. All sequences of a batch begin at position 0; a shorter one is
padded at its end, which causal attention keeps from everything before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import groupby
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fewbit.errors import UnsupportedError
from fewbit.formats.registry import decode
from fewbit.formats.spec import QuantTensor
from fewbit.program import (
    OUTSIDE,
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
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    SelectRows,
    Slot,
    Softcap,
)
from fewbit.runtime.torch_ops import RoundedActivations, attend, gated, linear, rms_normed, rotated


class Weights(Protocol):
    """What fills the slots; results may carry gradients back to wherever they came from."""

    def matrix(self, slot: Slot) -> Tensor:
        """Return [outputs, inputs] in the executor's arithmetic."""
        ...

    def rows(self, slot: Slot, tokens: Tensor) -> Tensor:
        """Return the rows of a table, float32 [.., width], of token ids int64 [..]."""
        ...

    def vector(self, slot: Slot) -> Tensor:
        """Return float32 [n]."""
        ...


class DecodedWeights:
    """Weights as their tensors decode, without gradients; matrices are kept once decoded."""

    def __init__(self, tensors: Mapping[Slot, QuantTensor], arithmetic: torch.dtype) -> None:
        self._tensors = tensors
        self._arithmetic = arithmetic
        self._matrices: dict[Slot, Tensor] = {}

    def matrix(self, slot: Slot) -> Tensor:
        """Return a matrix in the executor's arithmetic."""
        if slot not in self._matrices:
            self._matrices[slot] = decoded(self._tensors[slot]).to(self._arithmetic)
        return self._matrices[slot]

    def rows(self, slot: Slot, tokens: Tensor) -> Tensor:
        """Return rows of a table; only those are decoded."""
        chosen = decoded(self._tensors[slot].take_rows(tokens.reshape(-1).numpy()))
        return chosen.reshape(*tokens.shape, -1)

    def vector(self, slot: Slot) -> Tensor:
        """Return a vector."""
        return decoded(self._tensors[slot])[0]


def decoded(tensor: QuantTensor) -> Tensor:
    """Return a matrix as float32 [rows, columns] of its own."""
    return torch.from_numpy(decode(tensor).copy())


_Buffers: TypeAlias = dict[Buffer, Tensor]


@dataclass(frozen=True)
class _Segment:
    """Consecutive ops of one layer: the buffers they take from before, and leave for after."""

    ops: tuple[Op, ...]
    given: tuple[Buffer, ...]
    left: tuple[Buffer, ...]


@dataclass(frozen=True)
class Head:
    """How final states become logits: a table, then a soft cap where there is one."""

    slot: Slot
    cap: float | None


class TorchExecutor:
    """Runs whole sequences through a Program up to the states that the head multiplies."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        arithmetic: torch.dtype = torch.float32,
        *,
        rounded: frozenset[Slot] = frozenset(),
        recompute: bool = False,
    ) -> None:
        """Take a Program and what fills its slots.

        Args:
            program: the decoder.
            weights: asked for a slot each time an op needs it.
            arithmetic: float32 or bfloat16, see the module.
            rounded: matrices whose inputs are rounded to int8 per 32.
            recompute: keep only what lies between layers, and compute a layer again when its
                gradient is wanted.
        """
        self._weights = weights
        self._arithmetic = arithmetic
        self._rounded = rounded
        self._recompute = recompute
        last = next(i for i, op in enumerate(program.ops) if _is_head(op))
        head = program.ops[last]
        assert isinstance(head, Linear)
        self.head = Head(head.weight, _cap(program.ops[last + 1 :]))
        """The head, which is left to the caller: its logits may not fit in memory at once."""
        self._states = head.x
        self._segments = _segments(program, program.ops[:last], head.x)
        inside = max(i for i, op in enumerate(program.ops) if op.layer != OUTSIDE)
        self.stream = program.ops[inside]
        """The op that writes the residual stream behind the last layer."""
        self._behind = program.ops[inside + 1 : last]

    def states(self, tokens: Tensor) -> Tensor:
        """Return what the head multiplies, [batch, length, hidden] in the executor's arithmetic.

        Args:
            tokens: int64 [batch, length].

        Raises:
            UnsupportedError: an op that this executor does not know.
        """
        buffers: _Buffers = {}
        for segment in self._segments:
            given = [buffers[name] for name in segment.given]
            run = self._runner(segment, tokens)
            if self._recompute and torch.is_grad_enabled():
                left = checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False)
            else:
                left = run(*given)
            buffers |= dict(zip(segment.left, left, strict=True))
        return buffers[self._states]

    def finish(self, stream: Tensor, tokens: Tensor) -> Tensor:
        """Return what the head multiplies, from the residual stream behind the last layer.

        Args:
            stream: float32 [batch, length, hidden].
            tokens: int64 [batch, length].
        """
        buffers: _Buffers = {self.stream.out: stream}
        for op in self._behind:
            buffers[op.out] = self.run(op, buffers, tokens)
        return buffers[self._states]

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of final states, float32 [.., vocabulary]; for few rows at a time."""
        out = (states @ self._weights.matrix(self.head.slot).T).float()
        cap = self.head.cap
        return out if cap is None else cap * torch.tanh(out / cap)

    def _runner(self, segment: _Segment, tokens: Tensor) -> Callable[..., tuple[Tensor, ...]]:
        def run(*given: Tensor) -> tuple[Tensor, ...]:
            buffers = dict(zip(segment.given, given, strict=True))
            for op in segment.ops:
                buffers[op.out] = self.run(op, buffers, tokens)
            return tuple(buffers[name] for name in segment.left)

        return run

    def run(self, op: Op, buffers: _Buffers, tokens: Tensor) -> Tensor:
        """Run one op on buffers [batch, length, width]; raises as `states`."""
        return self._op(op, buffers, tokens)

    @singledispatchmethod
    def _op(self, op: Op, buffers: _Buffers, tokens: Tensor) -> Tensor:
        raise UnsupportedError(
            f"The torch executor has no op {type(op).__name__} ('{op.out}'), so this model cannot "
            "be tuned; leave tuning out."
        )

    @_op.register
    def _(self, op: Embed, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return self._weights.rows(op.weight, tokens) * op.scale

    @_op.register
    def _(self, op: RopeTable, buffers: _Buffers, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], dtype=torch.float64)
        angles = positions[:, None] * torch.tensor(op.frequencies, dtype=torch.float64)
        return (torch.cat([angles.cos(), angles.sin()], -1) * op.factor).float()

    @_op.register
    def _(self, op: RmsNorm, buffers: _Buffers, tokens: Tensor) -> Tensor:
        x, factor = buffers[op.x], self._weights.vector(op.weight) + op.offset
        return rms_normed(x, factor, op.eps, self._arithmetic)

    @_op.register
    def _(self, op: Linear, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return self._linear(buffers[op.x], op.weight, op.bias)

    @_op.register
    def _(self, op: Rope, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return rotated(buffers[op.x], buffers[op.table])

    @_op.register
    def _(self, op: Hadamard, buffers: _Buffers, tokens: Tensor) -> Tensor:
        x = buffers[op.x]
        matrix = torch.ones(1, 1)
        while len(matrix) < op.size:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        runs = x.float().unflatten(-1, (-1, op.size)) @ matrix * op.size**-0.5
        return runs.reshape(x.shape).to(x.dtype)

    @_op.register
    def _(self, op: Attention, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return attend(buffers[op.q], buffers[op.k], buffers[op.v], op)

    @_op.register
    def _(self, op: GatedActivation, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return gated(buffers[op.gate], buffers[op.up], op.activation)

    @_op.register
    def _(self, op: Mixture, buffers: _Buffers, tokens: Tensor) -> Tensor:
        x, router = buffers[op.x].flatten(0, -2), buffers[op.router].flatten(0, -2).float()
        logits, chosen = torch.sort(router, dim=-1, descending=True, stable=True)
        logits, chosen = logits[:, : op.used], chosen[:, : op.used]
        total = logits if op.normalized else router
        shares = torch.exp(logits - torch.logsumexp(total, -1, keepdim=True))
        out = torch.zeros(x.shape, dtype=torch.float32)
        for i, expert in enumerate(op.experts):
            rows, ranks = torch.nonzero(chosen == i, as_tuple=True)
            if len(rows):
                found = self._expert(x[rows], expert, op.activation).float()
                out = out.index_add(0, rows, found * shares[rows, ranks].unsqueeze(-1))
        return out.reshape(buffers[op.x].shape)

    @_op.register
    def _(self, op: Add, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return buffers[op.x] + buffers[op.y]

    @_op.register
    def _(self, op: SelectRows, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return buffers[op.x]

    @_op.register
    def _(self, op: Softcap, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return op.cap * torch.tanh(buffers[op.x] / op.cap)

    def _expert(self, x: Tensor, expert: Expert, activation: Activation) -> Tensor:
        gate, up = self._linear(x, expert.gate), self._linear(x, expert.up)
        return self._linear(gated(gate, up, activation), expert.down)

    def _linear(self, x: Tensor, weight: Slot, bias: Slot | None = None) -> Tensor:
        x = x.to(self._arithmetic)
        if weight in self._rounded:
            x = RoundedActivations.apply(x)
        vector = None if bias is None else self._weights.vector(bias).to(self._arithmetic)
        return linear(x, self._weights.matrix(weight), vector)


def _segments(program: Program, ops: tuple[Op, ...], wanted: Buffer) -> tuple[_Segment, ...]:
    """Cut ops where the layer changes."""
    runs = [tuple(run) for _, run in groupby(ops, key=lambda op: op.layer)]
    segments = []
    for i, run in enumerate(runs):
        written = {op.out for op in run}
        later = {name for after in runs[i + 1 :] for op in after for name in program.inputs(op)}
        read = dict.fromkeys(name for op in run for name in program.inputs(op))
        given = tuple(name for name in read if name not in written)
        left = tuple(op.out for op in run if op.out in later or op.out == wanted)
        segments.append(_Segment(run, given, left))
    return tuple(segments)


def _is_head(op: Op) -> bool:
    return isinstance(op, Linear) and op.site == "head"


def _cap(ops: tuple[Op, ...]) -> float | None:
    caps = [op.cap for op in ops if isinstance(op, Softcap)]
    assert len(caps) == len(ops) <= 1, "only a soft cap may follow the head"
    return caps[0] if caps else None
