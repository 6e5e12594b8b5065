"""Ops of the torch executor whose gradients are written out, for speed and for memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fewbit.program import Activation, Attention
from fewbit.runtime import torch_native

ACTIVATION_RUN = 32
"""Inputs that share one dynamic scale where activations are rounded to int8."""


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        return _turned(x, table, back=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _turned(gradients[0], *ctx.saved_tensors, back=True), None


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Return rope of [batch, length, heads * head_dim]; the gradient turns back by the same angle.

    Args:
        x: float32 or bf16.
        table: float32 [length, head_dim], cosines and then sines.
    """
    return _Rotate.apply(x, table)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, eps: float) -> Tensor:
        x = x.float()
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, factor, inverse)
        return (x * inverse).mul_(factor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, factor, inverse = ctx.saved_tensors
        gradient = gradients[0].float()
        h = x * inverse
        towards = (gradient * h).reshape(-1, len(factor)).sum(0)
        gradient = gradient * factor
        mean = torch.linalg.vecdot(gradient, h).div_(h.shape[-1]).unsqueeze(-1)
        return gradient.sub_(h.mul_(mean)).mul_(inverse), towards, None


class _RmsNormInOnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, eps: float) -> Tensor:
        found, inverse = torch_native.normed(x, factor, eps)
        ctx.save_for_backward(x, factor, inverse)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return *torch_native.normed_back(gradients[0], *ctx.saved_tensors), None


def rms_normed(x: Tensor, factor: Tensor, eps: float, out: torch.dtype) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * factor over the last axis, computed in float32.

    With r = sqrt(mean(x^2) + eps), h = x / r and g the gradient of the result, the gradient of
    factor is sum g h and that of x is (g factor - h mean(g factor h)) / r. Only x and r are kept.

    Args:
        x: float32 or bf16 [.., n * width].
        factor: float32 [width].
        eps: added to the mean.
        out: the result's type.
    """
    rows = x.reshape(-1, len(factor))
    norm = _RmsNormInOnePass if out is torch.bfloat16 else _RmsNorm
    return norm.apply(rows, factor, eps).reshape(x.shape)


class _Attend(torch.autograd.Function):
    """Causal attention of whole sequences, one sequence and key head at a time.

    With s = cap(scale q k^T), p = softmax(s) over the keys seen, y = p v and g the gradient of y:
    that of v is p^T g, that of s is p (g v^T - sum_keys p (g v^T)). Probabilities are computed
    again in the backward pass, so nothing of length x length outlives a head. (PyTorch's own fused
    attention takes several times as long backwards in bf16 on a CPU.) In bf16, scores and
    probabilities are bf16 and the softmax between them is float32.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, op: Attention) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.op = op
        out = torch.empty_like(q)
        hidden = _hidden(q.shape[1], op.window, q.dtype)
        for own, kept in _heads(len(q), op):
            p, _ = _probabilities(_queries(q, own), k[kept], op, hidden)
            out[own] = _apart(p @ v[kept], op)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        op, pull = ctx.op, gradients[0]
        towards = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        hidden = _hidden(q.shape[1], op.window, q.dtype)
        for own, kept in _heads(len(q), op):
            queries, down = _queries(q, own), _queries(pull, own)
            p, slope = _probabilities(queries, k[kept], op, hidden)
            towards[2][kept] = p.T @ down
            back = _scores_back(down @ v[kept].T, p, slope, op)
            towards[0][own] = _apart(back @ k[kept], op)
            towards[1][kept] = back.T @ queries
        return *towards, None


