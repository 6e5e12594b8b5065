"""Tiny random models of every family, as Hugging Face folders and as GGUF files.

The GGUF side follows llama.cpp's converter and shares no code with what it tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
_LLAMA = {**_SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_QWEN2 = {**_SIZES, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_GEMMA = {
    **_SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "rope_local_base_freq": 500.0,
    "hidden_activation": "gelu_pytorch_tanh",
}
_MIXTRAL = {
    **_SIZES,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_theta": 1e4,
}
_QWEN3_MOE = {
    **_SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "rope_theta": 5000.0},
    "llama-tied": {**_LLAMA, "tie_word_embeddings": True},
    "llama-biased": {**_LLAMA, "attention_bias": True, "mlp_bias": True},
    "llama3": {
        **_LLAMA,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "llama-linear": {**_LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "mistral": {
        **_SIZES,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 16,
    },
    "qwen2": {**_QWEN2, "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen2-yarn": {
        **_QWEN2,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "qwen3": {
        **_SIZES,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 32,
    },
    "mixtral": _MIXTRAL,
    "mixtral-window": {
        **{k: v for k, v in _MIXTRAL.items() if k not in ("rope_theta", "rms_norm_eps")},
        "sliding_window": 16,
        "num_local_experts": 3,
    },
    "qwen3-moe": _QWEN3_MOE,
    "qwen3-moe-sparse": {
        **_QWEN3_MOE,
        "norm_topk_prob": False,
        "decoder_sparse_step": 2,
        "num_hidden_layers": 4,
        "mlp_only_layers": [3],
        "tie_word_embeddings": True,
    },
    "gemma3": _GEMMA,
    "gemma3-long-window": {**_GEMMA, "sliding_window": 100, "final_logit_softcapping": 5.0},
    "gemma3-scaled": {
        **_GEMMA,
        "query_pre_attn_scalar": 24,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}
"""One configuration for every switch of the decoder."""

HUGGINGFACE_ONLY = ("mistral", "mixtral-window", "qwen3-moe-sparse", "gemma3-scaled")
"""Configurations that GGUF metadata cannot describe."""


def write_huggingface(folder: Path, config: dict[str, Any], weights: dict[str, Any]) -> Path:
    """Write config.json and model.safetensors; weights are float32 arrays by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def random_weights(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Return float32 weights by Hugging Face name: matrices of deviation 1/sqrt(inputs)."""
    random = np.random.default_rng(seed)
    gemma = config["model_type"] == "gemma3_text"
    weights = {}
    for name, shape in weight_shapes(config).items():
        values = random.standard_normal(shape)
        if name.endswith("norm.weight"):
            values = values * 0.2 + (0 if gemma else 1)
        elif len(shape) == 2:
            values = values / np.sqrt(shape[1])
        weights[name] = values.astype(np.float32)
    return weights


def weight_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return every tensor's shape by Hugging Face name."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    inner = config["intermediate_size"]
    gemma = config["model_type"] == "gemma3_text"
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _attention_shapes(config).items()}
        shapes |= {prefix + name: shape for name, shape in _mlp_shapes(config, layer).items()}
        if config.get("mlp_bias"):
            shapes |= {
                prefix + "mlp.gate_proj.bias": (inner,),
                prefix + "mlp.up_proj.bias": (inner,),
                prefix + "mlp.down_proj.bias": (hidden,),
            }
        names = ["input_layernorm", "post_attention_layernorm"]
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
        shapes |= {f"{prefix}{name}.weight": (hidden,) for name in names}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", gemma):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _mlp_shapes(config: dict[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kind = config["model_type"]
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    if kind == "mixtral":
        stem, names, experts = "block_sparse_moe", ("w1", "w3", "w2"), config["num_local_experts"]
    elif kind == "qwen3_moe" and (layer + 1) % step == 0 and layer not in dense:
        stem, names, experts = "mlp", ("gate_proj", "up_proj", "down_proj"), config["num_experts"]
        inner = config["moe_intermediate_size"]
    else:
        return {
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
    shapes: dict[str, tuple[int, ...]] = {f"{stem}.gate.weight": (experts, hidden)}
    for expert in range(experts):
        for name, shape in zip(names, ((inner, hidden),) * 2 + ((hidden, inner),), strict=True):
            shapes[f"{stem}.experts.{expert}.{name}.weight"] = shape
    return shapes


def _attention_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim", hidden // heads)
    outputs = {
        "q_proj": heads * width,
        "k_proj": config["num_key_value_heads"] * width,
        "v_proj": config["num_key_value_heads"] * width,
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}.weight": (rows, hidden) for name, rows in outputs.items()
    }
    shapes["self_attn.o_proj.weight"] = (hidden, heads * width)
    if config["model_type"] == "qwen2" or config.get("attention_bias"):
        shapes |= {f"self_attn.{name}.bias": (rows,) for name, rows in outputs.items()}
    if config.get("attention_bias"):
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"):
        shapes |= {"self_attn.q_norm.weight": (width,), "self_attn.k_norm.weight": (width,)}
    return shapes


_GGUF_ARCHITECTURES = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
}


def write_gguf(path: Path, config: dict[str, Any], weights: dict[str, np.ndarray]) -> Path:
    """Write a GGUF file as llama.cpp's converter would, in float32."""
    architecture = _GGUF_ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture)
    _write_sizes(writer, config)
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"]
    )
    if config.get("rope_scaling", {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(config))
    for name, values in _stacked(weights).items():
        stem, kind = name.rsplit(".", 1)
        stored = _as_converted(config, architecture, name, values)
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stacked(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put the matrices of a layer's experts into one array, [experts, outputs, inputs]."""
    stacked: dict[str, Any] = {}
    for name, values in weights.items():
        before, found, after = name.partition(".experts.")
        if found:
            stacked.setdefault(f"{before}.experts.{after.split('.', 1)[1]}", []).append(values)
        else:
            stacked[name] = values
    return {n: np.stack(v) if isinstance(v, list) else v for n, v in stacked.items()}


def llama3_divisors(config: dict[str, Any]) -> np.ndarray:
    """Return float32 [head_dim / 2], the published formula one frequency at a time."""
    scaling = config["rope_scaling"]
    width = config["hidden_size"] // config["num_attention_heads"]
    context = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for i in range(0, width, 2):
        wavelength = 2 * np.pi * config["rope_theta"] ** (i / width)
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(scaling["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(divisors, np.float32)


def _as_converted(
    config: dict[str, Any], architecture: str, name: str, values: np.ndarray
) -> np.ndarray:
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        key = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
        halves = values.reshape(config[key], 2, -1, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return values + np.float32(1)
    return values


def _write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    gemma = config["model_type"] == "gemma3_text"
    writer.add_rope_freq_base(config.get("rope_theta", 1e6 if gemma else 1e4))
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_experts", config.get("num_local_experts")))
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    scaling = config.get("rope_scaling", {})
    if scaling.get("type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if gemma:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 2)
        writer.add_float32("gemma3.rope.freq_base_swa", config["rope_local_base_freq"])
        if "final_logit_softcapping" in config:
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
