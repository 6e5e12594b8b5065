"""What a quantization was calibrated on: texts, tokens and how they were cut."""

from __future__ import annotations

from typing import Literal

from fewbit.records.base import Record

Inputs = Literal["quantized", "source"]
"""Whose layers give a layer its inputs in calibration: those already quantized, or the source's."""


class CalibrationText(Record, frozen=True, kw_only=True):
    """One text, or one kind of text of a mix."""

    name: str
    sha256: str
    """Of its windows' ids and masks, hexadecimal; as `CalibrationFacts.tokens_sha256`."""
    windows: int
    """Windows that were taken from it."""


class CalibrationFacts(Record, frozen=True, kw_only=True):
    """The tokens that were run through the model."""

    texts: tuple[CalibrationText, ...]
    windows: int
    window_tokens: int
    """Tokens of a full window, beginning-of-text included."""
    tokens: int
    """Tokens of all windows."""
    counted: int
    """Tokens whose rows count in the statistics; the others are masked."""
    tokens_sha256: str
    """Of every window's ids (int32) and mask (bool), little-endian, in order, hexadecimal."""
    seed: int | None = None
    """Of text that the model wrote itself and of the mix; None where nothing was drawn."""
    remarks: tuple[str, ...] = ()
    """Sentences about text that was cut or left out."""


class ImportanceFacts(Record, frozen=True, kw_only=True):
    """The importance matrix that was read in place of taking statistics."""

    name: str
    sha256: str
    """Of the file."""
    tensors: int
    """Matrices that it has values for."""
