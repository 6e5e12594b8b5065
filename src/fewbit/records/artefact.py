"""What the `quantization_config` of an artefact's `config.json` says."""

from __future__ import annotations

from typing import Literal

from fewbit.records.base import Record
from fewbit.records.kv import KvScales


class ArtefactConfig(Record, frozen=True, kw_only=True):
    """Marks a folder as an artefact, and holds what its tensors cannot say.

    A version that does not know a field refuses the artefact, because it would run another model.
    """

    quant_method: Literal["fewbit"] = "fewbit"
    format_version: int
    mlp_rotation: int = 0
    """Elements of each block of a down projection's input that a Hadamard matrix rotates; 0 where
    none does."""
    kv_scales: KvScales | None = None
    """Static scales of keys and values."""
