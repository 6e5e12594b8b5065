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


def _rows(x: Tensor) -> NDArray[np.uint16]:
    return _halves(x).reshape(-1, x.shape[-1])


def _bytes(x: Tensor) -> NDArray[np.uint8]:
    levels: NDArray[np.int8] = x.contiguous().numpy()
    return levels.view(np.uint8)


def _floats(x: Tensor) -> NDArray[np.float32]:
    values: NDArray[np.float32] = x.detach().contiguous().numpy()
    return values
