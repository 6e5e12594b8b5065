"""Floats of compressed-tensors, packed bit by bit by the test, come out value for value."""

import numpy as np
import pytest
from compressed_cases import Q, quantization, scheme
from packed_models import (
    E4m3,
    packed_llama,
    random_integers,
)

from fewbit.checkpoint.open import open_checkpoint
from fewbit.formats import fp8
from fewbit.formats.registry import decode


def fp8_codes(seed, shape):
    codes = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return np.where(codes & 0x7F == 0x7F, np.uint8(1), codes)


FLOAT = {"num_bits": 8, "type": "float", "symmetric": True}


@pytest.mark.parametrize(
    ("strategy", "scales", "form"),
    [
        ("channel", np.linspace(1e-3, 2e-3, 64, dtype=np.float32)[:, None], "fp8_e4m3-row"),
        ("tensor", np.float32([1.5e-3]), "fp8_e4m3-tensor"),
        ("block", np.float32([[1e-3, 2e-3], [3e-3, 4e-3], [5e-3, 6e-3]]), "f32"),
    ],
)
def test_float_quantized_weights(tmp_path, strategy, scales, form):
    codes = fp8_codes(1, (64, 64))
    group = scheme(
        group=None, form="float-quantized", inputs={**FLOAT, "strategy": "token", "dynamic": True}
    )
    group["weights"] = {**FLOAT, "strategy": strategy, "block_structure": [25, 40]}
    folder = packed_llama(
        tmp_path / "m",
        lambda _: {"weight": E4m3(codes), "weight_scale": scales},
        quantization(group),
        {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)},
    )
    spread = scales
    if strategy == "block":
        spread = scales.repeat(25, axis=0)[:64].repeat(40, axis=1)[:, :64]
    with open_checkpoint(folder) as checkpoint:
        info = checkpoint.tensors[f"{Q}.weight"]
        assert info.format.name == form
        assert "its inputs are not rounded to 8-bit floats" in info.note
        values = decode(checkpoint.read(f"{Q}.weight"))
        assert np.array_equal(values, fp8.VALUES[codes] * spread)


E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_nvfp4_is_decoded_and_said(tmp_path):
    rng = np.random.default_rng(1)
    codes, scales = rng.integers(0, 16, (64, 64)), fp8_codes(2, (64, 4)) & 0x7F
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    }
    stored = {
        "weight_packed": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8),
        "weight_scale": E4m3(scales),
        "weight_global_scale": np.float32([300.0]),
    }
    folder = packed_llama(
        tmp_path / "m",
        lambda _: stored,
        quantization(group, format="nvfp4-pack-quantized"),
        {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)},
    )
    expected = E2M1[codes] * (fp8.VALUES[scales] / np.float32(300)).repeat(16, axis=1)
    with open_checkpoint(folder) as checkpoint:
        assert (
            "no kernel reads nvfp4, so it is decoded to bf16"
            in checkpoint.tensors[f"{Q}.weight"].note
        )
        values = decode(checkpoint.read(f"{Q}.weight"))
    # bf16 has eight significant bits.
    assert (np.abs(values - expected) <= 2.0**-8 * np.abs(expected)).all()


def test_mxfp4_becomes_the_type_of_that_name(tmp_path):
    rng = np.random.default_rng(1)
    codes, powers = rng.integers(0, 16, (64, 64)), rng.integers(110, 130, (64, 2), dtype=np.uint8)
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
    }
    stored = {
        "weight_packed": (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8),
        "weight_scale": powers,
    }
    folder = packed_llama(
        tmp_path / "m",
        lambda _: stored,
        quantization(group, format="mxfp4-pack-quantized"),
        {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)},
    )
    expected = E2M1[codes] * np.ldexp(np.float32(1), powers.astype(int) - 127).repeat(32, axis=1)
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tensors[f"{Q}.weight"].format.name == "mxfp4"
        assert np.array_equal(decode(checkpoint.read(f"{Q}.weight")), expected)
