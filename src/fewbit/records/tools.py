"""What the axis of tool calls and structured output has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record


class ToolsDetails(Record, frozen=True, kw_only=True, tag="tools"):
    """What a reader may look up of tool calls and structured output."""
