"""Hugging Face configurations (`config.json`): read one, write one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fewbit.errors import UnsupportedError
from fewbit.model.config import (
    CONTEXT_LIMIT,
    HEAD_DIM_LIMIT,
    HEAD_LIMIT,
    HIDDEN_LIMIT,
    LAYER_LIMIT,
    THETA_LEAST,
    THETA_LIMIT,
    VOCABULARY_LIMIT,
    ModelConfig,
)
from fewbit.model.families import FAMILIES, Family, WindowRule, family_of_huggingface
from fewbit.model.fields import Fields
from fewbit.model.gemma import embed_scale, softcap
from fewbit.model.mixtures import mixture_of_huggingface, written_mixture
from fewbit.model.rope import RopeConfig, RopeScaling, ScalingKind, llama3_from_divisors
from fewbit.program import Activation

_ACTIVATIONS = {"silu": Activation.SILU, "gelu_pytorch_tanh": Activation.GELU_TANH}
_SCALINGS = ("default", "linear", "llama3", "yarn")
_WINDOWED = "sliding_attention"
_FULL = "full_attention"


def from_huggingface(config: Mapping[str, Any], owner: str = "config.json") -> ModelConfig:
    """Return the configuration that a `config.json` describes, with `transformers`' defaults.

    Raises:
        MissingError: a field that has no default is absent.
        BadFileError: a field of the wrong type, out of range, or contradicting another.
        UnsupportedError: another architecture, kind of mixture, activation or rope scaling.
    """
    fields = Fields(config, owner)
    family = _family(fields)
    hidden = fields.integer("hidden_size", 1, HIDDEN_LIMIT)
    heads = fields.integer("num_attention_heads", 1, HEAD_LIMIT)
    layers = fields.integer("num_hidden_layers", 1, LAYER_LIMIT)
    head_dim = _head_dim(fields, family, hidden, heads)
    rope, local_rope = _ropes(fields, family)
    attention_bias = fields.flag("attention_bias", False)
    return ModelConfig(
        family=family.name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", 1, HEAD_LIMIT, heads),
        head_dim=head_dim,
        intermediate=fields.integer("intermediate_size", 1, HIDDEN_LIMIT),
        vocabulary=fields.integer("vocab_size", 1, VOCABULARY_LIMIT),
        context=fields.integer("max_position_embeddings", 1, CONTEXT_LIMIT),
        eps=fields.number("rms_norm_eps", 0.0, 1.0, family.eps),
        rope=rope,
        local_rope=local_rope,
        windows=_windows(fields, family, layers),
        attention_scale=_attention_scale(fields, family, head_dim),
        attention_softcap=softcap(fields, family, "attn_logit_softcapping"),
        logits_softcap=softcap(fields, family, "final_logit_softcapping"),
        activation=_activation(fields, family),
        qk_norm=family.qk_norm,
        sandwich_norms=family.gemma,
        norm_offset=family.norm_offset,
        embed_scale=embed_scale(family, hidden),
        tied=fields.flag("tie_word_embeddings", family.tied),
        qkv_bias=family.qkv_bias or attention_bias,
        output_bias=attention_bias and not family.qkv_bias,
        mlp_bias=family.mlp_bias and fields.flag("mlp_bias", False),
        mixture=mixture_of_huggingface(fields, family, layers),
    )


def to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a configuration, as `transformers` reads it.

    Raises:
        UnsupportedError: rope divisors of a GGUF file that no known scaling gives.
    """
    family = FAMILIES[config.family]
    written: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "rms_norm_eps": _shortest(config.eps),
        "tie_word_embeddings": config.tied,
        "attention_bias": config.qkv_bias and not family.qkv_bias,
        _activation_field(family): _activation_name(config.activation),
    }
    if family.mlp_bias:
        written["mlp_bias"] = config.mlp_bias
    written |= _written_rope(config) | _written_windows(config) | _written_gemma(config)
    return written | written_mixture(config)


def _family(fields: Fields) -> Family:
    names = fields.raw("architectures", ())
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise fields.refuse("architectures", names, "expected a list of names")
    model_type = fields.text("model_type", "") if names else fields.text("model_type")
    return family_of_huggingface(model_type, tuple(names))


def _head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    stated = fields.integer("head_dim", 2, HEAD_DIM_LIMIT, family.head_dim)
    if stated is not None:
        return stated
    if hidden % heads:
        raise fields.refuse(
            "hidden_size", hidden, f"expected a multiple of num_attention_heads ({heads})"
        )
    return hidden // heads


