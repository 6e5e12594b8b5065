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
EXPERT_LIMIT = 1 << 12
EXPERTS_LIMIT = 1 << 16
VOCABULARY_LIMIT = 1 << 24
CONTEXT_LIMIT = 1 << 30
THETA_LEAST, THETA_LIMIT = 2.0, 1e12
DIVISOR_LEAST, DIVISOR_LIMIT = 1e-3, 1e6
"""Bounds far beyond any model known, so that a hostile number is refused before it is used."""


@dataclass(frozen=True, kw_only=True)
class MixtureConfig:
    """The mixtures of experts that stand in place of the MLP of some layers or all."""

    experts: int
    used: int
    """Experts that a token passes through."""
    width: int
    """Outputs of an expert's gate and up."""
    layers: tuple[bool, ...]
    """Per layer: whether it has a mixture."""
    normalized: bool
    """Whether the weights of the chosen experts sum to one."""


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
    head_rows: int | None = None
    """Rows of a head that was cut to some tokens, so that the model can only draft; None where the
    head has one for each row of the embedding."""
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
    mixture: MixtureConfig | None = None
    """`intermediate` is the width of the layers without a mixture."""
    mlp_rotation: int = 0
    """Elements of each block of a down projection's input that pass a Hadamard matrix, as an op of
    the Program; 0 where the input is multiplied as it is."""

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
        if self.mixture is not None:
            _check_mixture(self.mixture)
        if self.mlp_rotation:
            _check_rotation(self)
        if self.head_rows is not None and (self.tied or not 0 < self.head_rows <= self.vocabulary):
            raise BadFileError(
                f"The head was cut to {self.head_rows} of {self.vocabulary} tokens"
                f"{', but is the table of the embedding' if self.tied else ''}; the configuration "
                "is damaged."
            )

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    def has_mixture(self, layer: int) -> bool:
        """Return whether a layer has a mixture of experts in place of its MLP."""
        return self.mixture is not None and self.mixture.layers[layer]

    def rope_of(self, layer: int) -> RopeConfig:
        """Return the rope of one layer."""
        if self.local_rope is not None and self.windows[layer] is not None:
            return self.local_rope
        return self.rope


def _check_mixture(mixture: MixtureConfig) -> None:
    if mixture.used > mixture.experts:
        raise BadFileError(
            f"A token is to pass through {mixture.used} of {mixture.experts} experts; there must "
            "be at least as many, so the configuration is damaged."
        )
    if mixture.experts * sum(mixture.layers) > EXPERTS_LIMIT:
        raise UnsupportedError(
            f"The model has {mixture.experts} experts in each of {sum(mixture.layers)} layers; "
            f"supported are up to {EXPERTS_LIMIT} in all layers together."
        )


def _check_rotation(config: ModelConfig) -> None:
    size = config.mlp_rotation
    if size < 2 or size & (size - 1) or config.intermediate % size:
        raise BadFileError(
            f"The inputs of down projections are to be rotated in blocks of {size}, which is no "
            f"power of two that divides the width {config.intermediate}; the configuration is "
            "damaged."
        )
    if config.mixture is not None:
        raise UnsupportedError(
            "The inputs of down projections are to be rotated, but this model has mixtures of "
            "experts, whose op has no place for that; leave the rotation out."
        )
