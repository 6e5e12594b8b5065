"""What the axis of safety has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class SafetyDetails(Record, frozen=True, kw_only=True, tag="safety"):
    """What a reader may look up of safety."""
