"""What the axis of tasks has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class TasksDetails(Record, frozen=True, kw_only=True, tag="tasks"):
    """What a reader may look up of tasks."""
