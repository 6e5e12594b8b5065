"""Judged figures on strips whose margins stand under each other, and how single items changed.

A strip is drawn in units of its own margin: 0 is no harm, 1 the margin. Figures of any unit can so
be read down one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from fewbit.records.figures import number
from fewbit.records.interval import Interval
from fewbit.report.svg import NOTHING, Box, Scale, drawing, line, mark, rect, text

_LEAST, _MOST = -0.35, 1.75
"""What is drawn, in margins; what lies beyond is an arrow at the end."""
_SHARE = Scale(_LEAST, _MOST, 0, 100)
_MIDDLE, _HEIGHT = 15, 36
_NARROW = 3.0


class Strip(NamedTuple):
    """One judged figure."""

    name: str
    figure: Interval
    """What is held against the margin."""
    floor: Interval | None
    """What the source's own noise gives, in the same unit."""
    margin: float
    origin: float
    """The figure of no harm: 1 for ratios, else 0."""
    outcome: str


class Flips(NamedTuple):
    """How items that pass or fail went on two arms."""

    both_right: int
    harmful: int
    """The source passed, the candidate failed."""
    helpful: int
    """The source failed, the candidate passed."""
    both_wrong: int

    @property
    def all(self) -> int:
        """How many items there are."""
        return sum(self)


def strip_chart(strip: Strip) -> Markup:
    """Draw a figure's interval between no harm and beyond its margin, the noise floor above it."""
    low, value, high = (_place(strip, v) for v in _bounds(strip.figure))
    zero, limit = _SHARE(0), _SHARE(1)
    parts = [
        rect(Box(0, _MIDDLE - 8, limit, 16), "allowed"),
        rect(Box(limit, _MIDDLE - 8, 100 - limit, 16), "beyond"),
        line(zero, _MIDDLE - 12, zero, _MIDDLE + 9, "axis"),
        line(limit, _MIDDLE - 14, limit, _MIDDLE + 12, "margin"),
        *_floor(strip),
        rect(Box(low, _MIDDLE - 2, max(high - low, 0.4), 4), "interval"),
        *_arrows(strip),
        mark(value, _MIDDLE, strip.outcome, number(strip.figure.value, strip.margin)),
    ]
    label = f"{strip.name}: {number(strip.figure.value, strip.margin)}, margin {strip.margin:g}"
    return drawing(_HEIGHT, label, parts)


def strip_axis() -> Markup:
    """Draw what the strips have in common: where no harm, half the margin and the margin lie."""
    parts = [
        text(_SHARE(0), 12, "no harm"),
        text(_SHARE(0.5), 12, "½"),
        text(_SHARE(1), 12, "margin", kind="strong"),
        text(100, 12, "beyond", "end"),
    ]
    return drawing(16, "no harm at the left line, the margin at the dashed one", parts)


def flip_chart(flips: Flips) -> Markup:
    """Draw items as one bar: right on both, harmed, helped, wrong on both."""
    if not flips.all:
        return NOTHING
    parts, x = [], 0.0
    names = ("right on both", "harmed", "helped", "wrong on both")
    kinds = ("flip-right", "flip-harm", "flip-help", "flip-wrong")
    for count, name, kind in zip(flips, names, kinds, strict=True):
        wide = 100 * count / flips.all
        parts.append(rect(Box(x, 2, wide, 16), kind, f"{name}: {count} of {flips.all}"))
        x += wide
    return drawing(20, f"{flips.harmful} harmed, {flips.helpful} helped of {flips.all}", parts)


def flip_key(kind: str) -> Markup:
    """Return a small field of one part's pattern, for a legend."""
    return drawing(12, kind.removeprefix("flip-"), [rect(Box(0, 0, 100, 12), kind)])


def flips_of(values: Sequence[tuple[float, float]]) -> Flips:
    """Count pairs of (source, candidate), each 0 for passed or 1 for failed."""
    pairs = [(source >= 0.5, candidate >= 0.5) for source, candidate in values]
    return Flips(
        both_right=pairs.count((False, False)),
        harmful=pairs.count((False, True)),
        helpful=pairs.count((True, False)),
        both_wrong=pairs.count((True, True)),
    )


def _floor(strip: Strip) -> list[Markup]:
    """Draw the noise floor under the figure: its interval as a line, a triangle at its value."""
    if strip.floor is None:
        return []
    low, value, high = (_place(strip, v) for v in _bounds(strip.floor))
    hint = f"noise floor: {number(strip.floor.value)}"
    triangle = mark(value, _MIDDLE + 14, "noise", hint)
    if high - low < _NARROW:  # under the triangle it could not be seen
        return [triangle]
    return [rect(Box(low, _MIDDLE + 18, high - low, 2), "floor", hint), triangle]


def _arrows(strip: Strip) -> list[Markup]:
    """Say at the end of the strip that the interval goes on."""
    _, value, high = (_share(strip, v) for v in _bounds(strip.figure))
    low = _share(strip, _bounds(strip.figure)[0])
    arrows = []
    if high > _MOST:
        said = f"{number(strip.figure.value, strip.margin)} ▸" if value > _MOST else "▸"
        arrows.append(text(99.5, _MIDDLE - 9, said, "end", "strong"))
    if low < _LEAST:
        arrows.append(text(0.5, _MIDDLE - 9, "◂", "start", "strong"))
    return arrows


def _bounds(figure: Interval) -> tuple[float, float, float]:
    low = figure.value if figure.low is None else figure.low
    high = figure.value if figure.high is None else figure.high
    return low, figure.value, high


def _share(strip: Strip, value: float) -> float:
    """Return a figure in units of the margin; without a margin to speak of, of itself."""
    unit = strip.margin - strip.origin
    return (value - strip.origin) / unit if unit > 0 else value - strip.origin


def _place(strip: Strip, value: float) -> float:
    return _SHARE(min(max(_share(strip, value), _LEAST + 0.02), _MOST - 0.02))
