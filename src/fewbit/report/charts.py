"""Charts as inline SVG, drawn by hand: no script, no font, nothing fetched.

Colours are CSS variables of the page, so one drawing serves light and dark. All texts pass through
`Markup.format`, which escapes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fewbit.records.evaluation import Attempt, Axis, CompressReport
from fewbit.records.figures import number, size
from fewbit.records.language import HistogramBin
from fewbit.records.model import ModelFacts
from fewbit.records.scan import TensorError

WIDTH = 760
_ROLES = ("q", "k", "v", "o", "gate", "up", "down")
_JOIN = Markup("")


def interval_chart(axis: Axis) -> Markup:
    """Draw a figure's interval against its margin; empty for an axis without a figure."""
    figure, margin = axis.figure, axis.margin
    if figure is None or margin is None:
        return _JOIN
    origin = 1.0 if margin >= 1.0 else 0.0
    least = min(origin, figure.low if figure.low is not None else figure.value)
    most = max(margin + (margin - origin), (figure.high or figure.value) * 1.02)
    scale = _Scale(least, most, 12, WIDTH - 12)
    parts = [
        _rect(_Box(scale(least), 22, scale(margin) - scale(least), 12), "allowed"),
        _rect(_Box(scale(margin), 22, scale(most) - scale(margin), 12), "beyond"),
        _line(scale(margin), 14, scale(margin), 42, "margin"),
        _text(scale(margin), 10, f"margin {margin:g}", "middle"),
        _text(scale(least), 50, f"{least:g}", "start"),
        _text(scale(most), 50, number(most), "end"),
    ]
    if figure.low is not None and figure.high is not None:
        left, right = scale(figure.low), scale(figure.high)
        parts.append(_rect(_Box(left, 25, max(right - left, 2), 6), "interval"))
    parts.append(_circle(scale(figure.value), 28, 5, "figure", number(figure.value, margin)))
    label = f"{axis.name}: {axis.reason}"
    return _svg(56, label, parts)


def histogram_chart(bins: Sequence[HistogramBin]) -> Markup:
    """Draw the positions by divergence; the bins' edges are as given, evenly spaced on paper."""
    height, floor = 190, 160
    most = max((b.count for b in bins), default=0) or 1
    total = sum(b.count for b in bins) or 1
    step = (WIDTH - 24) / max(1, len(bins))
    parts = [_line(12, floor, WIDTH - 12, floor, "axis")]
    for index, entry in enumerate(bins):
        x, tall = 12 + index * step, (floor - 24) * entry.count / most
        limit = "or more" if entry.high is None else f"to {entry.high:g}"
        hint = f"{entry.low:g} {limit} nats: {entry.count} positions ({entry.count / total:.1%})"
        parts.append(_rect(_Box(x + 1, floor - tall, step - 2, tall), "bar", hint))
        if math.log10(entry.low or 1).is_integer():
            name = "0" if entry.low == 0 else f"{entry.low:g}"
            parts.append(_text(x, floor + 16, name, "middle" if index else "start"))
    parts.append(_text(WIDTH - 12, floor + 28, "nats", "end"))
    return _svg(height, "Positions by KL divergence", parts)


def layer_chart(tensors: Iterable[TensorError]) -> Markup:
    """Draw each layer's matrices as a heat map of their relative error."""
    cells = {(t.layer, _role(t)): t for t in tensors if t.layer >= 0 and _role(t) in _ROLES}
    if not cells:
        return _JOIN
    layers = 1 + max(layer for layer, _ in cells)
    worst = max(t.relative_error for t in cells.values()) or 1.0
    left, top, tall = 52, 8, 24
    wide = (WIDTH - left - 4) / layers
    parts = [_text(left - 8, top + row * tall + 16, role, "end") for row, role in enumerate(_ROLES)]
    for (layer, role), tensor in cells.items():
        x, y = left + layer * wide, top + _ROLES.index(role) * tall
        change = f"{tensor.source_format} to {tensor.candidate_format}"
        hint = f"{tensor.slot}: {number(tensor.relative_error)} ({change})"
        parts.append(_heat(_Box(x, y, wide - 1, tall - 1), tensor.relative_error / worst, hint))
    bottom = top + len(_ROLES) * tall + 16
    every = max(1, math.ceil(layers / 16))
    for layer in range(0, layers, every):
        parts.append(_text(left + (layer + 0.5) * wide, bottom, str(layer), "middle"))
    parts.append(_text(left - 8, bottom, "layer", "end"))
    parts += _heat_legend(left, bottom + 14, worst)
    return _svg(bottom + 36, "Relative error of each layer's matrices", parts)


def size_chart(models: Sequence[tuple[str, ModelFacts]]) -> Markup:
    """Draw models as bars of bytes, one segment a number format, longest first."""
    most = max(model.bytes for _, model in models) or 1
    parts: list[Markup] = []
    for row, (name, model) in enumerate(models):
        y, x = row * 62, 0.0
        parts.append(_text(0, y + 14, name, "start", "strong"))
        figure = f"{size(model.bytes)}, {model.bits_per_weight:.2f} bits per weight"
        parts.append(_text(WIDTH, y + 14, figure, "end"))
        shares = sorted(model.formats, key=lambda s: (-s.bytes, s.format))
        for index, share in enumerate(shares):
            wide = WIDTH * share.bytes / most
            hint = f"{share.format}: {share.tensors} tensors, {size(share.bytes)}"
            parts.append(_rect(_Box(x, y + 22, max(wide - 1, 0.5), 24), f"share{index % 4}", hint))
            if wide > 9 * len(share.format):
                parts.append(_text(x + 8, y + 38, share.format, "start", "inside"))
            x += wide
    return _svg(62 * len(models) - 12, "Bytes by number format", parts)


