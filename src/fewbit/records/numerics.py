"""What the axis of numerics has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class NumericsDetails(Record, frozen=True, kw_only=True, tag="numerics"):
    """What a reader may look up of numerics."""