class _AttendAtOnce(torch.autograd.Function):
    """The same where products are native: a sequence and key head a thread."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, op: Attention) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.op = op
        return torch_native.attended(q, k, v, op)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        return *torch_native.attended_back(gradients[0], q, k, v, ctx.op), None


def attend(q: Tensor, k: Tensor, v: Tensor, op: Attention) -> Tensor:
    """Return causal attention of q, k and v, [batch, length, heads * head_dim] each."""
    if _in_one_pass(q, op) and torch_native.multiplies():
        return _AttendAtOnce.apply(q, k, v, op)
    q, k, v = (x.unflatten(-1, (-1, op.head_dim)) for x in (q, k, v))
    return _Attend.apply(q, k, v, op).flatten(-2)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        pull = gradients[0].reshape(-1, len(weight))
        towards: list[Tensor | None] = [None, None, None]
        if ctx.needs_input_grad[0]:
            towards[0] = (pull @ weight).reshape(x.shape)
        if ctx.needs_input_grad[1]:
            towards[1] = product_over_rows(pull, x.reshape(-1, x.shape[-1]))
        if ctx.needs_input_grad[2]:
            towards[2] = pull.float().sum(0)
        return tuple(towards)


def product_over_rows(
    left: Tensor, right: Tensor, *, out: Tensor | None = None, add: bool = False
) -> Tensor:
    """Return left^T right of matrices with the same rows; with `add`, on top of what `out` holds.

    It gives weights their gradients, and in bf16 the native core does it faster than torch, which
    is the faster one at products whose sums run along rows.
    """
    if left.dtype is torch.bfloat16 and torch_native.multiplies():
        return torch_native.multiplied(left.T, right, out=out, add=add)
    if out is None:
        return left.T @ right
    return out.addmm_(left.T, right) if add else torch.mm(left.T, right, out=out)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, [.., outputs], in the type of x [.., inputs] and W [outputs, inputs]."""
    if x.dtype is torch.bfloat16 and torch_native.multiplies():
        return _Linear.apply(x, weight, bias)
    return functional.linear(x, weight, bias)


class RoundedActivations(torch.autograd.Function):
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


def _turned(x: Tensor, table: Tensor, *, back: bool) -> Tensor:
    if x.dtype is torch.bfloat16:
        return torch_native.rotated(x, table, back=back)
    heads = x.unflatten(-1, (-1, table.shape[-1]))
    cos, sin = table.unsqueeze(-2).chunk(2, -1)
    a, b = heads.chunk(2, -1)
    sin = -sin if back else sin
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def _heads(batch: int, op: Attention) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield, per sequence and key head, the places of its query heads and of itself."""
    share = op.heads // op.kv_heads
    for sequence in range(batch):
        for head in range(op.kv_heads):
            queries = slice(head * share, (head + 1) * share)
            yield (sequence, slice(None), queries), (sequence, slice(None), head)


def _queries(x: Tensor, own: tuple[Any, ...]) -> Tensor:
    """Return some heads of [batch, length, heads, head_dim] one under the other."""
    return x[own].transpose(0, 1).reshape(-1, x.shape[-1])


def _apart(x: Tensor, op: Attention) -> Tensor:
    """Undo `_queries` for the heads of one key head."""
    return x.unflatten(0, (op.heads // op.kv_heads, -1)).transpose(0, 1)


def _probabilities(
    queries: Tensor, keys: Tensor, op: Attention, hidden: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return softmax weights [heads * length, length] and the slope of the soft cap."""
    scores, slope = queries @ keys.T, None
    if _in_one_pass(scores, op):
        torch_native.seen_softmax(scores, op.scale, op.window)
        return scores, None
    scores.mul_(op.scale)
    if op.softcap is not None:
        bent = torch.tanh(scores.div_(op.softcap))
        slope, scores = 1 - bent * bent, bent * op.softcap
    scores.unflatten(0, (-1, len(hidden))).add_(hidden)
    return torch.softmax(scores, -1), slope


def _scores_back(
    gradient: Tensor, probabilities: Tensor, slope: Tensor | None, op: Attention
) -> Tensor:
    """Return the gradient of unscaled scores from that of their probabilities."""
    if _in_one_pass(gradient, op):
        torch_native.seen_softmax_back(gradient, probabilities, op.scale, op.window)
        return gradient
    back = torch._softmax_backward_data(gradient, probabilities, -1, gradient.dtype)
    return (back if slope is None else back.mul_(slope)).mul_(op.scale)


def _in_one_pass(scores: Tensor, op: Attention) -> bool:
    return scores.dtype is torch.bfloat16 and op.softcap is None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.gelu = activation is not Activation.SILU
        return torch_native.gated(gate, up, gelu=ctx.gelu)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        gate, up = ctx.saved_tensors
        return *torch_native.gated_back(gradients[0], gate, up, gelu=ctx.gelu), None


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """Return activation(gate) * up."""
    if gate.dtype is torch.bfloat16:
        return _Gated.apply(gate, up, activation)
    if activation is Activation.SILU:
        return functional.silu(gate) * up
    return functional.gelu(gate, approximate="tanh") * up


def _hidden(length: int, window: int | None, kind: torch.dtype) -> Tensor:
    """Return [length, length], added to scores: 0 where a row's position sees a column's."""
    own, other = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = other <= own
    if window is not None:
        seen &= other > own - window
    return torch.zeros(length, length, dtype=kind).masked_fill_(~seen, -torch.inf)
