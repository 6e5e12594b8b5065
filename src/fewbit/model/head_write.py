"""Writing a draft head as a folder in the form of speculators, which vLLM and fewbit open."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.atomic import write_bytes
from fewbit.checkpoint.detect import CONFIG
from fewbit.checkpoint.huggingface import WEIGHTS
from fewbit.checkpoint.safetensors_write import Part, write_safetensors
from fewbit.model.head import SPECULATORS, HeadConfig
from fewbit.model.head_source import FROM_TARGET, TO_TARGET
from fewbit.model.huggingface import to_huggingface

DRAFTED = 3
"""Tokens drafted at once that a written head asks its readers for; fewbit chooses by itself."""

_TYPES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}


def write_head(
    folder: Path,
    config: HeadConfig,
    weights: Mapping[str, NDArray[np.float32]],
    kept: NDArray[np.int32],
    verifier: str,
) -> None:
    """Write a head; its configuration comes last.

    Args:
        folder: made where it is not there.
        config: of the head.
        weights: float32 by name, in the spelling of speculators.
        kept: int32 [n] ascending, the target's ids that it can propose.
        verifier: what the target is called.

    Raises:
        OutputError: it could not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = dict(weights)
    arrays[TO_TARGET] = kept.astype(np.int64) - np.arange(len(kept))
    arrays[FROM_TARGET] = np.isin(np.arange(config.layer.vocabulary), kept)
    parts = [Part(name, _TYPES[array.dtype.name], array.shape) for name, array in arrays.items()]
    write_safetensors(folder / WEIGHTS, parts, arrays.items(), {})
    text = json.dumps(_described(config, verifier), indent=2)
    write_bytes(folder / CONFIG, f"{text}\n".encode())


def _described(config: HeadConfig, verifier: str) -> dict[str, Any]:
    layer = to_huggingface(config.layer)
    layer.pop("architectures")
    return {
        "architectures": [SPECULATORS],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": config.layer.head_rows,
        "target_hidden_size": config.target_hidden,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fuse,
        "eagle_aux_hidden_state_layer_ids": None if config.after is None else list(config.after),
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": DRAFTED,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": verifier, "architectures": []},
        },
    }
