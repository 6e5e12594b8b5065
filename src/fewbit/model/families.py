"""The supported decoder families: their switches, and what others call their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    USED = "used"
    """Every layer, where `use_sliding_window` is true (Qwen's mixtures)."""
    PATTERN = "pattern"
    """All but every sixth layer, or as `layer_types` says (Gemma 3)."""


@dataclass(frozen=True, kw_only=True)
class MixtureNames:
    """What a family's Hugging Face checkpoints and configurations call the parts of a mixture."""

    router: str
    experts: str
    """What stands before an expert's number."""
    gate: str
    up: str
    down: str
    count: str
    """The configuration's field for the number of experts, `experts_default` without it."""
    width: str
    """The field for the outputs of an expert's gate and up."""
    experts_default: int
    used_default: int
    selective: bool
    """Whether the configuration says which layers have mixtures, and whether the weights of the
    chosen experts sum to one; otherwise all have, and they do."""


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
    window: int | None = 4096
    """Where the configuration names none."""
    head_dim: int | None = None
    """Where the configuration names none; None means hidden / heads."""
    theta: float = 10_000.0
    local_theta: float | None = None
    """Base of the rope of windowed layers, where they have one of their own."""
    activation: str = "silu"
    tied: bool = False
    eps: float = 1e-6
    mixture: MixtureNames | None = None
    """Of a family whose layers have mixtures of experts."""


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
        name="mixtral",
        architecture="MixtralForCausalLM",
        gguf="llama",
        gguf_permuted=True,
        windows=WindowRule.ALL,
        window=None,
        theta=1_000_000.0,
        eps=1e-5,
        mixture=MixtureNames(
            router="block_sparse_moe.gate",
            experts="block_sparse_moe.experts",
            gate="w1",
            up="w3",
            down="w2",
            count="num_local_experts",
            width="intermediate_size",
            experts_default=8,
            used_default=2,
            selective=False,
        ),
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
        name="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        gguf="qwen3moe",
        qk_norm=True,
        windows=WindowRule.USED,
        mixture=MixtureNames(
            router="mlp.gate",
            experts="mlp.experts",
            gate="gate_proj",
            up="up_proj",
            down="down_proj",
            count="num_experts",
            width="moe_intermediate_size",
            experts_default=128,
            used_default=8,
            selective=True,
        ),
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
    "router": "ffn_gate_inp",
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


def family_of_gguf(architecture: str, *, mixture: bool) -> Family:
    """Return the family of a GGUF file's `general.architecture`.

    Mistral files say `llama`, and so do Mixtral's, with `mixture`: they count experts.

    Raises:
        UnsupportedError: another architecture; the message lists the supported ones.
    """
    for family in _FAMILIES:
        if family.gguf == architecture and mixture == (family.mixture is not None):
            return family
    shown = f"{architecture} with experts" if mixture else architecture
    raise _unsupported(shown, sorted({_shown_gguf(family) for family in _FAMILIES}))


def _shown_gguf(family: Family) -> str:
    return f"{family.gguf} with experts" if family.mixture else family.gguf


def huggingface_name(family: Family, slot: Slot) -> str:
    """Return the name of a slot's tensor in a Hugging Face checkpoint of the family."""
    if slot in _OUTSIDE_HUGGINGFACE:
        return _OUTSIDE_HUGGINGFACE[slot]
    layer = _SANDWICH_HUGGINGFACE if family.gemma else _LAYER_HUGGINGFACE
    _, index, *site, kind = slot.split(".")
    return f"model.layers.{index}.{_site_huggingface(family, layer, site)}.{kind}"


def _site_huggingface(family: Family, layer: Mapping[str, str], site: Sequence[str]) -> str:
    names = family.mixture
    if names is None or site[0] not in ("router", "experts"):
        return layer[site[0]]
    if site[0] == "router":
        return names.router
    return f"{names.experts}.{site[1]}.{getattr(names, site[2])}"


def gguf_name(slot: Slot) -> str:
    """Return the name of a slot's tensor in a GGUF file.

    The matrices of all experts of a layer lie in one tensor of three dimensions.
    """
    if slot in _OUTSIDE_GGUF:
        return _OUTSIDE_GGUF[slot]
    _, index, *site, kind = slot.split(".")
    experts = "_exps" if site[0] == "experts" else ""
    return f"blk.{index}.{_LAYER_GGUF[site[-1]]}{experts}.{kind}"


def expert_of(slot: Slot) -> int | None:
    """Return the number of the expert that a slot belongs to; None for one of no expert."""
    parts = slot.split(".")
    return int(parts[3]) if parts[2:3] == ["experts"] else None


def is_router(slot: Slot) -> bool:
    """Return whether a slot holds what chooses a mixture's experts."""
    return slot.endswith(".router.weight")


def _unsupported(architecture: str, supported: list[str]) -> UnsupportedError:
    return UnsupportedError(
        f"architecture '{architecture}' is not supported; supported: {', '.join(supported)}."
    )
