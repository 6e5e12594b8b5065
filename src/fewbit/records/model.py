"""What a model is made of: size, formats, tokenizer, kernels, and what to beware of."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.kernels import KernelRecord
from fewbit.records.tokens import TokenizerRecord


class FormatShare(Record, frozen=True, kw_only=True):
    """The weights of a model that are stored in one number format."""

    format: str
    tensors: int
    weights: int
    bytes: int


class ModelFacts(Record, frozen=True, kw_only=True):
    """Where a model lies, what it is and what it weighs."""

    name: str
    path: str
    architecture: str
    parameters: int
    bytes: int
    """Bytes of the weights as stored, without configuration and tokenizer."""
    bits_per_weight: float
    formats: tuple[FormatShare, ...]
    quantized: bool
    """True when a matrix is stored in fewer than 16 bits per weight."""


class Hazard(Record, frozen=True, kw_only=True):
    """Something that changes what figures mean or how the model must be used."""

    name: str
    """A short name such as `already_quantized`."""
    meaning: str
    """One sentence: what it is and what follows."""


class Inspection(Record, frozen=True, kw_only=True):
    """All that `fewbit inspect` shows."""

    facts: ModelFacts
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    """Rows of the embedding."""
    context: int
    tied: bool
    """One table serves as embedding and head."""
    experts: int = 0
    """Of each layer with a mixture; 0 for a dense model."""
    experts_used: int = 0
    """Experts that a token passes through."""
    expert_width: int = 0
    mixture_layers: int = 0
    """Layers with a mixture in place of the MLP."""
    windowed_layers: int
    """Layers whose attention reaches back only so far."""
    chat_template: bool
    tokenizer: TokenizerRecord | None
    """None where the model carries none that can be used; a hazard then says why."""
    kernels: tuple[KernelRecord, ...]
    hazards: tuple[Hazard, ...]
