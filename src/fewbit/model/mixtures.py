"""Mixtures of experts in the configurations of Hugging Face folders and GGUF files.

Neither file says it all. Mixtral's and Qwen3's weights of the chosen experts sum to one in every
GGUF file (llama.cpp has no switch for it there); Qwen3's configuration says so with
`norm_topk_prob`, whose default is false. Which layers of a GGUF file have a mixture is told by
which have a router.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fewbit.errors import UnsupportedError
from fewbit.model.config import EXPERT_LIMIT, HIDDEN_LIMIT, LAYER_LIMIT, MixtureConfig, ModelConfig
from fewbit.model.families import FAMILIES, Family, gguf_name
from fewbit.model.fields import Fields

_USED = "num_experts_per_tok"
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_SHARED = ("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size")
_SHARED_GGUF = ("expert_shared_count", "expert_group_count", "expert_shared_feed_forward_length")


def mixture_of_huggingface(fields: Fields, family: Family, layers: int) -> MixtureConfig | None:
    """Return the mixtures that a configuration describes; None for a dense model.

    Raises:
        BadFileError, MissingError: a field of the wrong type, out of range, or absent.
        UnsupportedError: experts in a family of dense models, or experts that every token passes.
    """
    names = family.mixture
    refused = _SHARED if names else _COUNTS
    for name in refused:
        if fields.integer(name, 0, HIDDEN_LIMIT, 0) > 0:
            raise _other_mixture(fields, name, family)
    if names is None:
        return None
    return MixtureConfig(
        experts=fields.integer(names.count, 1, EXPERT_LIMIT, names.experts_default),
        used=fields.integer(_USED, 1, EXPERT_LIMIT, names.used_default),
        width=fields.integer(names.width, 1, HIDDEN_LIMIT),
        layers=_sparse_layers(fields, layers) if names.selective else (True,) * layers,
        normalized=fields.flag("norm_topk_prob", False) if names.selective else True,
    )


def written_mixture(config: ModelConfig) -> dict[str, Any]:
    """Return the fields of a Hugging Face configuration that describe a model's mixtures."""
    mixture, names = config.mixture, FAMILIES[config.family].mixture
    if mixture is None or names is None:
        return {}
    written = {
        names.count: mixture.experts,
        _USED: mixture.used,
        names.width: mixture.width,
    }
    if not names.selective:
        return written
    return {
        **written,
        "norm_topk_prob": mixture.normalized,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, sparse in enumerate(mixture.layers) if not sparse],
    }


def expert_count(fields: Fields) -> int:
    """Return how many experts GGUF metadata count; 0 for a dense model."""
    return fields.integer("expert_count", 0, EXPERT_LIMIT, 0)


def mixture_of_gguf(
    fields: Fields, family: Family, tensors: Collection[str], layers: int
) -> MixtureConfig | None:
    """Return the mixtures that GGUF metadata and the presence of routers describe.

    Raises:
        BadFileError, MissingError: a value of the wrong type, out of range, or absent.
        UnsupportedError: experts that every token passes, groups of experts, or a factor on the
            weights of the chosen ones.
    """
    if family.mixture is None:
        return None
    for name in _SHARED_GGUF:
        if fields.integer(name, 0, HIDDEN_LIMIT, 0) > 0:
            raise _other_mixture(fields, name, family)
    if fields.number("expert_weights_scale", 0.0, 1e6, 0.0) not in (0.0, 1.0):
        raise _other_mixture(fields, "expert_weights_scale", family)
    width = "expert_feed_forward_length" if family.mixture.selective else "feed_forward_length"
    return MixtureConfig(
        experts=expert_count(fields),
        used=fields.integer("expert_used_count", 1, EXPERT_LIMIT),
        width=fields.integer(width, 1, HIDDEN_LIMIT),
        layers=tuple(gguf_name(f"layers.{n}.router.weight") in tensors for n in range(layers)),
        normalized=True,
    )


def _sparse_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Return which layers of a Qwen3 mixture have experts, the others being dense."""
    step = fields.integer("decoder_sparse_step", 1, LAYER_LIMIT, 1)
    dense = fields.raw("mlp_only_layers", ())
    if not isinstance(dense, list | tuple) or not all(type(layer) is int for layer in dense):
        raise fields.refuse("mlp_only_layers", dense, "expected a list of layer numbers")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def _other_mixture(fields: Fields, name: str, family: Family) -> UnsupportedError:
    mixtures = ", ".join(f.architecture for f in FAMILIES.values() if f.mixture)
    return UnsupportedError(
        f"{fields.owner}: {fields.prefix}{name} is {fields.raw(name)}, which family "
        f"'{family.name}' does not have; supported mixtures of experts are those of {mixtures}, "
        "without experts that every token passes."
    )
