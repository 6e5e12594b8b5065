"""The supported decoder families: their switches, and what others call their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fewbit.errors import UnsupportedError
from fewbit.program import Slot


class WindowRule(Enum):
    """Which layers of a Hugging Face model attend within a sliding window."""

    NONE = "none"
    ALL = "all"
    """Every layer, where `sliding_window` is set (Mistral)."""
    UPPER = "upper"
    """Layers from `max_window_layers` on, where `use_sliding_window` is true (Qwen)."""
    PATTERN = "pattern"
    """All but every sixth layer, or as `layer_types` says (Gemma 3)."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a family fixes, and the defaults of its Hugging Face configuration."""

    name: str
    """Also the `model_type` of a Hugging Face configuration."""
    architecture: str
    """The class named in `architectures` of a Hugging Face configuration."""
    gguf: str
    """`general.architecture` of a GGUF file."""
    gguf_permuted: bool = False
    """GGUF stores the rows of q and k for a rotation of neighbours instead of halves."""
    qk_norm: bool = False
    qkv_bias: bool = False
    """Query, key and value biases whatever the configuration says."""
    mlp_bias: bool = False
    """Whether the configuration may ask for biases in the MLP."""
    gemma: bool = False
    """Norms also after attention and MLP, scaled embeddings, soft caps, a scale of its own."""
    norm_offset: float = 0.0
    """Added to a norm's weight; GGUF files store the sum."""
    windows: WindowRule = WindowRule.NONE
    head_dim: int | None = None
    """Where the configuration names none; None means hidden / heads."""
    theta: float = 10_000.0
    local_theta: float | None = None
    """Base of the rope of windowed layers, where they have one of their own."""
    activation: str = "silu"
    tied: bool = False


_FAMILIES = (
    Family(
        name="llama",
        architecture="LlamaForCausalLM",
        gguf="llama",
        gguf_permuted=True,
        mlp_bias=True,
    ),
    Family(
        name="mistral",
        architecture="MistralForCausalLM",
        gguf="llama",
        gguf_permuted=True,
        windows=WindowRule.ALL,
    ),
    Family(
        name="qwen2",
        architecture="Qwen2ForCausalLM",
        gguf="qwen2",
        qkv_bias=True,
        windows=WindowRule.UPPER,
    ),
    Family(
        name="qwen3",
        architecture="Qwen3ForCausalLM",
        gguf="qwen3",
        qk_norm=True,
        windows=WindowRule.UPPER,
        head_dim=128,
    ),
    Family(
        name="gemma3_text",
        architecture="Gemma3ForCausalLM",
        gguf="gemma3",
        qk_norm=True,
        gemma=True,
        norm_offset=1.0,
        windows=WindowRule.PATTERN,
        head_dim=256,
        theta=1_000_000.0,
        local_theta=10_000.0,
        activation="gelu_pytorch_tanh",
        tied=True,
    ),
)

FAMILIES: Mapping[str, Family] = {family.name: family for family in _FAMILIES}

_OUTSIDE_HUGGINGFACE = {
    "embed.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_OUTSIDE_GGUF = {
    "embed.weight": "token_embd.weight",
    "final_norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
}
_LAYER_HUGGINGFACE = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_SANDWICH_HUGGINGFACE = {
    **_LAYER_HUGGINGFACE,
    "post_attn_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}
_LAYER_GGUF = {
    "attn_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attn_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_mlp_norm": "post_ffw_norm",
}


def family_of_huggingface(model_type: str, architectures: tuple[str, ...]) -> Family:
    """Return the family of a Hugging Face configuration.

    Raises:
        UnsupportedError: another architecture; the message lists the supported ones.
    """
    for family in _FAMILIES:
        if architectures and family.architecture in architectures:
            return family
        if not architectures and family.name == model_type:
            return family
    shown = architectures[0] if architectures else model_type
    raise _unsupported(shown, sorted(family.architecture for family in _FAMILIES))


def family_of_gguf(architecture: str) -> Family:
    """Return the family of a GGUF file's `general.architecture`; Mistral files say `llama`.

    Raises:
        UnsupportedError: another architecture; the message lists the supported ones.
    """
    for family in _FAMILIES:
        if family.gguf == architecture:
            return family
    raise _unsupported(architecture, sorted({family.gguf for family in _FAMILIES}))


def huggingface_name(family: Family, slot: Slot) -> str:
    """Return the name of a slot's tensor in a Hugging Face checkpoint of the family."""
    layer = _SANDWICH_HUGGINGFACE if family.gemma else _LAYER_HUGGINGFACE
    return _name(slot, _OUTSIDE_HUGGINGFACE, layer, "model.layers")


def gguf_name(slot: Slot) -> str:
    """Return the name of a slot's tensor in a GGUF file."""
    return _name(slot, _OUTSIDE_GGUF, _LAYER_GGUF, "blk")


def _name(slot: Slot, outside: Mapping[str, str], layer: Mapping[str, str], prefix: str) -> str:
    if slot in outside:
        return outside[slot]
    _, index, site, kind = slot.split(".")
    return f"{prefix}.{index}.{layer[site]}.{kind}"


def _unsupported(architecture: str, supported: list[str]) -> UnsupportedError:
    return UnsupportedError(
        f"architecture '{architecture}' is not supported; supported: {', '.join(supported)}."
    )
