"""`quantize_` beside TorchAO on the same weights, and in a model of transformers."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import fewbit
from fewbit.api.torch_linear import QuantizedLinear
from fewbit.formats.affine import integers

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao import quantization as ao

pytestmark = pytest.mark.interop

OUTPUTS, INPUTS = 48, 256


@pytest.fixture
def layers():
    """One layer for each library, with the same weights, and rows for both."""
    torch.manual_seed(3)
    layer = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    model = torch.nn.Sequential(layer)
    return model, copy.deepcopy(model), torch.randn(32, INPUTS)


def theirs(model, config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ao.quantize_(model, config)
    return model[0].weight


@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_int8_codes_are_those_of_torchao(layers, name):
    """Their scales are in float32 and ours in fp16, so off by 2^-11 of themselves at most: codes
    of up to 127 move by 0.063 at most, and by one where that crosses a half, once in 16 or less.
    """
    ours, other, _ = layers
    fewbit.quantize_(ours, getattr(fewbit, name)())
    weight = theirs(other, getattr(ao, name)())
    tensor = ours[0].quantized()
    np.testing.assert_allclose(tensor.scales, weight.scale.numpy(), rtol=2.0**-11)
    apart = np.abs(integers(tensor) - weight.qdata.numpy().astype(np.int16))
    assert apart.max() <= 1
    assert apart.mean() < 1 / 16


def test_float8_is_theirs_bit_for_bit(layers):
    ours, other, _ = layers
    fewbit.quantize_(ours, fewbit.Float8WeightOnlyConfig())
    weight = theirs(other, ao.Float8WeightOnlyConfig())
    codes = weight.qdata.view(torch.uint8).numpy()
    np.testing.assert_array_equal(ours[0].quantized().codes, codes)
    np.testing.assert_array_equal(ours[0].quantized().scales, weight.scale.numpy())


def test_int4_groups_are_theirs(layers):
    """TorchAO's own int4 tensors need a GPU; its general affine ones have the same arithmetic.

    A zero point is a rounded quotient too, so both move where fp16 scales do (2^-11 of at most 15:
    0.0074), which crosses a half for one code or zero point in a hundred at most.
    """
    ours, other, _ = layers
    fewbit.quantize_(ours, fewbit.Int4WeightOnlyConfig(group_size=32))
    weight = theirs(
        other,
        ao.IntxWeightOnlyConfig(
            weight_dtype=torch.int4,
            granularity=ao.PerGroup(32),
            mapping_type=ao.MappingType.ASYMMETRIC,
        ),
    )
    tensor = ours[0].quantized()
    np.testing.assert_allclose(tensor.scales, weight.scale.numpy(), rtol=2.0**-11)
    zeros = np.abs(tensor.zeros.astype(int) - 8 - weight.zero_point.numpy())
    codes = np.abs(integers(tensor) - 8 - weight.qdata.numpy().astype(np.int16))
    assert max(zeros.max(), codes.max()) <= 1
    assert zeros.mean() < 0.02
    assert codes.mean() < 0.04


@pytest.mark.parametrize(
    "name",
    ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig"],
)
def test_results_are_as_near_to_the_float_model_as_theirs(layers, name):
    ours, other, x = layers
    exact = ours(x)
    fewbit.quantize_(ours, getattr(fewbit, name)())
    theirs(other, getattr(ao, name)())
    error, their_error = ((m(x) - exact).norm().item() for m in (ours, other))
    assert 0 < error < 1.1 * their_error


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=320,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def tokens():
    return torch.arange(24).reshape(2, 12) * 7 % 320


def dequantized(model, quantized):
    """The model with each quantized layer's values in a plain layer."""
    plain = copy.deepcopy(model)
    for name, layer in quantized.named_modules():
        if isinstance(layer, QuantizedLinear):
            weight = torch.nn.Parameter(layer.weight.as_subclass(torch.Tensor))
            plain.get_submodule(name).weight = weight
    return plain


def test_a_llama_of_transformers_has_the_logits_of_its_dequantized_weights(llama, tokens):
    """Float8 layers round no input, so nothing but the order of float32 sums differs: logits of
    about 1 behind 2 layers with 15 products of at most 96 terms."""
    model = copy.deepcopy(llama)
    fewbit.quantize_(model, fewbit.Float8WeightOnlyConfig())
    assert sum(isinstance(m, QuantizedLinear) for m in model.modules()) == 2 * 7 + 1
    with torch.no_grad():
        ours = model(tokens).logits
        plain = dequantized(llama, model)(tokens).logits
        before = llama(tokens).logits
    torch.testing.assert_close(ours, plain, rtol=0, atol=15 * 96 * 2.0**-24 * ours.abs().max())
    assert (ours - before).abs().max() > 100 * (ours - plain).abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "config",
    [fewbit.Int4WeightOnlyConfig(group_size=32), fewbit.Int8DynamicActivationInt8WeightConfig()],
    ids=["int4", "w8a8"],
)
def test_a_llama_of_transformers_generates(llama, tokens, config, dtype):
    """Rounded inputs may flip to a neighbour; that costs less than the weights' own rounding."""
    model = copy.deepcopy(llama).to(dtype)
    before = copy.deepcopy(model)
    fewbit.quantize_(model, config)
    with torch.no_grad():
        ours = model(tokens).logits.float()
        plain = dequantized(before, model)(tokens).logits.float()
        exact = llama(tokens).logits
    assert (ours - plain).norm() < (ours - exact).norm()
    assert (ours - exact).norm() / exact.norm() < 0.3
    generated = model.generate(tokens, max_new_tokens=4, do_sample=False)
    assert generated.shape == (2, 16)


SHORT = """
import torch
from torchao.quantization import Int4WeightOnlyConfig, quantize_
quantize_(model, Int4WeightOnlyConfig(group_size=32, int4_packing_format="tile_packed_to_4d",
                                      int4_choose_qparams_algorithm="hqq"))
"""
FIRST = """
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
quantize_(model, Int8DynamicActivationInt8WeightConfig())
"""
OLDER = """
from torchao.quantization import Int4WeightOnlyConfig, quantize_
quantize_(model, Int4WeightOnlyConfig(group_size=32))
"""
"""What TorchAO's README and its first example do, and what its quick start did, in a nutshell."""


class Toy(torch.nn.Module):
    """As in those examples: two layers without bias."""

    def __init__(self):
        super().__init__()
        self.linear1 = torch.nn.Linear(256, 256, bias=False)
        self.linear2 = torch.nn.Linear(256, 256, bias=False)

    def forward(self, x):
        return self.linear2(self.linear1(x))


@pytest.mark.parametrize(("code", "smaller"), [(SHORT, 3), (FIRST, 1.8), (OLDER, 3)])
def test_programs_for_torchao_run_with_the_import_changed(code, smaller, tmp_path):
    torch.manual_seed(0)
    model = Toy().eval().to(torch.bfloat16)
    before, x = copy.deepcopy(model), torch.randn(2, 256, dtype=torch.bfloat16)
    exec(code.replace("torchao.quantization", "fewbit"), {"model": model})
    error = (model(x) - before(x)).norm() / before(x).norm()
    assert 0 < error < (0.03 if "Int8" in code else 0.2)
    sizes = []
    for name, saved in (("before", before), ("after", model)):
        torch.save(saved.state_dict(), tmp_path / name)
        sizes.append((tmp_path / name).stat().st_size)
    assert sizes[0] > smaller * sizes[1]
