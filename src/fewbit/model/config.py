"""The configuration of a decoder, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.errors import BadFileError, UnsupportedError
from fewbit.model.rope import RopeConfig
from fewbit.program import Activation

HIDDEN_LIMIT = 1 << 20
LAYER_LIMIT = 1 << 12
HEAD_LIMIT = 1 << 12
HEAD_DIM_LIMIT = 1 << 12
VOCABULARY_LIMIT = 1 << 24
CONTEXT_LIMIT = 1 << 30
THETA_LEAST, THETA_LIMIT = 2.0, 1e12
DIVISOR_LEAST, DIVISOR_LIMIT = 1e-3, 1e6
"""Bounds far beyond any model known, so that a hostile number is refused before it is used."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of a supported family.

    Raises:
        BadFileError: fields that contradict each other.
        UnsupportedError: well-formed, but outside what the Program can express.
    """

    family: str
    """A key of `families.FAMILIES`."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    """Rows of the embedding; the tokenizer may use fewer."""
    context: int
    """Positions the model was made for."""
    eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None
    """The rope of the layers with a window, where it differs (Gemma 3)."""
    windows: tuple[int | None, ...]
    """Per layer: how many positions attention reaches back, the own one included; None for all."""
    attention_scale: float
    attention_softcap: float | None = None
    logits_softcap: float | None = None
    activation: Activation = Activation.SILU
    qk_norm: bool = False
    sandwich_norms: bool = False
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise BadFileError(
                f"The model has {self.heads} query heads and {self.kv_heads} key heads; "
                "the first must be a multiple of the second, so the configuration is damaged."
            )
        if self.head_dim % 2:
            raise UnsupportedError(
                f"head_dim is {self.head_dim}; rotary embedding needs an even number."
            )
        if len(self.windows) != self.layers:
            raise BadFileError(
                f"The configuration describes {len(self.windows)} layers' attention but the model "
                f"has {self.layers} layers; it is damaged."
            )

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    def rope_of(self, layer: int) -> RopeConfig:
        """Return the rope of one layer."""
        if self.local_rope is not None and self.windows[layer] is not None:
            return self.local_rope
        return self.rope
