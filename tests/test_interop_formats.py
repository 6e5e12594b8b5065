"""Formats against compressed-tensors, torch and llama.cpp themselves."""

# ruff: noqa: PLC0415  (the oracles are imported inside the tests: `make test-interop` only)

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.checkpoint.open import open_checkpoint
from fewbit.formats import affine, fp8
from fewbit.formats.registry import parse_format
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.records.recipe import Recipe, Role, Rule

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("zero", ["", "-asym"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_scales_codes_and_values_equal_compressed_tensors(bits, zero):
    import torch
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.lifecycle.forward import quantize as quantized
    from compressed_tensors.quantization.utils import calculate_qparams

    x = np.random.default_rng(bits).normal(0, 1, (16, 128)).astype(np.float32)
    arguments = QuantizationArgs(
        num_bits=bits, type="int", symmetric=not zero, strategy="group", group_size=32
    )
    groups = torch.from_numpy(x).reshape(16, 4, 32)
    scales, zeros = calculate_qparams(groups.amin(-1), groups.amax(-1), arguments)
    codes = quantized(torch.from_numpy(x), scales, zeros, arguments)
    values = dequantize(codes, scales, zeros, arguments)

    spec = parse_format(f"int{bits}-g32{zero}-f32")
    ours = affine.encode(x, spec)
    # Its codes and zero points are signed; ours are unsigned where there is a zero point.
    shift = 1 << (bits - 1) if zero else 0
    assert np.array_equal(ours.scales, scales.numpy())
    assert np.array_equal(affine.integers(ours), codes.numpy().astype(int) + shift)
    assert np.array_equal(affine.decode(ours), values.numpy())
    if zero:
        assert np.array_equal(ours.zeros, zeros.numpy().astype(int) + shift)


def test_fp8_codes_and_values_equal_torch():
    import torch

    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], np.uint8)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(fp8.VALUES[codes].view(np.uint32), values.view(np.uint32))
    assert (
        torch.from_numpy(np.array([0x7F, 0xFF], np.uint8)).view(torch.float8_e4m3fn).isnan().all()
    )

    random = np.random.default_rng(0)
    x = random.standard_normal(100_000) * 10.0 ** random.uniform(-5, 2.5, 100_000)
    # torch gives NaN beyond the largest value, so what saturates is clipped first.
    x = np.concatenate([x.clip(-448, 448), (values[1:] + values[:-1]) / 2]).astype(np.float32)
    theirs = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(fp8.encode_e4m3(x), theirs)


@pytest.mark.parametrize(("name", "file_type"), [("q4_0", 2), ("q8_0", 7)])
def test_a_quantized_gguf_file_has_the_tensors_of_llama_cpp(tmp_path, name, file_type):
    import llama_cpp

    source = write_gguf(
        tmp_path / "in.gguf", CONFIGS["llama"], random_weights(CONFIGS["llama"], seed=file_type)
    )
    theirs = tmp_path / "theirs.gguf"
    asked = llama_cpp.llama_model_quantize_default_params()
    asked.ftype, asked.pure, asked.nthread = file_type, True, 1
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(theirs).encode(), asked) == 0
    rules = tuple(Rule(role=role, format=name) for role in Role)
    quantize(
        open_model(source), Recipe(name="pure", method="rtn", rules=rules), tmp_path / "o.gguf"
    )

    expected, ours = open_checkpoint(theirs), open_checkpoint(tmp_path / "o.gguf")
    assert set(ours.tensors) == set(expected.tensors)
    for tensor, info in expected.tensors.items():
        assert ours.tensors[tensor].format == info.format
        assert ours.digest(tensor) == expected.digest(tensor)
    was = expected.facts.metadata["general.file_type"]
    assert ours.facts.metadata["general.file_type"] == was
