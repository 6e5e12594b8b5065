"""What the axis of kernels has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class KernelsDetails(Record, frozen=True, kw_only=True, tag="kernels"):
    """What a reader may look up of kernels."""
