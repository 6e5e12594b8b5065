"""A configuration as the metadata that llama.cpp asks for; undoes `gguf.from_gguf`.

llama.cpp's attention of llama models has no window, and its mixtures weigh the chosen experts so
that they sum to one. What a file cannot say is refused, except for a window: a file whose context
ends where the window does computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fewbit.checkpoint.gguf_types import ArrayOf, MetadataType, ValueType
from fewbit.errors import UnsupportedError
from fewbit.model.config import ModelConfig
from fewbit.model.families import FAMILIES, Family
from fewbit.model.rope import RopeConfig, ScalingKind, rope_frequencies, yarn_attention_factor

TypedMetadata = dict[str, tuple[MetadataType, Any]]
"""Keys with their type and value."""

_U32, _F32, _TEXT = ValueType.UINT32, ValueType.FLOAT32, ValueType.STRING

_FILE_TYPES = {
    **{"f32": 0, "f16": 1, "bf16": 32, "mxfp4": 38, "iq4_nl": 25, "iq4_xs": 30},
    **{"q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7},
    **{"q2_k": 10, "q3_k": 11, "q4_k": 14, "q5_k": 16, "q6_k": 18},
}
_GUESSED = 1024
"""What llama.cpp has for a file whose type must be guessed from its tensors."""


def file_type(weights: Mapping[str, int]) -> int:
    """Return `general.file_type`: that of the format of most weights (the plain mix of k-quants).

    Args:
        weights: number of weights by the name of their format.
    """
    return _FILE_TYPES.get(max(weights, key=weights.__getitem__), _GUESSED)


@dataclass(frozen=True)
class GgufConfig:
    """A configuration as a GGUF file has it."""

    config: ModelConfig
    """As the file says it."""
    metadata: TypedMetadata
    divisors: tuple[float, ...]
    """The values of the tensor `rope_freqs.weight`; empty where there is none."""
    notes: tuple[str, ...]
    """Sentences: what the file says otherwise."""


def to_gguf(config: ModelConfig) -> GgufConfig:
    """Return the metadata of a configuration.

    Raises:
        UnsupportedError: GGUF has no place for something that changes what the model computes.
    """
    family = FAMILIES[config.family]
    _refuse_inexpressible(config, family)
    config, notes = _without_windows(config, family)
    fields = {
        **_sizes(config),
        **_rope(config),
        **_gemma(config, family),
        **_mixture(config, family),
    }
    named = {f"{family.gguf}.{name}": value for name, value in fields.items()}
    architecture: TypedMetadata = {"general.architecture": (_TEXT, family.gguf)}
    return GgufConfig(config, {**architecture, **named}, _divisors(config), notes)


def _sizes(config: ModelConfig) -> TypedMetadata:
    return {
        "block_count": (_U32, config.layers),
        "context_length": (_U32, config.context),
        "embedding_length": (_U32, config.hidden),
        "feed_forward_length": (_U32, config.intermediate),
        "attention.head_count": (_U32, config.heads),
        "attention.head_count_kv": (_U32, config.kv_heads),
        "attention.key_length": (_U32, config.head_dim),
        "attention.value_length": (_U32, config.head_dim),
        "attention.layer_norm_rms_epsilon": (_F32, config.eps),
        "vocab_size": (_U32, config.vocabulary),
    }


def _rope(config: ModelConfig) -> TypedMetadata:
    rope, scaling = config.rope, config.rope.scaling
    fields: TypedMetadata = {
        "rope.dimension_count": (_U32, config.head_dim),
        "rope.freq_base": (_F32, rope.theta),
    }
    if scaling.kind not in (ScalingKind.LINEAR, ScalingKind.YARN):
        return fields
    fields["rope.scaling.type"] = (_TEXT, scaling.kind.value)
    fields["rope.scaling.factor"] = (_F32, scaling.factor)
    if scaling.kind is ScalingKind.LINEAR:
        return fields
    fields["rope.scaling.original_context_length"] = (_U32, scaling.original_context)
    fields["rope.scaling.yarn_beta_fast"] = (_F32, scaling.beta_fast)
    fields["rope.scaling.yarn_beta_slow"] = (_F32, scaling.beta_slow)
    usual = yarn_attention_factor(replace(scaling, attention_factor=None))
    if scaling.attention_factor is not None and scaling.attention_factor != usual:
        fields["rope.scaling.attn_factor"] = (_F32, scaling.attention_factor / usual)
    return fields


def _divisors(config: ModelConfig) -> tuple[float, ...]:
    """Return plain frequencies over scaled ones, float32; empty without Llama 3's scaling."""
    scaling = config.rope.scaling
    if scaling.kind is ScalingKind.FACTORS:
        return scaling.divisors
    if scaling.kind is not ScalingKind.LLAMA3:
        return ()
    plain, _ = rope_frequencies(RopeConfig(config.rope.theta), config.head_dim)
    scaled, _ = rope_frequencies(config.rope, config.head_dim)
    ratios = np.array(plain, np.float32) / np.array(scaled, np.float32)
    return tuple(float(ratio) for ratio in ratios)


