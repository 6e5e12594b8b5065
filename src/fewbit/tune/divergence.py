"""KL(source || student) from final states: logits exist for a few rows at a time only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fewbit.runtime import torch_native
from fewbit.runtime.torch_ops import product_over_rows
from fewbit.tune.memory import CHUNK

_ROWS = 32
"""Rows whose softmax is computed at once, in float32."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """Final states with the head that makes logits of them."""

    states: Tensor
    """[rows, hidden]."""
    table: Tensor
    """[vocabulary, hidden], of the same type."""
    cap: float | None = None
    """Of the soft cap, where there is one."""

    def logits(self, rows: slice, out: Tensor) -> Tensor:
        """Put some rows' logits before the cap, in the states' type, at the start of `out`."""
        return torch.mm(self.states[rows], self.table.T, out=out[: len(self.states[rows])])


def divergence(source: Outputs, student: Outputs, shares: Tensor) -> Tensor:
    """Return sum_r shares[r] KL(source_r || student_r) in nats, with gradients to the student.

    Gradients are computed together with the value, one product each for states and table, so the
    logits are made once; softmax is float32.

    Args:
        source: the distribution to come close to; no gradients.
        student: [rows, ..] as the source's.
        shares: float32 [rows], what a row counts; 0 for padding.
    """
    if torch.is_grad_enabled():
        return _Divergence.apply(student.states, student.table, source, student.cap, shares)
    return torch.dot(row_divergences(source, student), shares)


def row_divergences(source: Outputs, student: Outputs) -> Tensor:
    """Return KL(source_r || student_r) of every row, float32 [rows]."""
    found, places = torch.empty(len(student.states)), _places(student)
    for chunk in _chunks(student):
        theirs, ours = source.logits(chunk, places[0]), student.logits(chunk, places[1])
        found[chunk] = _pull(theirs, ours, torch.zeros(len(ours)), (source.cap, student.cap))
    return found


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        table: Tensor,
        source: Outputs,
        cap: float | None,
        shares: Tensor,
    ) -> Tensor:
        student = Outputs(states, table, cap)
        towards_states = torch.empty_like(states)
        towards_table = torch.empty_like(table) if ctx.needs_input_grad[1] else None
        total, places = torch.zeros(()), _places(student)
        for chunk in _chunks(student):
            theirs, ours = source.logits(chunk, places[0]), student.logits(chunk, places[1])
            kl = _pull(theirs, ours, shares[chunk], (source.cap, cap))
            total += torch.dot(kl, shares[chunk])
            torch.mm(ours, table, out=towards_states[chunk])
            if towards_table is not None:
                product_over_rows(ours, states[chunk], out=towards_table, add=chunk.start > 0)
        ctx.save_for_backward(towards_states, towards_table)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        towards_states, towards_table = ctx.saved_tensors
        if towards_table is not None and float(gradients[0]) != 1:
            towards_table = towards_table * gradients[0].to(towards_table.dtype)
        return towards_states * gradients[0], towards_table, None, None, None


Caps: TypeAlias = tuple[float | None, float | None]
"""The soft caps of the source and of the student."""


def _pull(theirs: Tensor, ours: Tensor, shares: Tensor, caps: Caps) -> Tensor:
    """Return the divergences of rows; `ours` becomes their gradient times the rows' shares."""
    if ours.dtype is torch.bfloat16:
        return torch_native.pulled(theirs, ours, shares, caps)
    found = torch.empty(len(ours))
    for rows in _parts(len(ours)):
        pull, found[rows] = pull_of(theirs[rows], ours[rows], caps)
        ours[rows] = pull.mul_(shares[rows].unsqueeze(-1))
    return found


def pull_of(theirs: Tensor, ours: Tensor, caps: Caps) -> tuple[Tensor, Tensor]:
    """Return the gradient of each row's divergence in the student's logits, and the divergences.

    With logits t and s, p = softmax(t) and q = softmax(s), the divergence is
    sum p (t - s) - (log Z_t - log Z_s), and its gradient q - p, times the slope of the student's
    cap where there is one. log Z is t - log p at the largest logit, so each logit costs one
    exponential a side.
    """
    our_cap = caps[1]
    t, s = _capped(theirs, caps[0]), _capped(ours, our_cap)
    p, q = torch.softmax(t, -1), torch.softmax(s, -1)
    constants = _log_sum(t, p) - _log_sum(s, q)
    slope = None if our_cap is None else 1 - (s / our_cap) ** 2
    kl = torch.linalg.vecdot(p, t.sub_(s)) - constants
    pull = q.sub_(p)
    return pull if slope is None else pull.mul_(slope), kl


def _log_sum(logits: Tensor, shares: Tensor) -> Tensor:
    """Return log sum exp of each row from its softmax."""
    return logits.amax(-1) - shares.amax(-1).log_()


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    logits = logits.float()
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _chunks(student: Outputs) -> Iterator[slice]:
    rows = _chunk_rows(student)
    for start in range(0, len(student.states), rows):
        yield slice(start, start + rows)


def _places(student: Outputs) -> tuple[Tensor, Tensor]:
    """Return room for a chunk's logits of both sides: fresh memory for each would cost more."""
    shape = min(_chunk_rows(student), len(student.states)), len(student.table)
    kind = student.states.dtype
    return torch.empty(shape, dtype=kind), torch.empty(shape, dtype=kind)


def _chunk_rows(student: Outputs) -> int:
    return max(1, CHUNK // len(student.table))


def _parts(rows: int) -> Iterator[slice]:
    for start in range(0, rows, _ROWS):
        yield slice(start, start + _ROWS)
