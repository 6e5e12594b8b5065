"""Configurations of compressed-tensors, and matrices packed as it does."""

from packed_models import (
    compressed,
)

Q = "model.layers.0.self_attn.q_proj"


def scheme(bits=4, group=32, *, symmetric=True, form="pack-quantized", inputs=None, **other):
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group" if group else "channel",
        "group_size": group,
        **other,
    }
    return {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": form}


def quantization(*groups, **other):
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": ["lm_head"],
        **other,
    }


def with_part(name, change):
    """Pack as compressed-tensors does, then change one stored tensor."""

    def pack(matrix):
        stored = compressed(matrix, symmetric=True)
        stored[name] = change(stored[name]) if name in stored else change(matrix)
        return stored

    return pack
