"""What one rendering of a chat template may cost.

A template is a program from a stranger. It is run with a budget of steps (loop rounds and calls),
of characters processed (everything made, copied, scanned or compared, so that live memory is
bounded too) and of time; and no single value may be larger than the text it may write.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, ValuesView
from dataclasses import dataclass

from jinja2.utils import Namespace

from fewbit.errors import TemplateError

MAX_DEPTH = 64
"""Nesting of values. Hashing nested tuples recurses in C without a check: 100,000 would crash."""

NODE_SIZE = 8
"""Characters that an element counts as where the size of one value is bounded: walking it costs."""

MAX_BITS = 4096
"""Bits of an integer; more cannot come from counting messages."""

_CONTAINERS = (dict, list, tuple, Namespace, KeysView, ValuesView, ItemsView)


@dataclass(frozen=True)
class RenderLimits:
    """Bounds of one rendering."""

    steps: int
    processed: int
    """Characters (list elements count as one each)."""
    written: int
    """Characters of the result, and of any value on the way."""
    seconds: float


def limits_for(weight: int) -> RenderLimits:
    """Return the bounds for a conversation of `weight` characters.

    Templates copy a conversation once, with constant text around each message, and look at each
    message a few times; 8 and 64 times its size are far above what any model's own template needs.
    The time is a last resort for a step that costs more than expected.
    """
    return RenderLimits(
        steps=200_000 + 16 * weight,
        processed=8_000_000 + 64 * weight,
        written=1_000_000 + 8 * weight,
        seconds=10.0,
    )


class Budget:
    """What is left for one rendering; every method raises TemplateError when a bound is passed."""

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self._steps = 0
        self._processed = 0
        self._deadline = time.monotonic() + limits.seconds

    def step(self, count: int = 1) -> None:
        """Count rounds of loops, or calls."""
        self._steps += count
        if self._steps > self.limits.steps:
            raise TemplateError(
                f"The chat template ran for more than {self.limits.steps:,} steps; "
                "it loops, or the conversation is too long for it."
            )
        if self._steps % 256 < count and time.monotonic() > self._deadline:
            raise TemplateError(
                f"The chat template ran for more than {self.limits.seconds:g} seconds."
            )

    def process(self, characters: int) -> None:
        """Count characters made, copied or looked at, before that is done."""
        self.check_size(characters)
        self._processed += characters
        if self._processed > self.limits.processed:
            raise TemplateError(
                f"The chat template handled more than {self.limits.processed:,} characters."
            )

    def check_size(self, characters: int) -> None:
        """Refuse a value that would be larger than the whole text may be."""
        if characters > self.limits.written:
            raise TemplateError(
                f"The chat template makes more than {self.limits.written:,} characters."
            )

    def weigh(self, value: object) -> int:
        """Count a value with all that is inside it, as its text would, and process that.

        A value that holds another twice counts it twice: its text, its comparison and its hash do.
        """
        weight = self._weight(value)
        self.process(weight)
        return weight

    def _weight(self, value: object) -> int:
        if isinstance(value, str):
            return len(value) + 1
        if not isinstance(value, _CONTAINERS):
            return _scalar_weight(value)
        weight, nodes = 0, 0
        level: list[object] = [value]
        for _ in range(MAX_DEPTH):
            inner: list[object] = []
            for item in level:
                if isinstance(item, _CONTAINERS):
                    inner.extend(_children(item))
                    self.check_size(weight + NODE_SIZE * (nodes + len(inner)))
                else:
                    weight += len(item) + 1 if isinstance(item, str) else _scalar_weight(item)
            nodes += len(level)
            self.check_size(weight + NODE_SIZE * nodes)
            if not inner:
                self.step(1 + nodes // 16)
                return weight + nodes
            level = inner
        raise TemplateError(f"The chat template nests values more than {MAX_DEPTH} deep.")


def _scalar_weight(value: object) -> int:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise TemplateError(f"The chat template makes integers of more than {MAX_BITS} bits.")
        return value.bit_length() // 3 + 1
    if isinstance(value, range):
        return 8 * len(value) + 8
    if isinstance(value, (bytes, bytearray)):
        return 4 * len(value) + 4
    return 24


def _children(value: object) -> list[object]:
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, ItemsView):
        return [part for pair in value for part in pair]
    return list(value)  # type: ignore[call-overload,no-any-return]
