"""What a look at an artefact's stored bytes found, before anything was run."""

from __future__ import annotations

from fewbit.records.base import Record


class TensorError(Record, frozen=True, kw_only=True):
    """How far a slot's decoded weights lie from the source's."""

    slot: str
    layer: int
    """-1 outside the layers."""
    expert: int | None = None
    """Its number within the layer; None for what belongs to no expert."""
    source_format: str
    candidate_format: str
    weights: int
    relative_error: float
    """Frobenius norm of the difference over that of the source; of a tensor whose change the
    manifest declares, what the manifest says, since its source was transformed first."""
    declared: str = ""
    """The declared change; empty where the source's own weights were compared."""


class Defect(Record, frozen=True, kw_only=True):
    """Places of one tensor that no sound quantization leaves behind."""

    kind: str
    """The finding that it belongs to, as `scan/scales`."""
    slot: str
    layer: int
    expert: int | None = None
    count: int
    of: int
    """How many such places (values, scales, groups, rows) the tensor has."""
    first: str
    """The first of them, as `row 17, columns 32 to 63`."""


class ErrorOutlier(Record, frozen=True, kw_only=True):
    """A matrix whose error stands out among those in the same format."""

    slot: str
    format: str
    relative_error: float
    times_median: float
    """Its error over the median of all matrices in that format."""


class ScanDetails(Record, frozen=True, kw_only=True, tag="scan"):
    """All that was looked at."""

    tensors: tuple[TensorError, ...]
    """Every matrix, in the Program's order; those with values that are not finite are left out."""
    outliers: tuple[ErrorOutlier, ...] = ()
    """The largest first."""
    defects: tuple[Defect, ...] = ()
    uncalibrated: tuple[str, ...] = ()
    """Slots of experts that no calibration token reached."""
    opaque: tuple[str, ...] = ()
    """Formats whose codes and scales were not looked at apart: only what they decode to was."""
