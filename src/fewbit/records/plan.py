"""What a quantization will do and take, from headers alone."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.recipe import Recipe


class PlannedEntry(Record, frozen=True, kw_only=True):
    """What becomes of a tensor."""

    source: str
    slot: str
    shape: tuple[int, ...]
    source_format: str
    format: str
    status: str
    bytes: int
    """In the artefact."""
    reason: str = ""


class Amount(Record, frozen=True, kw_only=True):
    """Bytes of something, in words."""

    what: str
    bytes: int


class Duration(Record, frozen=True, kw_only=True):
    """About how long something takes."""

    what: str
    seconds: float


class PlanReport(Record, frozen=True, kw_only=True):
    """A plan with what it needs."""

    source: str
    recipe: Recipe
    container: str
    tensors: tuple[PlannedEntry, ...]
    source_bytes: int
    promised_bytes: int
    """Of all tensors of the artefact; checked when it is written."""
    bits_per_weight: float
    memory: tuple[Amount, ...]
    """What lies in memory at the peak, estimated."""
    available_memory: int | None
    """None where the system does not say."""
    disk: tuple[Amount, ...]
    free_disk: int | None
    """Where the output goes; None where no output is named."""
    time: tuple[Duration, ...]
    """Estimated from the work and from what a core of this machine did in its CPU time."""
    notes: tuple[str, ...] = ()
    """Fallbacks and tensors that the artefact will not have."""
    target: str | None = None
    refusals: tuple[str, ...] = ()
    """What the target runtime would refuse."""

    @property
    def peak_bytes(self) -> int:
        """Memory at the peak."""
        return sum(amount.bytes for amount in self.memory)

    @property
    def disk_bytes(self) -> int:
        """Disk at the peak."""
        return sum(amount.bytes for amount in self.disk)

    @property
    def seconds(self) -> float:
        """All of the time."""
        return sum(part.seconds for part in self.time)
