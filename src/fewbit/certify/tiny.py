"""Tiny models to enumerate: whole folders, opened and run as any other model is.

Three tokens, two layers, and weights large enough that what a model says depends on all that it
read. The target's matrices have 8 bits, so that every kind of draft can be made of it. The draft
model is the target with every matrix moved by as much as a third of its size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from fewbit.atomic import write_bytes
from fewbit.checkpoint.safetensors_write import Part, write_safetensors
from fewbit.model.weights import open_model
from fewbit.quantization.pipeline import quantize
from fewbit.recipes import built_in

VOCABULARY = 3
"""Tokens that can be drawn; the head's other rows are padding."""

LETTERS = "abc"

HEAD_LAYERS = (0, 1, 2)
"""After how many of the target's layers a head takes the hidden states."""

HEAD_TOKENS = (2, 0, *range(3, 17))
"""The target's id for each row of a head's matrix; one token is missing, ids from 3 on are
padding."""

RECIPE = "rtn-int8-row"
"""How the target is rounded."""

_ROWS = 32
_HIDDEN = 64
_LAYERS = 2
_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": _HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": _ROWS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
}


def write_target(folder: Path) -> Path:
    """Write the target and return its folder."""
    source = _write(folder.with_name(folder.name + "-source"), _weights(1))
    quantize(open_model(source), built_in(RECIPE), folder)
    return folder


def write_draft(folder: Path) -> Path:
    """Write a draft for it, which often agrees, and return its folder."""
    other = _weights(2)
    mixed = {name: value + np.float32(0.35) * other[name] for name, value in _weights(1).items()}
    return _write(folder, mixed)


def write_head(folder: Path) -> Path:
    """Write a head for the target, in the form of speculators, and return its folder.

    Of the three tokens it can propose two, and one of them by a row out of order.
    """
    layer = {**_CONFIG, "num_hidden_layers": 1}
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": len(HEAD_TOKENS),
        "eagle_aux_hidden_state_layer_ids": list(HEAD_LAYERS),
        "norm_before_residual": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "config.json", json.dumps(config).encode())
    rng = np.random.default_rng(3)
    weights: dict[str, NDArray[Any]] = {
        name: _random(rng, name, shape) for name, shape in _head_shapes().items()
    }
    weights["d2t"] = np.array(HEAD_TOKENS, np.int64) - np.arange(len(HEAD_TOKENS))
    types = {"float32": "F32", "int64": "I64"}
    parts = [Part(name, types[value.dtype.name], value.shape) for name, value in weights.items()]
    write_safetensors(folder / "model.safetensors", parts, weights.items(), {})
    return folder


def _weights(seed: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {name: _random(rng, name, shape) for name, shape in _shapes().items()}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    scale = _scale(name) / np.sqrt(shape[-1])
    values = rng.standard_normal(shape) * scale if len(shape) == 2 else np.ones(shape)
    return values.astype(np.float32)


def _scale(name: str) -> float:
    """Return the size of a matrix: queries and keys so that attention chooses, a head that varies.

    The head's is such that the three probabilities differ by about e.
    """
    return 2.5 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.2


def _shapes() -> dict[str, tuple[int, ...]]:
    width = _HIDDEN // _CONFIG["num_attention_heads"]
    inner = _CONFIG["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (_ROWS, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
        "lm_head.weight": (_ROWS, _HIDDEN),
    }
    for layer in range(_LAYERS):
        parts = {
            "self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            "self_attn.k_proj.weight": (width, _HIDDEN),
            "self_attn.v_proj.weight": (width, _HIDDEN),
            "self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            "mlp.gate_proj.weight": (inner, _HIDDEN),
            "mlp.up_proj.weight": (inner, _HIDDEN),
            "mlp.down_proj.weight": (_HIDDEN, inner),
            "input_layernorm.weight": (_HIDDEN,),
            "post_attention_layernorm.weight": (_HIDDEN,),
        }
        found |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return found


def _head_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of a head: those of a layer, with inputs twice as wide for q, k and v."""
    prefix = "model.layers.0."
    found: dict[str, tuple[int, ...]] = {
        "fc.weight": (_HIDDEN, len(HEAD_LAYERS) * _HIDDEN),
        "norm.weight": (_HIDDEN,),
        "lm_head.weight": (len(HEAD_TOKENS), _HIDDEN),
        "layers.0.hidden_norm.weight": (_HIDDEN,),
    }
    for name, shape in _shapes().items():
        if name.startswith(prefix):
            wide = name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            found[name.removeprefix("model.")] = (shape[0], 2 * shape[1]) if wide else shape
    return found


def _write(folder: Path, weights: dict[str, NDArray[np.float32]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "config.json", json.dumps(_CONFIG).encode())
    parts = [Part(name, "F32", value.shape) for name, value in weights.items()]
    write_safetensors(folder / "model.safetensors", parts, weights.items(), {})
    vocabulary = {letter: token for token, letter in enumerate(LETTERS)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.decoder = tokenizers.decoders.ByteLevel()
    write_bytes(folder / "tokenizer.json", backend.to_str().encode())
    described = {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_bytes(folder / "tokenizer_config.json", json.dumps(described).encode())
    return folder
