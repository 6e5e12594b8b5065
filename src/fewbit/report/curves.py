"""Figures along something, and distributions with all that lies in their tails."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from fewbit.records.drawn import Band, Curve, Distribution
from fewbit.records.figures import number
from fewbit.report.svg import (
    NOTHING,
    Box,
    LogScale,
    Scale,
    beside,
    drawing,
    even_ticks,
    line,
    rect,
    text,
)

_TOP, _FLOOR, _HEIGHT = 22, 150, 184
_BINS = 48


def curve_chart(curve: Curve) -> Markup:
    """Draw each band's mean as a step with its interval, and the noise floor dashed."""
    if not curve.bands:
        return NOTHING
    floors = [band.floor for band in curve.bands if band.floor is not None]
    most = max(*(_high(band) for band in curve.bands), *floors, 0.0)
    least = min(*(_low(band) for band in curve.bands), *floors, 0.0)
    down = Scale(least, most or 1.0, _FLOOR, _TOP + 8)
    wide = 100 / len(curve.bands)
    parts: list[Markup] = []
    names: list[Markup] = []
    for tick in even_ticks(least, most, 4):
        parts.append(line(0, down(tick), 100, down(tick), "grid"))
        names.append(text(100, down(tick) + 4, _tick(tick), "end"))
    for i, band in enumerate(curve.bands):
        parts += _band(band, Box(i * wide, 0, wide, 0), down, curve.unit)
    parts.append(line(0, _FLOOR, 100, _FLOOR, "axis"))
    parts += _edges(curve.bands, wide)
    parts.append(text(100, _HEIGHT - 2, curve.across, "end"))
    parts.append(text(0, 12, curve.unit, "start"))
    if floors:
        parts.append(text(100, 12, "dashed: noise floor", "end"))
    chart = drawing(_HEIGHT, f"{curve.title}: {curve.unit} along {curve.across}", parts)
    return beside(drawing(_HEIGHT, "scale", names), chart, "narrow")


def distribution_chart(arms: Sequence[Distribution]) -> Markup:
    """Draw two arms back to back on a logarithmic scale, one above the line and one below.

    A bar's height is the root of its count: one stall among ten thousand gaps is still seen.
    """
    shown = [arm for arm in arms[:2] if any(v > 0 for v in arm.values)]
    if not shown:
        return NOTHING
    values = [v for arm in shown for v in arm.values if v > 0]
    low, high = min(values) / 1.1, max(values) * 1.1
    x, middle, reach = LogScale(low, high, 0, 100), 84, 62
    counts = [_counted(arm.values, x) for arm in shown]
    most = max(max(found) for found in counts)
    parts: list[Markup] = []
    for tick in x.ticks():
        anchor = "start" if x(tick) < 6 else "end" if x(tick) > 94 else "middle"
        parts += [line(x(tick), _TOP, x(tick), 2 * middle - _TOP, "grid")]
        parts += [text(x(tick), 2 * middle + 4, amount(tick, shown[0].unit), anchor)]
    for side, (arm, found) in enumerate(zip(shown, counts, strict=True)):
        parts += _bars(arm, found, reach / math.sqrt(most), middle + 1 if side else 1 - middle)
        parts.append(text(100, 13 if side == 0 else 2 * middle - 12, arm.arm, "end", "strong"))
    parts.append(line(0, middle, 100, middle, "axis"))
    said = " above, ".join(arm.arm for arm in shown) + (" below" if len(shown) > 1 else "")
    return drawing(2 * middle + 10, f"{shown[0].title}: {said}", parts)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def amount(value: float, unit: str) -> str:
    """Return a value in its unit; seconds below one in milliseconds."""
    if unit in {"s", "seconds"}:
        return f"{1e3 * value:.4g} ms" if abs(value) < 1 else f"{value:.4g} s"
    return f"{number(value)} {unit}".strip()


def _band(band: Band, place: Box, down: Scale, unit: str) -> list[Markup]:
    left, wide = place.x, place.wide
    upper, lower = down(_high(band)), down(_low(band))
    found = f"{number(band.figure.value)} {unit}".strip()
    hint = f"{band.low:g} to {_end(band)}: {found}, {band.count:,} of them"
    spread = Box(left + 0.08 * wide, upper, 0.84 * wide, max(lower - upper, 1))
    parts = [rect(spread, "spread", hint)]
    y = down(band.figure.value)
    parts.append(line(left + 0.08 * wide, y, left + 0.92 * wide, y, "step"))
    if band.floor is not None:
        y = down(band.floor)
        parts.append(line(left + 0.08 * wide, y, left + 0.92 * wide, y, "floor"))
    return parts


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _edges(bands: Sequence[Band], wide: float) -> list[Markup]:
    every = max(1, math.ceil(len(bands) / 8))
    return [
        text(i * wide, _FLOOR + 16, f"{band.low:g}", "middle" if i else "start")
        for i, band in enumerate(bands)
        if i % every == 0
    ]


def _end(band: Band) -> str:
    return "the end" if band.high is None else f"{band.high:g}"


def _high(band: Band) -> float:
    return band.figure.value if band.figure.high is None else band.figure.high


def _low(band: Band) -> float:
    return band.figure.value if band.figure.low is None else band.figure.low


def _counted(values: Sequence[float], x: LogScale) -> list[int]:
    counts = [0] * _BINS
    for value in values:
        if value > 0:
            counts[min(_BINS - 1, int(x(value) / 100 * _BINS))] += 1
    return counts


def _bars(arm: Distribution, counts: Sequence[int], root: float, from_: float) -> list[Markup]:
    """Draw bars downwards from a height, or upwards from one that is given as negative."""
    parts, wide = [], 100 / _BINS
    kind = "bar above" if from_ < 0 else "bar below"
    for i, count in enumerate(counts):
        if count:
            tall = max(2.0, root * math.sqrt(count))
            y = -from_ - tall if from_ < 0 else from_
            box = Box(i * wide + 0.1, y, wide - 0.2, tall)
            parts.append(rect(box, kind, f"{arm.arm}: {count}"))
    return parts
