"""Scales and offsets of groups by search: alternate between nearest codes and least squares.

With the codes of a group fixed, the best scale and offset are a weighted regression of the values
on the levels; with scale and offset fixed, the best codes are the nearest. Alternating the two only
lowers the error (Lloyd's algorithm), to a minimum that depends on the start, so many starts are
tried: the group's range divided among somewhat fewer and more levels than there are.

Arrays have the elements of a group along one axis and the groups along the other; what belongs to
a group keeps both axes. Short groups lie along columns, so that sums over them add whole rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.grid.grid import thresholds
from fewbit.formats.grid.layout import GridLayout, Offset

F32: TypeAlias = NDArray[np.float32]

_SHORT = 64
"""Groups up to this size lie along columns."""
_STARTS = 9
"""Steps tried for groups of up to 64. On real weights twice as many lower the error by another 0.1%
without an offset and by 0.4% with one, and half as many raise it by 0.3% and 1%."""
_LONG_STARTS = 24
_LONG_CUT = 2.5
"""Longer groups have far outliers: steps are tried down to 1 / (1 + this) of what the range needs
at 4 bits; the more levels, the less is gained by cutting."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Values and importances of some groups."""

    axis: int
    """The axis of a group's elements: 0 or 1."""
    x: F32
    w: F32
    wx: F32

    def sum_of(self, *factors: F32) -> F32:
        """Return the sum of the products over each group, keeping both axes."""
        inputs = ",".join(["ij"] * len(factors))
        sums: F32 = np.einsum(f"{inputs}->{'j' if self.axis == 0 else 'i'}", *factors)
        return np.expand_dims(sums, self.axis)


@dataclass(frozen=True, eq=False)
class Sums:
    """What the regression of the values x on levels l needs, per group; l and x are weighted."""

    w: F32
    wx: F32
    wl: F32
    wll: F32
    wxl: F32

    def gain(self, scale: F32, offset: F32) -> F32:
        """Return by how much the error lies under that of zeros, sum w x^2, with these codes."""
        gain: F32 = scale * (2 * self.wxl - scale * self.wll - 2 * offset * self.wl)
        gain += offset * (2 * self.wx - offset * self.w)
        return gain

    def reshaped(self, *shape: int) -> Sums:
        """Return the sums in another shape."""
        parts = (self.w, self.wx, self.wl, self.wll, self.wxl)
        return Sums(*(part.reshape(shape) for part in parts))

    def replaced(self, better: NDArray[np.bool_], other: Sums) -> Sums:
        """Return the other's sums where it is better."""
        return Sums(
            self.w,
            self.wx,
            np.where(better, other.wl, self.wl),
            np.where(better, other.wll, self.wll),
            np.where(better, other.wxl, self.wxl),
        )


def groups_of(x: F32, w: F32, group: int) -> Groups:
    """Return groups of `group` consecutive elements of x and w, float32 [rows, columns]."""
    x, w = x.reshape(-1, group), w.reshape(-1, group)
    if group > _SHORT:
        return Groups(1, x, w, w * x)
    x, w = np.ascontiguousarray(x.T), np.ascontiguousarray(w.T)
    return Groups(0, x, w, w * x)


def scan(groups: Groups, layout: GridLayout) -> Sums:
    """Return, for each group, the sums at the codes of the start that promises the least error."""
    total, moment = groups.sum_of(groups.w), groups.sum_of(groups.wx)
    best: Sums | None = None
    best_gain: F32 = np.zeros_like(total)
    for scale, offset in _starts(groups, layout):
        levels = levels_at(groups, scale, offset, layout)
        sums = sums_at(groups, levels, layout, total, moment)
        gain = sums.gain(*regression(sums, layout))
        if best is None:
            best, best_gain = sums, gain
        else:
            better = gain > best_gain
            best = best.replaced(better, sums)
            best_gain = np.where(better, gain, best_gain)
    assert best is not None
    return best


def levels_at(groups: Groups, scale: F32, offset: F32, layout: GridLayout) -> F32:
    """Return the level nearest to each value, (x - offset) / scale rounded."""
    inverse = np.divide(np.float32(1), scale, where=scale != 0, out=np.zeros_like(scale))
    inverse[~np.isfinite(inverse)] = 0
    quotients: F32 = groups.x * inverse
    if layout.offset is not Offset.NONE:
        quotients -= offset * inverse
    if not layout.integer:
        return _table_levels(quotients, layout)
    np.rint(quotients, out=quotients)
    low, high = np.float32(layout.levels[0]), np.float32(layout.levels[-1])
    return np.clip(quotients, low, high, out=quotients)


def sums_at(groups: Groups, levels: F32, layout: GridLayout, total: F32, moment: F32) -> Sums:
    """Return the sums at these levels; `total` and `moment` are those of w and w x."""
    weighted = groups.w * levels
    plain = layout.offset is Offset.NONE
    return Sums(
        w=total,
        wx=moment,
        wl=np.zeros_like(total) if plain else groups.sum_of(weighted),
        wll=groups.sum_of(weighted, levels),
        wxl=groups.sum_of(groups.wx, levels),
    )


def error_at(groups: Groups, levels: F32, scale: F32, offset: F32, layout: GridLayout) -> F32:
    """Return the weighted squared error of each group; NaN counts as infinite."""
    residual = levels * scale
    if layout.offset is not Offset.NONE:
        residual += offset
    residual -= groups.x
    error = groups.sum_of(residual, residual, groups.w)
    error[np.isnan(error)] = np.inf
    return error


