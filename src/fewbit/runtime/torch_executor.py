"""The torch executor: whole sequences through a Program, with gradients for everything.

It has no KV store: keys and values are used as they were computed, whatever `cache_type` says. Two
arithmetics exist. In float32 every op computes in float32, so it agrees with the reference executor
within the error of that arithmetic. In bf16, linear layers and attention multiply bf16 values and
give bf16; the residual stream, norms, rope and softmax stay in float32. That is several times as
fast where the processor multiplies bf16 matrices, and is meant for training.

Buffers are [batch, length, width]. All sequences of a batch begin at position 0; a shorter one is
padded at its end, which causal attention keeps from everything before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatchmethod
from itertools import groupby
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fewbit.errors import UnsupportedError
from fewbit.formats.registry import decode
from fewbit.formats.spec import QuantTensor
from fewbit.program import (
    Activation,
    Add,
    Attention,
    Buffer,
    Embed,
    GatedActivation,
    Hadamard,
    Linear,
    Op,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    SelectRows,
    Slot,
    Softcap,
)

ACTIVATION_RUN = 32
"""Inputs that share one dynamic scale where activations are rounded to int8."""


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


class _Rotate(torch.autograd.Function):
    """Rope on [batch, length, heads, head_dim]; the gradient turns back by the same angle."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(gradients[0], cos, -sin), None, None


class _RmsNorm(torch.autograd.Function):
    """y = x / sqrt(mean(x^2) + eps) * factor over the last axis, in float32.

    With r = sqrt(mean(x^2) + eps), h = x / r and g the gradient of y, the gradient of factor is
    sum g h and that of x is (g factor - h mean(g factor h)) / r. Only x and r are kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, eps: float, out: torch.dtype) -> Tensor:
        x = x.float()
        inverse = torch.rsqrt(torch.mean(x * x, -1, keepdim=True) + eps)
        ctx.save_for_backward(x, factor, inverse)
        return (x * inverse).mul_(factor).to(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, factor, inverse = ctx.saved_tensors
        gradient = gradients[0].float()
        h = x * inverse
        towards = (gradient * h).reshape(-1, len(factor)).sum(0)
        gradient = gradient * factor
        mean = torch.mean(gradient * h, -1, keepdim=True)
        return gradient.sub_(h.mul_(mean)).mul_(inverse), towards, None, None


class _RoundedActivations(torch.autograd.Function):
    """Rounds as `int8-g32` does (see the reference executor); the gradient passes as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        runs = x.float().unflatten(-1, (-1, ACTIVATION_RUN))
        scales = runs.abs().amax(-1, keepdim=True) / 127
        codes = torch.where(scales > 0, runs / scales, 0).round_().clamp_(-127, 127)
        return (codes * scales).reshape(x.shape).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    turned = torch.empty_like(x)
    first, second = turned.chunk(2, -1)
    first.copy_((a * cos).sub_(b * sin))
    second.copy_((b * cos).add_(a * sin))
    return turned


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

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of final states, float32 [.., vocabulary]; for few rows at a time."""
        out = (states @ self._weights.matrix(self.head.slot).T).float()
        cap = self.head.cap
        return out if cap is None else cap * torch.tanh(out / cap)

    def _runner(self, segment: _Segment, tokens: Tensor) -> Callable[..., tuple[Tensor, ...]]:
        def run(*given: Tensor) -> tuple[Tensor, ...]:
            buffers = dict(zip(segment.given, given, strict=True))
            for op in segment.ops:
                buffers[op.out] = self._op(op, buffers, tokens)
            return tuple(buffers[name] for name in segment.left)

        return run

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
        runs = x.unflatten(-1, (-1, op.width))
        return _RmsNorm.apply(runs, factor, op.eps, self._arithmetic).reshape(x.shape)

    @_op.register
    def _(self, op: Linear, buffers: _Buffers, tokens: Tensor) -> Tensor:
        x = buffers[op.x].to(self._arithmetic)
        if op.weight in self._rounded:
            x = _RoundedActivations.apply(x)
        bias = None if op.bias is None else self._weights.vector(op.bias).to(self._arithmetic)
        return functional.linear(x, self._weights.matrix(op.weight), bias)

    @_op.register
    def _(self, op: Rope, buffers: _Buffers, tokens: Tensor) -> Tensor:
        x = buffers[op.x]
        cos, sin = buffers[op.table].unsqueeze(-2).chunk(2, -1)
        return _Rotate.apply(x.unflatten(-1, (-1, op.head_dim)), cos, sin).reshape(x.shape)

    @_op.register
    def _(self, op: Hadamard, buffers: _Buffers, tokens: Tensor) -> Tensor:
        x = buffers[op.x]
        matrix = torch.ones(1, 1)
        while len(matrix) < op.head_dim:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        heads = x.float().unflatten(-1, (-1, op.head_dim)) @ matrix * op.head_dim**-0.5
        return heads.reshape(x.shape).to(x.dtype)

    @_op.register
    def _(self, op: Attention, buffers: _Buffers, tokens: Tensor) -> Tensor:
        q, k, v = (
            buffers[name].unflatten(-1, (heads, op.head_dim)).transpose(1, 2)
            for name, heads in ((op.q, op.heads), (op.k, op.kv_heads), (op.v, op.kv_heads))
        )
        mixed = attend(q, k, v, op)
        return mixed.transpose(1, 2).flatten(-2)

    @_op.register
    def _(self, op: GatedActivation, buffers: _Buffers, tokens: Tensor) -> Tensor:
        gate, up = buffers[op.gate], buffers[op.up]
        if op.activation is Activation.SILU:
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh") * up

    @_op.register
    def _(self, op: Add, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return buffers[op.x] + buffers[op.y]

    @_op.register
    def _(self, op: SelectRows, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return buffers[op.x]

    @_op.register
    def _(self, op: Softcap, buffers: _Buffers, tokens: Tensor) -> Tensor:
        return op.cap * torch.tanh(buffers[op.x] / op.cap)


def attend(q: Tensor, k: Tensor, v: Tensor, op: Attention) -> Tensor:
    """Attend causally: q [batch, heads, length, head_dim], k and v with kv_heads of them."""
    length, share = q.shape[2], op.heads // op.kv_heads
    if share > 1:
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
    reaches_all = op.window is None or op.window >= length
    if op.softcap is None and reaches_all:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=op.scale)
    seen = _visible(length, op.window)
    if op.softcap is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=op.scale)
    scores = (q @ k.transpose(-1, -2)).float() * op.scale
    scores = op.softcap * torch.tanh(scores / op.softcap)
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    return weights.to(v.dtype) @ v


def _visible(length: int, window: int | None) -> Tensor:
    """Return bool [length, length]: whether a row's position sees a column's."""
    own, other = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = other <= own
    return seen if window is None else seen & (other > own - window)


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