def _activation_field(family: Family) -> str:
    return "hidden_activation" if family.gemma else "hidden_act"


def _activation(fields: Fields, family: Family) -> Activation:
    field = _activation_field(family)
    name = fields.text(field, family.activation)
    if name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"{fields.owner}: {field} is '{name}'; supported: {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[name]


def _activation_name(activation: Activation) -> str:
    return next(name for name, known in _ACTIVATIONS.items() if known is activation)


def _attention_scale(fields: Fields, family: Family, head_dim: int) -> float:
    scalar = float(head_dim)
    if family.gemma:
        scalar = fields.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0)
    return 1.0 / math.sqrt(scalar)


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    match family.windows:
        case WindowRule.NONE:
            windowed = [False] * layers
        case WindowRule.ALL:
            windowed = [True] * layers
        case WindowRule.USED:
            windowed = [fields.flag("use_sliding_window", False)] * layers
        case WindowRule.UPPER:
            first = fields.integer("max_window_layers", 0, LAYER_LIMIT, 28)
            upper = [layer >= first for layer in range(layers)]
            used = fields.flag("use_sliding_window", False)
            windowed = _listed(fields, layers, upper) if used else [False] * layers
        case WindowRule.PATTERN:
            windowed = _listed(fields, layers, _patterned(fields, layers))
    window = _window(fields, family)
    return tuple(window if inside else None for inside in windowed)


def _window(fields: Fields, family: Family) -> int | None:
    """Return the window; an explicit null means none, an absent field the family's."""
    absent = None if "sliding_window" in fields.values else family.window
    return fields.integer("sliding_window", 1, CONTEXT_LIMIT, absent)


def _patterned(fields: Fields, layers: int) -> list[bool]:
    pattern = fields.integer("sliding_window_pattern", 1, LAYER_LIMIT, 6)
    return [(layer + 1) % pattern != 0 for layer in range(layers)]


def _listed(fields: Fields, layers: int, default: list[bool]) -> list[bool]:
    """Return which layers `layer_types` calls windowed, where it is there."""
    if not fields.has("layer_types"):
        return default
    kinds = fields.raw("layer_types")
    if not isinstance(kinds, list | tuple) or len(kinds) != layers:
        raise fields.refuse("layer_types", kinds, f"expected a list of {layers} names")
    for kind in kinds:
        if kind not in (_WINDOWED, _FULL):
            raise UnsupportedError(
                f"{fields.owner}: layer_types has {kind!r}; supported: {_FULL}, {_WINDOWED}."
            )
    return [kind == _WINDOWED for kind in kinds]


def _ropes(fields: Fields, family: Family) -> tuple[RopeConfig, RopeConfig | None]:
    """Return the rope, and that of windowed layers where the family has one of its own.

    Since version 5 `transformers` writes `rope_parameters`; before, `rope_theta` and
    `rope_scaling`, which for Gemma 3 spoke of the layers without a window only.
    """
    theta = fields.number("rope_theta", THETA_LEAST, THETA_LIMIT, family.theta)
    field = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    whole = fields.part(field) if fields.has(field) else Fields({}, fields.owner)
    _refuse_partial(fields)
    context = fields.integer("max_position_embeddings", 1, CONTEXT_LIMIT)
    if family.local_theta is None:
        return _rope(whole, theta, context), None
    local_theta = fields.number(
        "rope_local_base_freq", THETA_LEAST, THETA_LIMIT, family.local_theta
    )
    nested = whole.has(_FULL) or whole.has(_WINDOWED)
    full = _nested(whole, _FULL) if nested else whole
    local = _nested(whole, _WINDOWED)
    return _rope(full, theta, context), _rope(local, local_theta, context)


def _nested(whole: Fields, name: str) -> Fields:
    return whole.part(name) if whole.has(name) else Fields({}, whole.owner)


def _refuse_partial(fields: Fields) -> None:
    share = fields.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    if share != 1.0:
        raise UnsupportedError(
            f"{fields.owner}: partial_rotary_factor is {share:g}; only the rotation of whole "
            "heads (1) is supported."
        )


