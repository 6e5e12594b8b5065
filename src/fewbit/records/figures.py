"""Figures in words: precise enough to show on which side of a margin they lie."""

from __future__ import annotations

import math

from fewbit.records.interval import Interval

_LARGEST_LOGARITHM = 709.0
"""Of what a float can hold; JSON has no infinity."""


def describe(figure: Interval, margin: float | None = None) -> str:
    """Return a figure with its bounds, for instance `0.0312 [0.0271, 0.0366]`.

    Digits are added until no rounded number has crossed `margin`.
    """
    value = number(figure.value, margin)
    if figure.low is None or figure.high is None:
        return value
    return f"{value} [{number(figure.low, margin)}, {number(figure.high, margin)}]"


def number(value: float, margin: float | None = None) -> str:
    """Return a number with four significant digits, or as many as keep it on its side."""
    for digits in range(4, 17):
        text = f"{value:.{digits}g}"
        if margin is None or _side(float(text), margin) == _side(value, margin):
            return text
    return repr(value)


def points(value: float, margin: float | None = None) -> str:
    """Return a difference of rates in percentage points, with as many digits as keep its side."""
    for digits in range(1, 15):
        text = f"{100 * value:+.{digits}f}"
        if margin is None or _side(float(text) / 100, margin) == _side(value, margin):
            return text
    return repr(100 * value)


def most_of_none(count: int) -> float:
    """Return the largest rate at which 5% of runs have none of so many independent items.

    The exact one-sided bound at 95% (Clopper and Pearson 1934); 1.5% of 200 items.
    """
    return float(1.0 - 0.05 ** (1.0 / count))


def ratio_of(logarithm: float) -> float:
    """Return exp of a logarithm, at most 8e307: a broken model's losses may go beyond a float."""
    return math.exp(min(logarithm, _LARGEST_LOGARITHM))


def size(count: int) -> str:
    """Return bytes in decimal units, for instance `98.4 MB`."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError(count)


def _side(value: float, margin: float) -> int:
    return (value > margin) - (value < margin)