def frontier_chart(report: CompressReport) -> Markup:
    """Draw the attempts: bytes against mean divergence with its interval, and the margin."""
    attempts = report.attempts
    if not attempts:
        return _JOIN
    height, floor, left = 280, 240, 64
    margin = attempts[0].evaluation.gate.mean_divergence
    highs = [
        a.evaluation.divergence.mean.high or a.evaluation.divergence.mean.value for a in attempts
    ]
    lows = [
        a.evaluation.divergence.mean.low or a.evaluation.divergence.mean.value for a in attempts
    ]
    y = _LogScale(min(*lows, margin, 1e-3) / 1.5, max(*highs, margin) * 1.5, floor, 16)
    most = max(report.source.bytes, *(a.evaluation.candidate.bytes for a in attempts))
    least = 0.9 * min(a.evaluation.candidate.bytes for a in attempts)
    x = _Scale(least, most + 0.04 * (most - least), left, WIDTH - 12)
    parts = [
        _line(left, floor, WIDTH - 12, floor, "axis"),
        _line(left, y(margin), WIDTH - 12, y(margin), "margin"),
        _text(WIDTH - 12, y(margin) - 5, f"margin {margin:g} nats", "end"),
        _line(x(report.source.bytes), 16, x(report.source.bytes), floor, "source"),
        _text(x(report.source.bytes) - 5, 28, "source", "end"),
        _text(WIDTH - 12, floor + 34, "bytes of weights", "end"),
        _text(left + 6, 12, "mean KL, nats", "start"),
    ]
    for tick in y.decades():
        parts.append(_text(left - 8, y(tick) + 4, f"{tick:g}", "end"))
    for i in range(5):
        tick = least + (most - least) * i / 4
        parts.append(_text(x(tick), floor + 17, size(int(tick)), "middle"))
    for place, attempt in enumerate(attempts, 1):
        parts += _attempt_mark(place, attempt, x, y)
    return _svg(height, "Attempts: size against divergence", parts)


class _Box(NamedTuple):
    """A rectangle on paper."""

    x: float
    y: float
    wide: float
    tall: float


class _Scale:
    """A linear map from figures to paper."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._span = low, (high - low) or 1.0
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        return self._start + self._length * (value - self._low) / self._span


class _LogScale:
    """A logarithmic map; values under its low end are drawn there."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = low, high
        self._scale = _Scale(math.log(low), math.log(high), start, end)

    def __call__(self, value: float) -> float:
        return self._scale(math.log(max(value, self._low)))

    def decades(self) -> list[float]:
        first, last = math.ceil(math.log10(self._low)), math.floor(math.log10(self._high))
        return [10.0**power for power in range(first, last + 1)]


def _attempt_mark(place: int, attempt: Attempt, x: _Scale, y: _LogScale) -> list[Markup]:
    """Draw one attempt as its number in the table: names would cover each other."""
    evaluation = attempt.evaluation
    mean, across = evaluation.divergence.mean, x(evaluation.candidate.bytes)
    kind = f"mark-{evaluation.verdict.outcome.value.lower()}"
    hint = f"{attempt.recipe}: {evaluation.verdict.outcome.value}, {number(mean.value)} nats"
    parts = []
    if mean.low is not None and mean.high is not None:
        parts.append(_line(across, y(mean.low), across, y(mean.high), "whisker"))
    parts.append(_circle(across, y(mean.value), 9, kind, hint))
    parts.append(_text(across, y(mean.value) + 4, str(place), "middle", "dot"))
    return parts


def _heat_legend(x: float, y: float, worst: float) -> list[Markup]:
    steps = [_heat(_Box(x + 18 * i, y, 17, 10), (i + 0.5) / 10) for i in range(10)]
    labels = [
        _text(x - 8, y + 10, "0", "end"),
        _text(x + 188, y + 10, f"{number(worst)} relative error", "start"),
    ]
    return steps + labels


def _role(tensor: TensorError) -> str:
    parts = tensor.slot.split(".")
    return parts[2] if len(parts) > 3 and parts[-1] == "weight" else ""


def _svg(height: float, label: str, parts: Iterable[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">')
    return head.format(WIDTH, height, label) + _JOIN.join(parts) + Markup("</svg>")


def _rect(box: _Box, kind: str, hint: str = "") -> Markup:
    shape = Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" class="{}">')
    return shape.format(*box, kind) + _close("rect", hint)


def _heat(box: _Box, share: float, hint: str = "") -> Markup:
    shape = Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="heat" '
        'fill-opacity="{:.2f}">'
    )
    return shape.format(*box, 0.06 + 0.94 * share) + _close("rect", hint)


def _circle(x: float, y: float, radius: float, kind: str, hint: str) -> Markup:
    shape = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" class="{}">')
    return shape.format(x, y, radius, kind) + _close("circle", hint)


def _close(tag: str, hint: str) -> Markup:
    title = Markup("<title>{}</title>").format(hint) if hint else _JOIN
    return title + Markup("</{}>").format(tag)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    shape = Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>')
    return shape.format(x1, y1, x2, y2, kind)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> Markup:
    shape = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>')
    return shape.format(x, y, anchor, kind, text)
