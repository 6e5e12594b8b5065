"""Static scales of keys and values in compressed-tensors: one of each for a layer's attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.records.kv import KvScales


def kept_scheme(scales: KvScales | None) -> dict[str, Any] | None:
    """Return the `kv_cache_scheme`; None where a model has no scales."""
    if scales is None:
        return None
    return {
        "num_bits": 8,
        "type": "int" if scales.form.is_integer else "float",
        "symmetric": True,
        "strategy": "tensor",
        "group_size": None,
        "dynamic": False,
    }


def kept_tensors(scales: KvScales | None) -> dict[str, NDArray[np.float32]]:
    """Return `k_scale` and `v_scale` of every layer, float32 [1], by name."""
    layers = () if scales is None else scales.of_tensors()
    found: dict[str, NDArray[np.float32]] = {}
    for number, layer in enumerate(layers):
        for side, scale in (("k", layer.key), ("v", layer.value)):
            name = f"model.layers.{number}.self_attn.{side}_scale"
            found[name] = np.array([scale], np.float32)
    return found


def kept_limits(scales: KvScales | None) -> Iterator[str]:
    """Yield what vLLM does not take of them."""
    if scales is not None and scales.form.is_integer:
        yield "vLLM stores keys and values in fp8, not in int8, and does not use these scales."
