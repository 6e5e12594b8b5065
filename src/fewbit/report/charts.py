"""Charts of whole models: bytes by format, the error of layers, positions by divergence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fewbit.records.figures import number, size
from fewbit.records.language import HistogramBin
from fewbit.records.model import ModelFacts
from fewbit.records.scan import TensorError
from fewbit.report.svg import NOTHING, Box, beside, drawing, heat, line, rect, text

_ROLES = ("q", "k", "v", "o", "gate", "up", "down")
_SHARES = 6
"""How many patterns there are to tell formats apart; further ones begin again."""


def size_chart(models: Sequence[tuple[str, ModelFacts]]) -> Markup:
    """Draw models as bars of bytes, one segment a number format, longest first."""
    most = max(model.bytes for _, model in models) or 1
    patterns = _patterns([model for _, model in models])
    parts: list[Markup] = []
    for row, (name, model) in enumerate(models):
        y, x = row * 62, 0.0
        parts.append(text(0, y + 14, name, "start", "strong"))
        figure = f"{size(model.bytes)}, {model.bits_per_weight:.2f} bits per weight"
        parts.append(text(100, y + 14, figure, "end"))
        for share in sorted(model.formats, key=lambda s: (-s.bytes, s.format)):
            wide = 100 * share.bytes / most
            hint = f"{share.format}: {share.tensors} tensors, {size(share.bytes)}"
            parts.append(rect(Box(x, y + 22, wide, 24), patterns[share.format], hint))
            x += wide
    chart = drawing(62 * len(models) - 12, "Bytes by number format", parts)
    return chart + _legend(patterns)


class Bar(NamedTuple):
    """An amount with its name."""

    name: str
    value: float
    said: str
    """The amount in words."""
    arm: int
    """0 for the source, 1 for what is beside it; each has its pattern."""


def bar_chart(bars: Sequence[Bar]) -> Markup:
    """Draw amounts as bars from zero, names and amounts above each."""
    most = max((bar.value for bar in bars), default=0.0) or 1.0
    parts: list[Markup] = []
    for row, bar in enumerate(bars):
        y = row * 36
        parts += [text(0, y + 12, bar.name, "start"), text(100, y + 12, bar.said, "end", "strong")]
        kind = "share3" if bar.arm == 0 else f"share{bar.arm - 1}"
        parts.append(rect(Box(0, y + 17, 100 * bar.value / most, 12), kind, bar.said))
    return drawing(36 * len(bars), "amounts as bars", parts)


def histogram_chart(bins: Sequence[HistogramBin]) -> Markup:
    """Draw the positions by divergence; the bins' edges are as given, evenly spaced on paper."""
    height, floor = 190, 160
    most = max((b.count for b in bins), default=0) or 1
    total = sum(b.count for b in bins) or 1
    step = 100 / max(1, len(bins))
    parts = [line(0, floor, 100, floor, "axis")]
    for index, entry in enumerate(bins):
        x, tall = index * step, (floor - 24) * entry.count / most
        limit = "or more" if entry.high is None else f"to {entry.high:g}"
        hint = f"{entry.low:g} {limit} nats: {entry.count} positions ({entry.count / total:.1%})"
        bar = Box(x + 0.06 * step, floor - tall, 0.88 * step, tall)
        parts.append(rect(bar, "bar", hint))
        if _is_tick(entry.low):
            name = "0" if entry.low == 0 else f"{entry.low:g}"
            parts.append(text(x, floor + 16, name, "middle" if index else "start"))
    parts.append(text(100, floor + 29, "nats", "end"))
    return drawing(height, "Positions by KL divergence", parts)


def layer_chart(tensors: Iterable[TensorError], models: Sequence[ModelFacts] = ()) -> Markup:
    """Draw each layer's matrices as a heat map of their relative error, formats under each.

    Args:
        tensors: what is outside the layers is left out.
        models: as `size_chart` drew them, so that a format has one pattern in both.
    """
    cells = {(t.layer, _role(t)): t for t in tensors if t.layer >= 0 and _role(t) in _ROLES}
    if not cells:
        return NOTHING
    layers = 1 + max(layer for layer, _ in cells)
    worst = max(t.relative_error for t in cells.values()) or 1.0
    formats = {t.candidate_format for t in cells.values()}
    patterns = _patterns(models, sorted(formats))
    tall, wide = 26, 100 / layers
    parts: list[Markup] = []
    for (layer, role), tensor in cells.items():
        x, y = layer * wide, _ROLES.index(role) * tall
        change = f"{tensor.source_format} to {tensor.candidate_format}"
        hint = f"{tensor.slot}: {number(tensor.relative_error)} ({change})"
        parts.append(heat(Box(x, y, 0.94 * wide, 19), tensor.relative_error / worst, hint))
        kind = patterns[tensor.candidate_format]
        parts.append(rect(Box(x, y + 20, 0.94 * wide, 4), kind, hint))
    bottom = tall * len(_ROLES)
    parts += _layer_numbers(layers, wide, bottom + 14)
    label = "Relative error of each layer's matrices"
    roles = [text(0, row * tall + 15, role, "start") for row, role in enumerate(_ROLES)]
    names = drawing(bottom + 20, "matrices", [*roles, text(0, bottom + 14, "layer", "start")])
    drawn = beside(names, drawing(bottom + 20, label, parts))
    return (
        drawn
        + _heat_legend(worst)
        + _legend({name: kind for name, kind in patterns.items() if name in formats})
    )


def _layer_numbers(layers: int, wide: float, y: float) -> list[Markup]:
    every = max(1, math.ceil(layers / 8))
    return [text((i + 0.47) * wide, y, str(i)) for i in range(0, layers, every)]


def _heat_legend(worst: float) -> Markup:
    steps = [heat(Box(10 * i, 0, 9.4, 10), (i + 0.5) / 10) for i in range(10)]
    scale = drawing(10, "from no error to the largest", steps)
    legend = Markup('<p class="legend"><span>0</span><i class="ramp">{}</i><span>{}</span></p>')
    return legend.format(scale, f"{number(worst)} relative error")


def _patterns(models: Sequence[ModelFacts], more: Sequence[str] = ()) -> dict[str, str]:
    """Return the class of each format's pattern, the last model's largest formats first."""
    ordered = [
        share.format
        for model in reversed(models)
        for share in sorted(model.formats, key=lambda s: (-s.bytes, s.format))
    ]
    names = dict.fromkeys([*ordered, *more])
    return {name: f"share{i % _SHARES}" for i, name in enumerate(names)}


def _legend(patterns: Mapping[str, str]) -> Markup:
    entry = Markup('<span><i class="key">{}</i>{}</span>')
    keys = [
        entry.format(drawing(12, name, [rect(Box(0, 0, 100, 12), kind)]), name)
        for name, kind in patterns.items()
    ]
    return Markup('<p class="legend">{}</p>').format(NOTHING.join(keys))


def _is_tick(edge: float) -> bool:
    """Whether an edge has its name written under it: 0, and every second power of ten."""
    power = math.log10(edge) if edge else 1.0
    return edge == 0 or (abs(power - round(power)) < 1e-9 and round(power) % 2 == 1)


def _role(tensor: TensorError) -> str:
    parts = tensor.slot.split(".")
    return parts[2] if len(parts) > 3 and parts[-1] == "weight" else ""
