"""Lines of a log: one for each request that ended, and one for the engine at the end."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.generation import EngineRecord, GenerationRecord


class LogLine(Record, frozen=True, kw_only=True):
    """One line; exactly one of `generation` and `engine` is there."""

    time: str
    """When it was written, ISO 8601, UTC."""
    model: str
    """The target's path."""
    generation: GenerationRecord | None = None
    """A request that ended: its tokens, times, acceptance by position, changes of length."""
    engine: EngineRecord | None = None
    """Everything that the engine did, speculation in total."""
