"""A figure with its confidence interval."""

from __future__ import annotations

from fewbit.records.base import Record


class Interval(Record, frozen=True, kw_only=True):
    """A figure and its confidence interval; the bounds are None where none can be given."""

    value: float
    low: float | None = None
    high: float | None = None
    level: float = 0.95
