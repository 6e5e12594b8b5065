"""The recipes that were tried: bytes against divergence, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from fewbit.records.figures import number, size
from fewbit.records.interval import Interval
from fewbit.records.outcome import Outcome
from fewbit.report.svg import (
    NOTHING,
    LogScale,
    Scale,
    drawing,
    even_ticks,
    line,
    mark,
    path,
    text,
)

_HEIGHT, _TOP, _FLOOR = 310, 36, 272


class Tried(NamedTuple):
    """A recipe's place on the chart."""

    name: str
    bytes: int
    divergence: Interval
    """Mean KL(source || candidate), nats."""
    outcome: Outcome


def unbeaten(tried: Sequence[Tried]) -> list[Tried]:
    """Return those to which no other is equal in bytes and divergence and better in one."""
    found = [one for one in tried if not any(_beats(other, one) for other in tried)]
    return sorted(found, key=lambda one: (one.bytes, one.divergence.value))


def frontier_chart(tried: Sequence[Tried], source_bytes: int, margin: float | None) -> Markup:
    """Draw recipes as bytes against mean divergence with its interval, and the margin.

    Args:
        tried: at least one to draw anything; marks carry their number in this order.
        source_bytes: of the source's weights.
        margin: nats; None where none was declared.
    """
    if not tried:
        return NOTHING
    x, y = _across(tried, source_bytes), _down(tried, margin)
    parts = [line(0, _FLOOR, 100, _FLOOR, "axis")]
    for tick in y.ticks():
        parts += [line(0, y(tick), 100, y(tick), "grid"), _left(y(tick), f"{tick:g}")]
    if margin is not None:
        parts += [line(0, y(margin), 100, y(margin), "margin")]
        parts += [text(100, y(margin) - 5, f"margin {margin:g}", "end", "strong")]
    least, most = min(t.bytes for t in tried), max(source_bytes, *(t.bytes for t in tried))
    for amount in even_ticks(least, most, 3):
        parts.append(text(x(amount), _FLOOR + 17, size(int(amount))))
    parts += [line(x(source_bytes), _TOP, x(source_bytes), _FLOOR, "source")]
    parts += [text(x(source_bytes) - 1, _TOP + 10, "source", "end")]
    parts += [text(0, 12, "mean KL, nats", "start"), text(100, _HEIGHT - 4, "bytes", "end")]
    steps = [(x(one.bytes), y(one.divergence.value)) for one in unbeaten(tried)]
    if len(steps) > 1:
        parts.append(path(steps, _HEIGHT, "frontier"))
    for place, one in enumerate(tried, 1):
        parts += _marked(place, one, x, y)
    return drawing(_HEIGHT, "Recipes tried: size against divergence", parts)


def _across(tried: Sequence[Tried], source_bytes: int) -> Scale:
    least, most = min(t.bytes for t in tried), max(source_bytes, *(t.bytes for t in tried))
    return Scale(least, most, 12, 97)


def _down(tried: Sequence[Tried], margin: float | None) -> LogScale:
    ends = [end for t in tried for end in _ends(t.divergence)]
    ends += [] if margin is None else [margin]
    lowest = max(min(ends), 1e-5)
    return LogScale(lowest / 1.6, max(*ends, lowest) * 1.6, _FLOOR, _TOP)


def _ends(figure: Interval) -> tuple[float, float]:
    low = figure.value if figure.low is None else figure.low
    high = figure.value if figure.high is None else figure.high
    return low, high


def _left(y: float, said: str) -> Markup:
    return text(0, y - 3, said, "start")


def _marked(place: int, one: Tried, x: Scale, y: LogScale) -> list[Markup]:
    """Draw one recipe as its number in the table: names would cover each other."""
    across, (low, high) = x(one.bytes), _ends(one.divergence)
    hint = f"{one.name}: {one.outcome.value}, {number(one.divergence.value)} nats"
    return [
        line(across, y(low), across, y(high), "whisker"),
        mark(across, y(one.divergence.value), f"{one.outcome.value}", hint, str(place)),
    ]


def _beats(other: Tried, one: Tried) -> bool:
    no_worse = other.bytes <= one.bytes and other.divergence.value <= one.divergence.value
    better = other.bytes < one.bytes or other.divergence.value < one.divergence.value
    return no_worse and better