def _rope(fields: Fields, theta: float, context: int) -> RopeConfig:
    _refuse_partial(fields)
    theta = fields.number("rope_theta", THETA_LEAST, THETA_LIMIT, theta)
    kind = fields.text("rope_type", fields.text("type", "default"))
    if kind not in _SCALINGS:
        raise UnsupportedError(
            f"{fields.owner}: rope scaling of kind '{kind}' is not supported; supported: "
            f"{', '.join(_SCALINGS)}."
        )
    return RopeConfig(theta, _scaling(fields, ScalingKind(kind), context))


def _scaling(fields: Fields, kind: ScalingKind, context: int) -> RopeScaling:
    if kind is ScalingKind.NONE:
        return RopeScaling()
    factor = fields.number("factor", 1.0, 1e6)
    if kind is ScalingKind.LINEAR:
        return RopeScaling(kind, factor)
    original = "original_max_position_embeddings"
    if kind is ScalingKind.LLAMA3:
        low = fields.number("low_freq_factor", 1e-6, 1e6)
        high = fields.number("high_freq_factor", 1e-6, 1e6)
        if low >= high:
            raise fields.refuse("high_freq_factor", high, f"expected more than {low:g}")
        length = fields.integer(original, 1, CONTEXT_LIMIT)
        return RopeScaling(kind, factor, length, low_frequency=low, high_frequency=high)
    if fields.has("mscale") or fields.has("mscale_all_dim"):
        raise UnsupportedError(
            f"{fields.owner}: mscale and mscale_all_dim of yarn rope scaling are not supported; "
            "supported: factor, attention_factor, beta_fast, beta_slow, truncate."
        )
    return RopeScaling(
        kind,
        factor,
        fields.integer(original, 1, CONTEXT_LIMIT, context),
        attention_factor=fields.number("attention_factor", 1e-3, 1e3, None),
        beta_fast=fields.number("beta_fast", 1e-3, 1e6, 32.0),
        beta_slow=fields.number("beta_slow", 1e-3, 1e6, 1.0),
        truncate=fields.flag("truncate", True),
    )


def _written_rope(config: ModelConfig) -> dict[str, Any]:
    rope = config.rope
    if rope.scaling.kind is ScalingKind.FACTORS:
        rope = llama3_from_divisors(rope, config.head_dim)
    written: dict[str, Any] = {"rope_theta": rope.theta, "rope_scaling": _written_scaling(rope)}
    if config.local_rope is not None:
        written["rope_local_base_freq"] = config.local_rope.theta
    return written


def _written_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    scaling = rope.scaling
    if scaling.kind is ScalingKind.NONE:
        return None
    written: dict[str, Any] = {"rope_type": scaling.kind.value, "factor": scaling.factor}
    if scaling.kind is not ScalingKind.LINEAR:
        written["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind is ScalingKind.LLAMA3:
        written["low_freq_factor"] = scaling.low_frequency
        written["high_freq_factor"] = scaling.high_frequency
    if scaling.kind is ScalingKind.YARN:
        written |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        written |= {"truncate": scaling.truncate}
        if scaling.attention_factor is not None:
            written["attention_factor"] = scaling.attention_factor
    return written


def _written_windows(config: ModelConfig) -> dict[str, Any]:
    window = next((window for window in config.windows if window is not None), None)
    match FAMILIES[config.family].windows:
        case WindowRule.NONE:
            return {}
        case WindowRule.ALL:
            return {"sliding_window": window}
        case WindowRule.USED:
            return {"use_sliding_window": window is not None, "sliding_window": window}
        case WindowRule.UPPER:
            first = config.windows.index(window) if window is not None else config.layers
            used = {"use_sliding_window": window is not None, "max_window_layers": first}
            return used | {"sliding_window": window, "layer_types": _layer_types(config)}
        case WindowRule.PATTERN:
            return {"sliding_window": window, "layer_types": _layer_types(config)}


def _layer_types(config: ModelConfig) -> list[str]:
    return [_FULL if window is None else _WINDOWED for window in config.windows]


def _written_gemma(config: ModelConfig) -> dict[str, Any]:
    if not FAMILIES[config.family].gemma:
        return {}
    scalar = config.attention_scale**-2
    return {
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-3 else scalar,
        "attn_logit_softcapping": config.attention_softcap,
        "final_logit_softcapping": config.logits_softcap,
    }


def _shortest(value: float) -> float:
    """Return the shortest decimal with the same float32, such as 1e-06 for 9.99999997e-07."""
    return float(str(np.float32(value)))
