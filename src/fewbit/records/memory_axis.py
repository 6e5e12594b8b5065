"""What the axis of memory has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class MemoryDetails(Record, frozen=True, kw_only=True, tag="memory"):
    """What a reader may look up of memory."""
