"""Drawings as inline SVG, by hand: no script, no font, nothing fetched.

Across is in percent of whatever width the page has, down in pixels: a drawing fills a telephone and
a sheet of paper alike, and its letters keep their size. Colours and patterns are classes of the
page's style, so one drawing serves light and dark. All texts pass through `Markup.format`, which
escapes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

NOTHING = Markup("")
_MARKS = {
    "ACCEPT": Markup('<circle r="6"/>'),
    "REJECT": Markup('<path d="M-5.5 -5.5h11v11h-11z"/>'),
    "INCONCLUSIVE": Markup('<path d="M0 -7.5l7 7.5l-7 7.5l-7 -7.5z"/>'),
    "noise": Markup('<path d="M0 -5l5.5 9h-11z"/>'),
}


class Box(NamedTuple):
    """A rectangle: across in percent, down in pixels."""

    x: float
    y: float
    wide: float
    tall: float


class Scale:
    """A linear map from figures to paper."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._span = low, (high - low) or 1.0
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        """Return where a figure lies; one beyond the ends lies beyond."""
        return self._start + self._length * (value - self._low) / self._span


class LogScale:
    """A logarithmic map; figures under its low end are drawn there."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = low, high
        self._scale = Scale(math.log(low), math.log(high), start, end)

    def __call__(self, value: float) -> float:
        """Return where a figure lies."""
        return self._scale(math.log(max(value, self._low)))

    def ticks(self) -> list[float]:
        """Return the powers of ten on the scale; with 2 and 5 times them where they are few."""
        first, last = math.floor(math.log10(self._low)), math.ceil(math.log10(self._high))
        for steps in ((1,), (1, 3), (1, 2, 5)):
            found = [s * 10.0**p for p in range(first, last + 1) for s in steps]
            inside = [tick for tick in found if self._low <= tick <= self._high]
            if len(inside) >= 3:
                break
        return inside


def even_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round figures from low to high, at most `most` and about as many."""
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(s * power for s in (1, 2, 2.5, 5, 10, 20) if span / (s * power) <= most)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]


def drawing(height: float, label: str, parts: Iterable[Markup], kind: str = "") -> Markup:
    """Return a drawing as wide as its place and `height` pixels high."""
    head = Markup('<svg class="chart {}" height="{:.0f}" role="img" aria-label="{}">')
    return head.format(kind, height, label) + NOTHING.join(parts) + Markup("</svg>")


def beside(labels: Markup, chart: Markup, kind: str = "") -> Markup:
    """Return a drawing with its rows' names, a drawing of the same height, to its left."""
    return Markup('<div class="labelled {}">{}{}</div>').format(kind, labels, chart)


def rect(box: Box, kind: str, hint: str = "") -> Markup:
    """Return a rectangle; one without width is still a line."""
    shape = Markup('<rect x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}" class="{}">')
    return shape.format(box.x, box.y, max(box.wide, 0.0), box.tall, kind) + _close("rect", hint)


def heat(box: Box, share: float, hint: str = "") -> Markup:
    """Return a rectangle that is the darker the larger its share of 1 is."""
    shape = Markup(
        '<rect x="{:.2f}%" y="{:.1f}" width="{:.2f}%" height="{:.1f}" class="heat" '
        'fill-opacity="{:.2f}">'
    )
    return shape.format(*box, 0.06 + 0.94 * share) + _close("rect", hint)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a line."""
    shape = Markup('<line x1="{:.2f}%" y1="{:.1f}" x2="{:.2f}%" y2="{:.1f}" class="{}"/>')
    return shape.format(x1, y1, x2, y2, kind)


def text(x: float, y: float, said: str, anchor: str = "middle", kind: str = "label") -> Markup:
    """Return a text; `anchor` is `start`, `middle` or `end`."""
    shape = Markup('<text x="{:.2f}%" y="{:.1f}" text-anchor="{}" class="{}">{}</text>')
    return shape.format(x, y, anchor, kind, said)


def mark(x: float, y: float, shape: str, hint: str = "", said: str = "") -> Markup:
    """Return a mark whose shape tells an outcome as well as its colour does.

    Args:
        x: its middle, across.
        y: its middle, down.
        shape: an outcome's value, or `noise` for the noise floor.
        hint: what it stands for.
        said: at most two letters to write on it.
    """
    place = Markup('<svg x="{:.2f}%" y="{:.1f}" overflow="visible" class="mark {}"><g>').format(
        x, y, shape
    )
    title = Markup("<title>{}</title>").format(hint) if hint else NOTHING
    return (
        place + title + (_lettered(shape, said) if said else _MARKS[shape]) + Markup("</g></svg>")
    )


def _lettered(shape: str, said: str) -> Markup:
    large = Markup('<g transform="scale(1.5)">') + _MARKS[shape] + Markup("</g>")
    return large + Markup('<text y="4" text-anchor="middle" class="dot">{}</text>').format(said)


def path(points: Sequence[tuple[float, float]], height: float, kind: str) -> Markup:
    """Return a line through points; across in percent of the drawing, which is `height` high."""
    shape = Markup(
        '<svg width="100%" height="{:.1f}" viewBox="0 0 100 {:.1f}" preserveAspectRatio="none">'
        '<path d="M{}" class="{}" vector-effect="non-scaling-stroke"/></svg>'
    )
    places = " L".join(f"{x:.2f} {y:.1f}" for x, y in points)
    return shape.format(height, height, places, kind)


def icon(shape: str) -> Markup:
    """Return an outcome's mark by itself, for running text and tables."""
    head = Markup('<svg class="icon mark {}" viewBox="-8 -8 16 16" aria-hidden="true">')
    return head.format(shape) + _MARKS[shape] + Markup("</svg>")


def _close(tag: str, hint: str) -> Markup:
    title = Markup("<title>{}</title>").format(hint) if hint else NOTHING
    return title + Markup("</{}>").format(tag)
