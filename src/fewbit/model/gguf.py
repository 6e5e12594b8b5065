"""The metadata of GGUF files as a configuration, and a configuration as metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.model.config import (
    CONTEXT_LIMIT,
    DIVISOR_LEAST,
    DIVISOR_LIMIT,
    HEAD_DIM_LIMIT,
    HEAD_LIMIT,
    HIDDEN_LIMIT,
    LAYER_LIMIT,
    THETA_LEAST,
    THETA_LIMIT,
    ModelConfig,
)
from fewbit.model.families import Family, family_of_gguf, gguf_name
from fewbit.model.fields import Fields
from fewbit.model.gemma import embed_scale, softcap
from fewbit.model.mixtures import expert_count, mixture_of_gguf
from fewbit.model.rope import RopeConfig, RopeScaling, ScalingKind, yarn_attention_factor
from fewbit.program import Activation

ROPE_DIVISORS = "rope_freqs.weight"
"""The tensor with one divisor per rope frequency (Llama 3)."""

KEPT = "fewbit.draft.kept"
"""The key with the ids, ascending, whose rows a draft's cut head has."""

_GEMMA_27B_LAYERS = 62
"""Gemma 3 27B alone scales attention by hidden / heads instead of the head's width."""
_SCALINGS = ("none", "linear", "yarn")


def from_gguf(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
    rope_divisors: tuple[float, ...] = (),
    owner: str = "GGUF metadata",
) -> ModelConfig:
    """Return the configuration that GGUF metadata and the presence of tensors describe.

    Args:
        metadata: the key-value pairs.
        tensors: the tensors by stored name; they tell vocabulary, biases and tying.
        rope_divisors: the values of the tensor `ROPE_DIVISORS`, where the file has it.
        owner: what the metadata is called in errors, usually the file's path.

    Raises:
        MissingError: a key that has no default, or the embedding, is absent.
        BadFileError: a value of the wrong type, out of range, or contradicting another.
        UnsupportedError: another architecture, kind of mixture or rope scaling.
    """
    architecture = Fields(metadata, owner).text("general.architecture")
    fields = Fields(metadata, owner, f"{architecture}.")
    family = family_of_gguf(architecture, mixture=expert_count(fields) > 0)
    hidden = fields.integer("embedding_length", 1, HIDDEN_LIMIT)
    heads = fields.integer("attention.head_count", 1, HEAD_LIMIT)
    layers = fields.integer("block_count", 1, LAYER_LIMIT)
    head_dim = _head_dim(fields, hidden, heads)
    rope = _rope(fields, family, rope_divisors, head_dim)
    return ModelConfig(
        family=family.name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", 1, HEAD_LIMIT, heads),
        head_dim=head_dim,
        intermediate=fields.integer("feed_forward_length", 1, HIDDEN_LIMIT),
        vocabulary=_vocabulary(fields, tensors),
        head_rows=_head_rows(metadata, owner),
        context=fields.integer("context_length", 1, CONTEXT_LIMIT),
        eps=fields.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=rope,
        local_rope=_local_rope(fields, family),
        windows=_windows(fields, family, layers),
        attention_scale=_attention_scale(family, hidden, heads, layers, head_dim),
        attention_softcap=softcap(fields, family, "attn_logit_softcapping"),
        logits_softcap=softcap(fields, family, "final_logit_softcapping"),
        activation=Activation.GELU_TANH if family.gemma else Activation.SILU,
        qk_norm=family.qk_norm,
        sandwich_norms=family.gemma,
        norm_offset=family.norm_offset,
        embed_scale=embed_scale(family, hidden),
        tied=gguf_name("head.weight") not in tensors,
        qkv_bias=gguf_name("layers.0.q.bias") in tensors,
        output_bias=gguf_name("layers.0.o.bias") in tensors,
        mlp_bias=gguf_name("layers.0.gate.bias") in tensors,
        mixture=mixture_of_gguf(fields, family, tensors, layers),
    )


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if not fields.has("attention.key_length") and hidden % heads:
        raise fields.refuse(
            "embedding_length", hidden, f"expected a multiple of attention.head_count ({heads})"
        )
    head_dim = fields.integer("attention.key_length", 2, HEAD_DIM_LIMIT, hidden // heads)
    for name, what in (
        ("attention.value_length", "values as wide as keys are"),
        ("rope.dimension_count", "the rotation of whole heads is"),
    ):
        if fields.integer(name, 1, HEAD_DIM_LIMIT, head_dim) != head_dim:
            raise UnsupportedError(
                f"{fields.owner}: {fields.prefix}{name} is {fields.raw(name)} with heads of "
                f"{head_dim}; only {what} supported."
            )
    return head_dim


def _vocabulary(fields: Fields, tensors: Mapping[str, TensorInfo]) -> int:
    name = gguf_name("embed.weight")
    if name not in tensors:
        raise MissingError(f"{fields.owner} has no tensor '{name}'; fetch the model again.")
    return tensors[name].shape[0]


def _head_rows(metadata: Mapping[str, Any], owner: str) -> int | None:
    kept = metadata.get(KEPT)
    if kept is not None and not isinstance(kept, list):
        raise BadFileError(f"{owner}: {KEPT} must be an array of token ids; prepare it again.")
    return None if kept is None else len(kept)


def _attention_scale(family: Family, hidden: int, heads: int, layers: int, head_dim: int) -> float:
    if family.gemma and layers == _GEMMA_27B_LAYERS:
        return 1.0 / math.sqrt(hidden / heads)
    return 1.0 / math.sqrt(head_dim)


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    if not family.gemma or not fields.has("attention.sliding_window"):
        return (None,) * layers
    window = fields.integer("attention.sliding_window", 1, CONTEXT_LIMIT)
    return tuple(window if inside else None for inside in _windowed(fields, layers))


def _windowed(fields: Fields, layers: int) -> list[bool]:
    """Return which layers have the window; the pattern is a period or a flag per layer."""
    name = "attention.sliding_window_pattern"
    listed = fields.raw(name, 6)
    if not isinstance(listed, list | tuple):
        period = fields.integer(name, 1, LAYER_LIMIT, 6)
        return [(layer + 1) % period != 0 for layer in range(layers)]
    if len(listed) != layers or not all(isinstance(flag, bool | int) for flag in listed):
        raise fields.refuse(name, listed, f"expected a number or {layers} flags")
    return [bool(flag) for flag in listed]


def _rope(fields: Fields, family: Family, divisors: tuple[float, ...], head_dim: int) -> RopeConfig:
    theta = fields.number("rope.freq_base", THETA_LEAST, THETA_LIMIT, family.theta)
    scaling = _scaling(fields)
    if not divisors:
        return RopeConfig(theta, scaling)
    if scaling.kind is not ScalingKind.NONE:
        raise UnsupportedError(
            f"{fields.owner} has both the tensor '{ROPE_DIVISORS}' and rope scaling of kind "
            f"'{scaling.kind.value}'; only one of them is supported."
        )
    if len(divisors) != head_dim // 2 or not all(
        DIVISOR_LEAST <= d <= DIVISOR_LIMIT for d in divisors
    ):
        raise BadFileError(
            f"{fields.owner}: the tensor '{ROPE_DIVISORS}' must hold {head_dim // 2} numbers from "
            f"{DIVISOR_LEAST:g} to {DIVISOR_LIMIT:g}; fetch the model again."
        )
    return RopeConfig(theta, RopeScaling(ScalingKind.FACTORS, divisors=divisors))


