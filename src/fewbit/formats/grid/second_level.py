"""Two levels of scales: float16 units of a block and integer steps of its groups, together.

At fixed codes a group's error is a quadratic in its scale and offset, whose coefficients are the
sums of the regression. Units and steps are sought on those quadratics, which costs nothing beside
the codes: a few units, then steps and units in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.grid.layout import GridLayout, Offset
from fewbit.formats.grid.search import F32, Sums, ratio, regression

_UNITS = 8
"""Units tried: the block's largest scale takes the last step, the one before it, and so on."""
_ROUNDS = 2
"""Rounds of steps and units in turn."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Units, float32 [blocks, 1] holding float16 values, and steps, float32 [blocks, groups]."""

    unit: F32
    steps: F32
    offset_unit: F32
    offset_steps: F32

    @property
    def scale(self) -> F32:
        """Effective scales [blocks, groups]."""
        return self.unit * self.steps

    @property
    def offset(self) -> F32:
        """Effective offsets [blocks, groups]."""
        return -(self.offset_unit * self.offset_steps)

    def replaced(self, better: NDArray[np.bool_], other: Levels) -> Levels:
        """Return the other's blocks where it is better, bool [blocks, 1]."""
        return Levels(
            np.where(better, other.unit, self.unit),
            np.where(better, other.steps, self.steps),
            np.where(better, other.offset_unit, self.offset_unit),
            np.where(better, other.offset_steps, self.offset_steps),
        )


def settle(sums: Sums, layout: GridLayout) -> Levels:
    """Return the units and steps of least error at fixed codes, of those tried.

    Args:
        sums: per group, [blocks, groups of a block].
        layout: of a format with two levels of scales.
    """
    scale, _ = regression(sums, layout)
    best: Levels | None = None
    best_gain: F32 = np.zeros((len(scale), 1), np.float32)
    for unit in _units(scale, layout):
        tried = _from_unit(sums, unit, scale, layout)
        for _ in range(_ROUNDS):
            gain = sums.gain(tried.scale, tried.offset).sum(axis=1, keepdims=True)
            if best is None:
                best, best_gain = tried, gain
            else:
                better = gain > best_gain
                best = best.replaced(better, tried)
                best_gain = np.where(better, gain, best_gain)
            tried = improved(sums, tried, layout)
    assert best is not None
    return best


def _units(scale: F32, layout: GridLayout) -> Iterable[F32]:
    assert layout.steps is not None
    low, high = layout.steps
    place = np.abs(scale).argmax(axis=1, keepdims=True)
    largest = np.take_along_axis(scale, place, axis=1)
    outer = -low if -low > high else high
    sign = -1 if low < 0 else 1
    for k in range(_UNITS):
        yield _half(largest / np.float32(sign * (outer - k)))


def _from_unit(sums: Sums, unit: F32, scale: F32, layout: GridLayout) -> Levels:
    """Return steps nearest to the scales, and the offsets that are best beside them."""
    assert layout.steps is not None
    steps = _nearest(ratio(scale, unit), layout.steps)
    if layout.offset is Offset.NONE:
        nothing = np.zeros_like(steps)
        return Levels(unit, steps, nothing[:, :1], nothing)
    assert layout.offset_steps is not None
    minimum = np.maximum(ratio(unit * steps * sums.wl - sums.wx, sums.w), np.float32(0))
    last = layout.offset_steps[1]
    offset_unit = _half(minimum.max(axis=1, keepdims=True) / np.float32(last))
    offset_steps = _nearest(ratio(minimum, offset_unit), layout.offset_steps)
    return Levels(unit, steps, offset_unit, offset_steps)


def improved(sums: Sums, found: Levels, layout: GridLayout) -> Levels:
    """Return the best steps for the units, then the best units for those steps."""
    assert layout.steps is not None
    wanted = ratio(sums.wxl - found.offset * sums.wl, sums.wll)
    steps = _nearest(ratio(wanted, found.unit), layout.steps)
    if layout.offset is Offset.NONE:
        products = (steps * sums.wxl).sum(axis=1, keepdims=True)
        squares = (steps * steps * sums.wll).sum(axis=1, keepdims=True)
        return Levels(_half(ratio(products, squares)), steps, found.offset_unit, found.offset_steps)
    assert layout.offset_steps is not None
    minimum = ratio(found.unit * steps * sums.wl - sums.wx, sums.w)
    offset_steps = _nearest(ratio(minimum, found.offset_unit), layout.offset_steps)
    unit, offset_unit = _joint_units(sums, steps, offset_steps)
    return Levels(_half(unit), steps, _half(offset_unit), offset_steps)


def _joint_units(sums: Sums, steps: F32, offset_steps: F32) -> tuple[F32, F32]:
    """Solve the normal equations of both units of each block; they can only be positive."""
    a = (steps * steps * sums.wll).sum(axis=1, keepdims=True)
    b = -(steps * offset_steps * sums.wl).sum(axis=1, keepdims=True)
    c = (offset_steps * offset_steps * sums.w).sum(axis=1, keepdims=True)
    p = (steps * sums.wxl).sum(axis=1, keepdims=True)
    q = -(offset_steps * sums.wx).sum(axis=1, keepdims=True)
    determinant = a * c - b * b
    sound = determinant > a * c * np.float32(2.0**-20)
    determinant = np.where(sound, determinant, np.float32(1))
    unit = np.where(sound, (c * p - b * q) / determinant, ratio(p, a))
    offset_unit = np.where(sound, (a * q - b * p) / determinant, np.float32(0))
    return np.maximum(unit, np.float32(0)), np.maximum(offset_unit, np.float32(0))


def _nearest(quotients: F32, steps: tuple[int, int]) -> F32:
    quotients[~np.isfinite(quotients)] = 0
    return np.clip(np.rint(quotients), np.float32(steps[0]), np.float32(steps[1]))


def _half(units: F32) -> F32:
    return units.astype(np.float16).astype(np.float32)
