"""What an export keeps, what it has to change, and what became of each tensor."""

from __future__ import annotations

from fewbit.records.base import Record


class ExportedTensor(Record, frozen=True, kw_only=True):
    """One tensor of the model, before and after."""

    slot: str
    source: str
    """Its name in the source."""
    stored: str
    """Its name in the export; where that stores several arrays for it, what they begin with."""
    shape: tuple[int, ...]
    source_format: str
    format: str
    bytes: int
    """In the export: codes, scales and zero points."""
    reason: str = ""
    """Why the export does not hold the source's format; empty where every value stays."""
    expected_error: float = 0.0
    """||W - W'|| / ||W|| of normal weights, W as the source's format and W' as the export's has
    them; from the formats alone."""

    @property
    def exact(self) -> bool:
        """Whether every value stays as it is in a format of its kind."""
        return not self.reason


class AbsentTensor(Record, frozen=True, kw_only=True):
    """A tensor of the source that the export does not have."""

    source: str
    reason: str


class UnusedTensor(Record, frozen=True, kw_only=True):
    """A tensor that the Program does not use, in the export as it is in the source."""

    source: str
    """Its name in both."""
    shape: tuple[int, ...]
    format: str
    bytes: int


class ExportPlan(Record, frozen=True, kw_only=True):
    """What an export would be, from headers alone."""

    target: str
    source: str
    """The source's path."""
    tensors: tuple[ExportedTensor, ...]
    absent: tuple[AbsentTensor, ...] = ()
    unused: tuple[UnusedTensor, ...] = ()
    source_bytes: int
    """Of all tensors of the source."""
    bytes: int
    """Of all tensors of the export."""
    notes: tuple[str, ...] = ()
    """Sentences: what the export says otherwise than the source, without any weight changing."""
    refusals: tuple[str, ...] = ()
    """Sentences: what runtimes of the target would refuse."""

    @property
    def changed(self) -> tuple[ExportedTensor, ...]:
        """The tensors whose format the target does not hold."""
        return tuple(tensor for tensor in self.tensors if not tensor.exact)


class ExportRecord(Record, frozen=True, kw_only=True):
    """The export of an artefact, in its manifest."""

    plan: ExportPlan
    errors: dict[str, float]
    """By slot, for each tensor that changed: ||W - W'|| / ||W||, W the source's values."""
