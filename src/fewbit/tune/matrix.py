"""A quantized matrix in torch: codes as levels in a byte each, and trained scales over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.formats.grid import Grid, GridLayout, Offset, join, split
from fewbit.formats.spec import QuantTensor
from fewbit.runtime import torch_native
from fewbit.tune.latent import STORED_SCALE, Latent, as_integers, latent

_PIECE = 1 << 18
"""Weights worked on at once: their float32 temporaries stay in a core's cache."""


class Collector(Protocol):
    """Takes the gradient of a matrix's values, for whoever trains the codes."""

    def collect(self, gradient: Tensor) -> None:
        """Add the gradient of all values, [rows, columns]; it is the collector's to keep."""
        ...

    def collect_rows(self, rows: Tensor, gradient: Tensor) -> None:
        """Add that of some rows, int64 [n] and float32 [n, columns]; a row may come twice."""
        ...


class GridMatrix:
    """One matrix on its grid: levels (int8 or uint8) that stay, and the latents of its scales.

    The values are those of `formats.grid.values` bit for bit: the same float32 operations in the
    same order. In bf16 they are rounded once more.
    """

    def __init__(self, tensor: QuantTensor) -> None:
        codes, grid = split(tensor)
        self.grid = grid
        self.layout = grid.layout
        self.levels = levels_of(codes, grid.layout)
        """int8 or uint8 [rows, columns], the level of each code."""
        self.latents = _latents(grid)
        """By name: scale, steps, offset, offset_steps, as `Grid` has them."""
        self.collector: Collector | None = None

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.layout.group

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.levels.shape[0], self.levels.shape[1]

    def values(self, arithmetic: torch.dtype) -> Tensor:
        """Return the whole matrix, with gradients to the latents and to the collector."""
        return _Dequantize.apply(*self._scales(), self, None, arithmetic)

    def rows(self, rows: Tensor) -> Tensor:
        """Return some rows as float32 [.., columns], of places int64 [..]."""
        flat = rows.reshape(-1)
        scales = (None if part is None else part[flat] for part in self._scales())
        return _Dequantize.apply(*scales, self, flat, torch.float32).reshape(*rows.shape, -1)

    def scales(self) -> Tensor:
        """Return the effective scales, float32 [rows, groups]."""
        return self._scales()[0]

    def exported(self) -> QuantTensor:
        """Return the tensor as it stands, in the format it came in."""
        parts = {name: part.exported().numpy() for name, part in self.latents.items()}
        grid = Grid(
            self.grid.form,
            self.layout,
            parts["scale"],
            _integers(parts, "steps"),
            parts.get("offset"),
            _integers(parts, "offset_steps"),
        )
        return join(codes_of(self.levels, self.layout), grid)

    def _scales(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return effective scales, offsets and zero points, [rows, groups] each."""
        parts = {name: part.stored() for name, part in self.latents.items()}
        scales = self._effective(parts, "scale", "steps")
        match self.layout.offset:
            case Offset.NONE:
                return scales, None, None
            case Offset.ZERO:
                return scales, None, parts["offset_steps"]
            case Offset.VALUE:
                return scales, parts["offset"], None
            case Offset.STEPS:
                return scales, -self._effective(parts, "offset", "offset_steps"), None

    def _effective(self, parts: Mapping[str, Tensor], first: str, second: str) -> Tensor:
        if second not in parts or self.layout.steps is None:
            return parts[first]
        ratio = self.layout.block // self.layout.group
        return parts[first].repeat_interleave(ratio, 1) * parts[second]


class _Dequantize(torch.autograd.Function):
    """(level - zero) * scale + offset, a few rows at a time.

    Only the scales are kept for the backward pass. With g the gradient of the values, that of a
    group's scale is the sum of g (level - zero), of its offset the sum of g, of its zero point that
    times -scale; nothing of the matrix's size is made.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scales: Tensor,
        offsets: Tensor | None,
        zeros: Tensor | None,
        matrix: GridMatrix,
        rows: Tensor | None,
        arithmetic: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(scales, offsets, zeros)
        ctx.matrix, ctx.rows = matrix, rows
        levels = matrix.levels if rows is None else matrix.levels[rows]
        if arithmetic is torch.bfloat16 and not matrix.group % torch_native.LANES:
            return torch_native.dequantized(levels, scales, offsets, zeros)
        out = torch.empty(levels.shape, dtype=arithmetic)
        for piece in pieces(levels.shape):
            values = _centred(levels[piece], zeros, piece, scales.shape[1])
            values *= scales[piece].unsqueeze(-1)
            if offsets is not None:
                values += offsets[piece].unsqueeze(-1)
            out[piece] = values.flatten(1)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scales, offsets, zeros = ctx.saved_tensors
        gradient, matrix, rows = gradients[0], ctx.matrix, ctx.rows
        levels = matrix.levels if rows is None else matrix.levels[rows]
        gather = _gathered
        if gradient.dtype is torch.bfloat16 and not matrix.group % torch_native.LANES:
            gather = torch_native.gathered
        shifted = offsets is not None or zeros is not None
        towards_scale, sums = gather(levels, scales, zeros, gradient, sums=shifted)
        _hand_over(matrix.collector, rows, gradient)
        towards_zero = None if zeros is None or sums is None else -sums * scales
        return towards_scale, None if offsets is None else sums, towards_zero, None, None, None


def _gathered(
    levels: Tensor, scales: Tensor, zeros: Tensor | None, gradient: Tensor, *, sums: bool
) -> tuple[Tensor, Tensor | None]:
    """Return what `torch_native.gathered` does, of gradients of any type."""
    products, totals = torch.empty_like(scales), torch.empty_like(scales) if sums else None
    for piece in pieces(levels.shape):
        pull = gradient[piece].float().unflatten(1, (scales.shape[1], -1))
        if totals is not None:
            torch.sum(pull, -1, out=totals[piece])
        centred = _centred(levels[piece], zeros, piece, scales.shape[1])
        torch.sum(centred.mul_(pull), -1, out=products[piece])
    return products, totals


def pieces(shape: torch.Size) -> Iterator[slice]:
    """Yield slices of rows that cover a matrix a piece at a time."""
    step = max(1, _PIECE // max(1, shape[1]))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def levels_of(codes: NDArray[np.uint8], layout: GridLayout) -> Tensor:
    """Return the level of each code, uint8 where one is beyond 127, else int8.

    The levels of every format are integers between -128 and 255.
    """
    table = np.array(layout.levels)
    kind = np.uint8 if table[-1] > 127 else np.int8
    assert np.array_equal(table.astype(kind), table)
    return torch.from_numpy(table.astype(kind)[codes])


def codes_of(levels: Tensor, layout: GridLayout) -> NDArray[np.uint8]:
    """Return the code of each level; of the two zeros of MXFP4 the first."""
    table = np.array(layout.levels, np.int16)
    if layout.integer:
        return (levels.numpy().astype(np.int16) - table[0]).astype(np.uint8)
    return np.searchsorted(table, levels.numpy().astype(np.int16)).astype(np.uint8)


def _centred(levels: Tensor, zeros: Tensor | None, piece: slice, groups: int) -> Tensor:
    """Return level - zero as float32 [rows, groups, elements of a group]."""
    centred = levels.float().unflatten(1, (groups, -1))
    return centred if zeros is None else centred.sub_(zeros[piece].unsqueeze(-1))


def _hand_over(collector: Collector | None, rows: Tensor | None, gradient: Tensor) -> None:
    if collector is None:
        return
    if rows is None:
        collector.collect(gradient)
    else:
        collector.collect_rows(rows, gradient)


def _latents(grid: Grid) -> dict[str, Latent]:
    """Return the latents of a grid; offsets move relative to half the range of the levels."""
    layout = grid.layout
    stored = STORED_SCALE[layout.scale_type]
    reach = (layout.levels[-1] - layout.levels[0]) / 2
    scale = torch.from_numpy(grid.scale.copy())
    found = {"scale": latent(scale, stored, 0.0)}
    if grid.steps is not None and layout.steps is not None:
        found["steps"] = _integer_latent(grid.steps, layout.steps)
    if grid.offset is not None:
        least = scale.abs() * reach if layout.offset is Offset.VALUE else 0.0
        found["offset"] = latent(torch.from_numpy(grid.offset.copy()), stored, least)
    if grid.offset_steps is not None and layout.offset_steps is not None:
        found["offset_steps"] = _integer_latent(grid.offset_steps, layout.offset_steps)
    return found


def _integer_latent(steps: NDArray[np.int16], bounds: tuple[int, int]) -> Latent:
    return latent(torch.from_numpy(steps.astype(np.float32)), as_integers(*bounds), 1.0)


def _integers(parts: Mapping[str, NDArray[np.float32]], name: str) -> NDArray[np.int16] | None:
    return parts[name].astype(np.int16) if name in parts else None