def regression(sums: Sums, layout: GridLayout) -> tuple[F32, F32]:
    """Return the scale and offset of least squares at fixed codes; the offset is 0 without one.

    Formats with subtracted minima can only shift downwards and have no negative scales; those with
    a zero point shift by whole steps.
    """
    alone = ratio(sums.wxl, sums.wll)
    if layout.offset is Offset.NONE:
        return alone, np.zeros_like(alone)
    spread = sums.w * sums.wll - sums.wl * sums.wl
    # Under a relative 2^-20 the difference is rounding: all levels are the same.
    spread[spread < sums.w * sums.wll * np.float32(2.0**-20)] = 0
    scale = ratio(sums.w * sums.wxl - sums.wl * sums.wx, spread)
    offset = ratio(sums.wx - scale * sums.wl, sums.w)
    if layout.offset is Offset.STEPS:
        upward = (offset > 0) | (scale < 0)
        scale = np.where(upward, np.maximum(alone, np.float32(0)), scale)
        offset = np.where(upward, np.float32(0), offset)
    if layout.offset is Offset.ZERO:
        zero = zero_point(scale, offset, layout)
        # With z fixed the values are s (l - z): a regression without offset.
        squares = sums.wll - zero * (2 * sums.wl - zero * sums.w)
        scale = ratio(sums.wxl - zero * sums.wx, squares)
        offset = -scale * zero
    return scale, offset


def zero_point(scale: F32, offset: F32, layout: GridLayout) -> F32:
    """Return the zero point nearest to -offset / scale, a whole number in the format's range."""
    assert layout.offset_steps is not None
    low, high = (np.float32(step) for step in layout.offset_steps)
    zero: F32 = np.clip(np.rint(ratio(-offset, scale)), low, high)
    return zero


def ratio(a: F32, b: F32) -> F32:
    """Return a / b, and 0 where b is 0."""
    return np.divide(a, b, where=b != 0, out=np.zeros_like(a))


def _starts(groups: Groups, layout: GridLayout) -> Iterable[tuple[F32, F32]]:
    if layout.offset is Offset.NONE:
        return _symmetric_starts(groups, layout)
    return _offset_starts(groups, layout)


def _symmetric_starts(groups: Groups, layout: GridLayout) -> Iterable[tuple[F32, F32]]:
    """Give the longest value a place from one below the outermost level to some beyond it.

    Where one side has further levels both directions are tried: with little importance on that
    value the others decide.
    """
    longest = np.abs(groups.x).argmax(axis=groups.axis, keepdims=True)
    value = np.take_along_axis(groups.x, longest, axis=groups.axis)
    outer = np.float32(layout.levels[0])
    for beyond in _beyond(layout, -float(outer), 3.0):
        scale = value / (outer * beyond)
        yield scale, np.zeros_like(scale)
        if layout.levels[0] != -layout.levels[-1]:
            yield -scale, np.zeros_like(scale)


def _beyond(layout: GridLayout, last: float, most: float) -> NDArray[np.float32]:
    """Return how far the range is to reach, in units of where the last of the levels lies.

    From a little less than one step under it, so that it falls anywhere between two codes, to
    `most` steps past it where levels are integers, fewer where there are few.
    """
    step = 1.0 if layout.integer else last / 8
    first = 1 - 0.9 * step / last
    if layout.group > _SHORT:
        cut = _LONG_CUT * min(1.0, (8 / last) ** 0.5)
        return np.geomspace(first, 1 + cut, _LONG_STARTS, dtype=np.float32)
    return np.linspace(first, 1 + min(most * step / last, 0.45), _STARTS, dtype=np.float32)


def _offset_starts(groups: Groups, layout: GridLayout) -> Iterable[tuple[F32, F32]]:
    """Divide the range into a little less than one step fewer than there are, up to some more."""
    low = groups.x.min(axis=groups.axis, keepdims=True)
    high = groups.x.max(axis=groups.axis, keepdims=True)
    if layout.offset is not Offset.VALUE:
        low, high = np.minimum(low, np.float32(0)), np.maximum(high, np.float32(0))
    last = np.float32(layout.levels[-1])
    for beyond in _beyond(layout, float(last), 2.4):
        scale = (high - low) / (last * beyond)
        slack = (high - low) - scale * last
        for anchor in _anchors(low, high, layout):
            offset = low + slack * anchor
            if layout.offset is Offset.ZERO:
                offset = -scale * zero_point(scale, offset, layout)
            yield scale, offset


def _anchors(low: F32, high: F32, layout: GridLayout) -> tuple[F32 | np.float32, ...]:
    """Return where the grid is held while its step changes, as a share of the range.

    At the middle, or at zero where that has a code of its own, and in short groups at both ends:
    there it matters where between two codes the values fall.
    """
    inside: F32 | np.float32 = np.float32(0.5)
    if layout.offset is Offset.ZERO:
        inside = ratio(-low, high - low)
    if layout.group > _SHORT:
        return (inside,)
    return np.float32(0), inside, np.float32(1)


def _table_levels(quotients: F32, layout: GridLayout) -> F32:
    """Look levels up by the half-integer below; all thresholds of the tables lie on those."""
    table = _half_integer_table(layout)
    quotients -= np.float32(layout.levels[0])
    quotients *= np.float32(2)
    np.clip(quotients, np.float32(0), np.float32(len(table) - 1), out=quotients)
    return table.take(quotients.astype(np.int32), mode="clip")


@cache
def _half_integer_table(layout: GridLayout) -> F32:
    halves = np.arange(layout.levels[0], layout.levels[-1] + 0.25, 0.5)
    places = np.searchsorted(thresholds(layout), halves, side="right")
    return np.array(layout.levels, np.float32)[places]
