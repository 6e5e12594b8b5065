"""What the axis of long context has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class LongContextDetails(Record, frozen=True, kw_only=True, tag="long-context"):
    """What a reader may look up of long context."""
