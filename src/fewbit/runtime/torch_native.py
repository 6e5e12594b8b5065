"""The native passes of tuning on torch tensors: bf16 in and out, float32 in between.

Each does in one pass over memory what takes torch several, with a float32 copy each; the forms
written with torch stay for float32 arithmetic and are the truth in the tests.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit import _native
from fewbit.program import Attention
from fewbit.runtime.chooser import choose_isa
from fewbit.runtime.native import Pool, thread_pool

LANES = 16
"""Groups of a matrix are a multiple of so many columns, or torch takes it."""


def dequantized(
    levels: Tensor, scales: Tensor, offsets: Tensor | None, zeros: Tensor | None
) -> Tensor:
    """Return (level - zero) * scale + offset as bf16 [rows, columns], rounded after each operation.

    Args:
        levels: int8 or uint8 [rows, columns].
        scales: float32 [rows, groups].
        offsets: float32 [rows, groups], or None for none.
        zeros: as offsets.
    """
    out = torch.empty(levels.shape, dtype=torch.bfloat16)
    _native.dequantize_rows(
        _pool(),
        levels=_bytes(levels),
        signed=levels.dtype == torch.int8,
        scales=_floats(scales),
        offsets=None if offsets is None else _floats(offsets),
        zeros=None if zeros is None else _floats(zeros),
        out=_halves(out),
        isa=choose_isa(None),
    )
    return out


def gathered(
    levels: Tensor, scales: Tensor, zeros: Tensor | None, gradient: Tensor, *, sums: bool
) -> tuple[Tensor, Tensor | None]:
    """Return, for each group, the sum of g (level - zero), and of g where `sums` asks for it.

    Args:
        levels: as `dequantized`.
        scales: only their shape counts.
        zeros: as `dequantized`.
        gradient: bf16 [rows, columns], g.
        sums: whether the second is wanted.
    """
    products = torch.empty_like(scales, memory_format=torch.contiguous_format)
    totals = torch.empty_like(products) if sums else None
    _native.gather_groups(
        _pool(),
        levels=_bytes(levels),
        signed=levels.dtype == torch.int8,
        scales=_floats(scales),
        zeros=None if zeros is None else _floats(zeros),
        gradient=_halves(gradient.contiguous()),
        products=products.numpy(),
        sums=None if totals is None else totals.numpy(),
        isa=choose_isa(None),
    )
    return products, totals


def seen_softmax(scores: Tensor, scale: float, window: int | None) -> None:
    """Put softmax(scale * scores) in their place, over the keys that each query sees.

    Args:
        scores: bf16 [heads * length, length], contiguous; query i of a head sees keys up to i.
        scale: above 0.
        window: how many keys a query sees at most, or None.
    """
    _native.seen_softmax(_pool(), _halves(scores), window or 0, scale, choose_isa(None))


def seen_softmax_back(
    gradient: Tensor, probabilities: Tensor, scale: float, window: int | None
) -> None:
    """Put the gradient of the scores in the place of that of their probabilities; all bf16."""
    _native.seen_softmax_back(
        _pool(), _halves(gradient), _halves(probabilities), window or 0, scale, choose_isa(None)
    )


def pulled(
    theirs: Tensor, ours: Tensor, shares: Tensor, caps: tuple[float | None, float | None]
) -> Tensor:
    """Return KL(softmax(theirs) || softmax(ours)) of every row, float32 [rows].

    Its gradient in `ours`, times the row's share, takes their place.

    Args:
        theirs: bf16 [rows, vocabulary], contiguous.
        ours: as theirs.
        shares: float32 [rows].
        caps: the soft caps of both sides.
    """
    found = torch.empty(len(ours))
    _native.pull_logits(
        _pool(),
        theirs=_halves(theirs),
        ours=_halves(ours),
        shares=_floats(shares),
        divergences=found.numpy(),
        their_cap=caps[0] or 0.0,
        our_cap=caps[1] or 0.0,
        isa=choose_isa(None),
    )
    return found


def gated(gate: Tensor, up: Tensor, *, gelu: bool) -> Tensor:
    """Return silu(gate) * up, or with gelu (tanh), bf16 of the same shape."""
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _native.gated(_pool(), _rows(gate), _rows(up), gelu, _rows(out), choose_isa(None))
    return out


def gated_back(gradient: Tensor, gate: Tensor, up: Tensor, *, gelu: bool) -> tuple[Tensor, Tensor]:
    """Return the gradients of gate and up, bf16 of the same shape."""
    gradient, gate, up = gradient.contiguous(), gate.contiguous(), up.contiguous()
    towards = torch.empty_like(gate), torch.empty_like(up)
    _native.gated_back(
        _pool(),
        gradient=_rows(gradient),
        gate=_rows(gate),
        up=_rows(up),
        gelu=gelu,
        towards_gate=_rows(towards[0]),
        towards_up=_rows(towards[1]),
        isa=choose_isa(None),
    )
    return towards


_NORM_ROWS = 64
"""Rows whose gradients of a norm's factor the native pass sums."""


