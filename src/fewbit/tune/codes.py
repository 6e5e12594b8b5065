"""Codes that are trained: a latent in units of the scale beside each, rounded to the nearest level.

The latent is level + residual. Only the level (a byte) is used in the forward pass, so what is
trained is what is stored; the residual (float16, at most half the distance to the next level)
remembers how far a code is from changing. Residuals begin at zero, not where the source's values
lie: a solver has put many codes beyond the nearest to correct other columns' errors, and those
would fall back at the first small step (docs/log.md has what that costs). So a code changes where
gradients agree over many steps. The gradient of a value goes to its latent as if nothing were
rounded (straight-through, Bengio et al. 2013). Steps are Adam's, with the second moment kept as its
means over rows and over columns (Adafactor, Shazeer and Stern 2018): seven bytes a weight
altogether, the gradient included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.formats.grid import GridLayout
from fewbit.tune.adam import FIRST_DECAY, SECOND_DECAY, TINY
from fewbit.tune.matrix import GridMatrix, pieces


class LatentCodes:
    """The latents of one matrix's codes; collects their gradient and takes steps."""

    def __init__(self, matrix: GridMatrix, *, reach: int | None, gradients: torch.dtype) -> None:
        """Attach to a matrix.

        Args:
            matrix: its levels will change.
            reach: how many codes away from where it began a code may go; None for any.
            gradients: the type that gradients are kept in.
        """
        layout = matrix.layout
        self._matrix, self._gradients, self._layout = matrix, gradients, layout
        self._table = torch.tensor(layout.levels)
        self._distance = (layout.levels[-1] - layout.levels[0]) / (len(layout.levels) - 1)
        self._origin = None if reach is None else matrix.levels.clone()
        self._reach = reach
        self._gradient: Tensor | None = None
        self.residual = torch.zeros(matrix.shape, dtype=torch.float16)
        self.first = torch.zeros(matrix.shape, dtype=torch.bfloat16)
        self.by_row = torch.zeros(matrix.shape[0])
        self.by_column = torch.zeros(matrix.shape[1])
        matrix.collector = self

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds, by name; to be copied into when one is read."""
        found = {
            "levels": self._matrix.levels,
            "residual": self.residual,
            "first": self.first,
            "by_row": self.by_row,
            "by_column": self.by_column,
        }
        return found if self._origin is None else {**found, "origin": self._origin}

    def collect(self, gradient: Tensor) -> None:
        """Add the gradient of all values."""
        if self._gradient is None:
            self._gradient = gradient.to(self._gradients)
        else:
            self._gradient += gradient

    def collect_rows(self, rows: Tensor, gradient: Tensor) -> None:
        """Add the gradient of some rows."""
        if self._gradient is None:
            self._gradient = torch.zeros(self._matrix.shape, dtype=self._gradients)
        self._gradient.index_add_(0, rows, gradient.to(self._gradients))

    def step(self, number: int, rate: float) -> None:
        """Use up the gradient of step `number`, counted from 1; `rate` is in units of the scale."""
        gradient, self._gradient = self._gradient, None
        if gradient is None:
            return
        self._measure(gradient)
        unbiased = 1 - SECOND_DECAY**number
        row, column = self.by_row / unbiased, self.by_column / unbiased
        row_root = (row / row.mean().add(TINY**2)).sqrt_()
        column_root = column.sqrt().add_(TINY)
        length = rate * self._distance / (1 - FIRST_DECAY**number)
        for piece in pieces(gradient.shape):
            first = self.first[piece].float().lerp_(gradient[piece].float(), 1 - FIRST_DECAY)
            self.first[piece] = first
            spread = row_root[piece].unsqueeze(1).add(1e-3) * column_root
            self._move(piece, first.div_(spread).mul_(length))

    def _measure(self, gradient: Tensor) -> None:
        """Take the means of the squared gradient over each row and over each column."""
        over_columns = torch.zeros_like(self.by_column)
        for piece in pieces(gradient.shape):
            squares = gradient[piece].float().square()
            self.by_row[piece] = self.by_row[piece].lerp(squares.mean(1), 1 - SECOND_DECAY)
            over_columns += squares.sum(0)
        self.by_column.lerp_(over_columns / len(gradient), 1 - SECOND_DECAY)

    def _move(self, piece: slice, by: Tensor) -> None:
        levels = self._matrix.levels[piece]
        latent = levels.float().add_(self.residual[piece]).sub_(by)
        moved = _nearest(latent, self._table, self._layout)
        if self._origin is not None and self._reach is not None:
            moved = _within(moved, self._origin[piece], self._table, self._reach)
        self.residual[piece] = latent.sub_(moved).clamp_(-self._distance / 2, self._distance / 2)
        self._matrix.levels[piece] = moved.to(levels.dtype)


def _nearest(latent: Tensor, table: Tensor, layout: GridLayout) -> Tensor:
    if layout.integer:
        return latent.round().clamp_(layout.levels[0], layout.levels[-1])
    return table[torch.bucketize(latent, (table[1:] + table[:-1]) / 2)]


def _within(levels: Tensor, origin: Tensor, table: Tensor, reach: int) -> Tensor:
    """Bring levels to at most `reach` codes from where they began."""
    places = torch.bucketize(origin.float(), table)
    low = table[(places - reach).clamp_(min=0)]
    high = table[(places + reach).clamp_(max=len(table) - 1)]
    return torch.minimum(torch.maximum(levels, low), high)