def _gemma(config: ModelConfig, family: Family) -> TypedMetadata:
    if not family.gemma:
        return {}
    fields: TypedMetadata = {}
    window = next((window for window in config.windows if window is not None), None)
    if window is not None:
        flags = [window is not None for window in config.windows]
        fields["attention.sliding_window"] = (_U32, window)
        fields["attention.sliding_window_pattern"] = _pattern(flags)
    if config.local_rope is not None:
        fields["rope.freq_base_swa"] = (_F32, config.local_rope.theta)
    if config.attention_softcap is not None:
        fields["attn_logit_softcapping"] = (_F32, config.attention_softcap)
    if config.logits_softcap is not None:
        fields["final_logit_softcapping"] = (_F32, config.logits_softcap)
    return fields


def _pattern(flags: list[bool]) -> tuple[MetadataType, Any]:
    """Return a period where there is one, which every version of llama.cpp reads."""
    for period in range(1, len(flags) + 2):
        if all(flag == ((layer + 1) % period != 0) for layer, flag in enumerate(flags)):
            return _U32, period
    return ArrayOf(ValueType.BOOL), flags


def _mixture(config: ModelConfig, family: Family) -> TypedMetadata:
    mixture = config.mixture
    if mixture is None or family.mixture is None:
        return {}
    fields: TypedMetadata = {
        "expert_count": (_U32, mixture.experts),
        "expert_used_count": (_U32, mixture.used),
    }
    if family.mixture.selective:
        fields["expert_feed_forward_length"] = (_U32, mixture.width)
    return fields


def _without_windows(config: ModelConfig, family: Family) -> tuple[ModelConfig, tuple[str, ...]]:
    windows = [window for window in config.windows if window is not None]
    if family.gemma or not windows:
        return config, ()
    context = min(config.context, *windows)
    plain = replace(config, windows=(None,) * config.layers, context=context)
    note = (
        f"GGUF has no attention windows for {family.gguf}: the file's context is cut to "
        f"{context:,} of {config.context:,} positions, within which the window changes nothing."
    )
    return plain, (note,) if context < config.context else ()


def _refuse_inexpressible(config: ModelConfig, family: Family) -> None:
    if len({window for window in config.windows if window is not None}) > 1:
        raise _inexpressible(config, "layers with different windows")
    if config.mixture is not None and not config.mixture.normalized:
        raise _inexpressible(config, "expert weights that do not sum to one (norm_topk_prob)")
    if config.rope.scaling.kind is ScalingKind.YARN and not config.rope.scaling.truncate:
        raise _inexpressible(config, "YaRN without truncation")
    if config.local_rope is not None and config.local_rope.scaling.kind is not ScalingKind.NONE:
        raise _inexpressible(config, "scaled rotation in layers with a window")
    if config.output_bias and family.gguf != "llama":
        raise _inexpressible(config, "a bias behind attention")


def _inexpressible(config: ModelConfig, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"The model has {what}, which GGUF's metadata for {FAMILIES[config.family].gguf} cannot "
        "say; write a folder instead."
    )


def refusals(config: ModelConfig, architecture: str) -> tuple[str, ...]:
    """Return, as sentences, what llama.cpp would not load or would compute otherwise."""
    found = []
    if config.attention_softcap is not None:
        found.append(
            "llama.cpp does not bound the attention scores of gemma3 "
            "(attn_logit_softcapping), so its results would differ."
        )
    if config.mixture is not None and not all(config.mixture.layers):
        found.append(f"llama.cpp loads {architecture} only with experts in every layer.")
    if config.mixture is not None and config.mlp_bias:
        found.append("llama.cpp has no biases of experts in llama models.")
    return tuple(found)