def normed(x: Tensor, factor: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / sqrt(mean(x^2) + eps) * factor as bf16, and float32 1 / sqrt(..) [rows].

    Args:
        x: float32 or bf16 [rows, width].
        factor: float32 [width].
        eps: added to the mean.
    """
    out = torch.empty(x.shape, dtype=torch.bfloat16)
    inverse = torch.empty(len(x))
    _native.norm(
        _pool(),
        x=_either(x),
        factor=_floats(factor),
        eps=eps,
        out=_halves(out),
        inverse=inverse.numpy(),
        isa=choose_isa(None),
    )
    return out, inverse


def normed_back(
    gradient: Tensor, x: Tensor, factor: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x, in its type, and of factor.

    Args:
        gradient: bf16 [rows, width], of the result.
        x: as `normed` got it.
        factor: likewise.
        inverse: as `normed` gave it.
    """
    towards = torch.empty_like(x, memory_format=torch.contiguous_format)
    sums = torch.empty(-(-len(x) // _NORM_ROWS), x.shape[1])
    _native.norm_back(
        _pool(),
        x=_either(x),
        factor=_floats(factor),
        inverse=_floats(inverse),
        gradient=_halves(gradient.contiguous()),
        towards=_either(towards),
        towards_factor=sums.numpy(),
        isa=choose_isa(None),
    )
    return towards, sums.sum(0)


def rotated(x: Tensor, table: Tensor, *, back: bool) -> Tensor:
    """Return the rows of whole sequences turned head by head, bf16 of the same shape.

    Args:
        x: bf16 [.., length, heads * head_dim].
        table: float32 [length, head_dim], cosines and then sines.
        back: whether to turn by the negative angles.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    _native.rotate(
        _pool(),
        x=_rows(x),
        table=_floats(table),
        back=back,
        out=_rows(out),
        isa=choose_isa(None),
    )
    return out


def multiplies() -> bool:
    """Return whether this CPU has products of bf16 worth taking instead of torch's."""
    return _native.multiplies(choose_isa(None))


def multiplied(
    left: Tensor, right: Tensor, *, out: Tensor | None = None, add: bool = False
) -> Tensor:
    """Return left @ right as bf16 [rows, columns], summed in float32 and rounded once.

    Args:
        left: bf16 [rows, depth], with either index contiguous.
        right: bf16 [depth, columns], likewise.
        out: where to put it, contiguous; None for a new tensor.
        add: whether to add it to what `out` holds.
    """
    if out is None:
        out = torch.empty(left.shape[0], right.shape[1], dtype=torch.bfloat16)
    _native.multiplied(
        _pool(),
        left=_factor(left),
        right=_factor(right),
        out=_halves(out),
        add=add,
        isa=choose_isa(None),
    )
    return out


def attended(q: Tensor, k: Tensor, v: Tensor, op: Attention) -> Tensor:
    """Return causal attention of whole sequences, bf16 as q; its probabilities are bf16 too.

    Args:
        q: bf16 [batch, length, heads * head_dim].
        k: bf16 [batch, length, kv_heads * head_dim].
        v: as k.
        op: without a soft cap.
    """
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out = torch.empty_like(q)
    _native.attended(
        _pool(),
        q=_rows(q),
        k=_rows(k),
        v=_rows(v),
        length=q.shape[1],
        width=op.head_dim,
        window=op.window or 0,
        scale=op.scale,
        out=_rows(out),
        isa=choose_isa(None),
    )
    return out


def attended_back(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, op: Attention
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v from that of what `attended` gives."""
    gradient, q, k, v = gradient.contiguous(), q.contiguous(), k.contiguous(), v.contiguous()
    towards = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _native.attended_back(
        _pool(),
        q=_rows(q),
        k=_rows(k),
        v=_rows(v),
        length=q.shape[1],
        width=op.head_dim,
        window=op.window or 0,
        scale=op.scale,
        gradient=_rows(gradient),
        towards_q=_rows(towards[0]),
        towards_k=_rows(towards[1]),
        towards_v=_rows(towards[2]),
        isa=choose_isa(None),
    )
    return towards


def _pool() -> Pool:
    return _threads(torch.get_num_threads())


@cache
def _threads(count: int) -> Pool:
    return thread_pool(count)


def _halves(x: Tensor) -> NDArray[np.uint16]:
    """Return the bits of a contiguous bf16 tensor; both share memory."""
    assert x.is_contiguous()
    bits: NDArray[np.int16] = x.detach().view(torch.int16).numpy()
    return bits.view(np.uint16)


def _factor(x: Tensor) -> NDArray[np.uint16]:
    """Return the bits of a bf16 matrix with a contiguous index; both share memory if it has one."""
    if 1 not in x.stride():
        x = x.contiguous()
    bits: NDArray[np.int16] = x.detach().view(torch.int16).numpy()
    return bits.view(np.uint16)


def _rows(x: Tensor) -> NDArray[np.uint16]:
    return _halves(x).reshape(-1, x.shape[-1])


def _either(x: Tensor) -> NDArray[np.uint16] | NDArray[np.float32]:
    return _floats(x) if x.dtype is torch.float32 else _halves(x.contiguous())


def _bytes(x: Tensor) -> NDArray[np.uint8]:
    levels: NDArray[np.int8] = x.contiguous().numpy()
    return levels.view(np.uint8)


def _floats(x: Tensor) -> NDArray[np.float32]:
    values: NDArray[np.float32] = x.detach().contiguous().numpy()
    return values