def _local_rope(fields: Fields, family: Family) -> RopeConfig | None:
    if family.local_theta is None:
        return None
    theta = fields.number("rope.freq_base_swa", THETA_LEAST, THETA_LIMIT, family.local_theta)
    return RopeConfig(theta)


def _scaling(fields: Fields) -> RopeScaling:
    kind = fields.text("rope.scaling.type", "none")
    if kind not in _SCALINGS:
        raise UnsupportedError(
            f"{fields.owner}: {fields.prefix}rope.scaling.type is '{kind}'; supported: "
            f"{', '.join(_SCALINGS)}."
        )
    if kind == "none":
        return RopeScaling()
    factor = fields.number("rope.scaling.factor", 1.0, 1e6)
    if kind == "linear":
        return RopeScaling(ScalingKind.LINEAR, factor)
    original = fields.integer("rope.scaling.original_context_length", 1, CONTEXT_LIMIT)
    return RopeScaling(
        ScalingKind.YARN,
        factor,
        original,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0),
        attention_factor=_attention_factor(fields, factor),
    )


def _attention_factor(fields: Fields, factor: float) -> float | None:
    """Return the factor on cos and sin; the file holds what the usual one is multiplied with."""
    name = "rope.scaling.attn_factor"
    if not fields.has(name):
        return None
    usual = yarn_attention_factor(RopeScaling(ScalingKind.YARN, factor))
    return fields.number(name, 1e-3, 1e3) * usual
