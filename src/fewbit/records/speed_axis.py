"""What the axis of speed has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class SpeedDetails(Record, frozen=True, kw_only=True, tag="speed"):
    """What a reader may look up of speed."""
