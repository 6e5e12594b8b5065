"""How the formats of a model's matrices were chosen for a number of bytes."""

from __future__ import annotations

from typing import Literal

from fewbit.records.base import Record
from fewbit.records.recipe import Recipe


class SlotSensitivity(Record, frozen=True, kw_only=True):
    """What rounding some matrices, and nothing else, does to the model's output."""

    slots: tuple[str, ...]
    divergence: float | None
    """Mean KL(source || source with these matrices in the probe format), nats per token; None where
    it was not measured."""
    deviation: float
    """Its standard error over the probe's windows; NaN-free: 0 with one window."""
    smoothed: float
    """The divergence that was reckoned with, drawn towards that of other layers' matrices of the
    kind by as much as it is uncertain; where there is none, what these say of its depth."""


class MeasuredChoice(Record, frozen=True, kw_only=True):
    """One choice of formats for the whole model, built and measured on held-out windows."""

    what: str
    bytes: int
    """Of the artefact, as the target counts them."""
    predicted: float
    """The sum of its matrices' predicted divergences, nats per token."""
    divergence: float
    """Mean KL(source || this choice) on the held-out windows, nats per token."""
    deviation: float
    """Its standard error over the windows."""


class AllocationRecord(Record, frozen=True, kw_only=True):
    """The allocation of bytes to a model's matrices."""

    target_bytes: int
    counts: Literal["file", "tensors"]
    """What the target's bytes are: a GGUF file with its header, or all tensors."""
    bytes: int
    """Of the choice that was taken."""
    chosen: Literal["allocated", "uniform"]
    allocated: MeasuredChoice
    uniform: MeasuredChoice
    """The best choice of one format for all layers and one for each table."""
    method: str
    """How the codes of the measured choices were found."""
    probe_format: str
    probe_tokens: int
    held_out_tokens: int
    windows_sha256: str
    """Of all windows, as `CalibrationFacts.tokens_sha256`."""
    formats: dict[str, int]
    """Matrices by format."""
    sensitivities: tuple[SlotSensitivity, ...]
    notes: tuple[str, ...] = ()


class ChosenFormats(Record, frozen=True, kw_only=True):
    """The outcome of a choice, as a job keeps it for a later run."""

    recipe: Recipe
    """With a rule for every matrix."""
    allocation: AllocationRecord
