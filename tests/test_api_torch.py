"""`quantize_` on torch models: our kernels behind torch.nn.Linear, torch and torchao as oracles.

A quantized layer is checked against its dequantized weights and inputs rounded by the formats'
truth, in float64. The kernels add up float32 products: each output is a chain of at most as many
roundings as there are inputs, of partial sums that never pass the sum of absolute products, and one
more rounding where the result goes back to half precision.
"""

from __future__ import annotations

import copy
import gc
import io

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch_blocks import CONFIGS, INT4, block

import fewbit
from fewbit.api.torch_linear import QuantizedLinear
from fewbit.errors import (
    UsageError,
)
from fewbit.formats.activations import quantize_tokens

pytestmark = pytest.mark.interop

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def rounded_inputs(name, x):
    """The inputs that the kernel multiplies, float64."""
    values = x.detach().to(torch.float32)
    if name.startswith("fp8"):
        return values.double()
    if name == "w8a8":
        codes, scales = quantize_tokens(values.reshape(-1, values.shape[-1]).numpy())
        rounded = codes.astype(np.float64) * scales[:, None]
        return torch.from_numpy(rounded).reshape(values.shape)
    return values.to(torch.bfloat16).double()


def assert_layer_is_right(name, layer, x, y):
    inputs, weight = rounded_inputs(name, x), torch.from_numpy(layer.dequantized()).double()
    exact, absolute = inputs @ weight.T, inputs.abs() @ weight.abs().T
    if layer.bias is not None:
        exact, absolute = exact + layer.bias.double(), absolute + layer.bias.double().abs()
    # One more rounding than inputs for the bias, and two of scales (s_w s_a, and s (q - z)).
    tolerance = (layer.in_features + 3) * torch.finfo(torch.float32).eps * absolute
    tolerance = tolerance + torch.finfo(x.dtype).eps * (exact.abs() + tolerance)
    assert ((y.double() - exact).abs() <= tolerance).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_layer_multiplies_its_dequantized_weights(name, dtype):
    layer = torch.nn.Linear(96, 50).to(dtype)
    x = torch.randn(2, 5, 96).to(dtype)
    before = layer(x)
    fewbit.quantize_(layer, CONFIGS[name])
    y = layer(x)
    assert y.shape == (2, 5, 50)
    assert y.dtype == dtype
    assert_layer_is_right(name, layer, x, y)
    assert 0 < (y - before).norm() / before.norm() < (0.2 if name == "int4" else 0.05)
    assert torch.equal(layer(x[0, 0]), y[0, 0])
    assert layer(x[:, :0]).shape == (2, 0, 50)


def test_the_check_sees_rounding_and_scales():
    """Planted: inputs that were not rounded, and a scale that is off by a thousandth."""
    layer, x = torch.nn.Linear(96, 50), torch.randn(5, 96)
    fewbit.quantize_(layer, CONFIGS["w8a8"])
    with pytest.raises(AssertionError):
        assert_layer_is_right("fp8", layer, x, layer(x))
    y = layer(x)
    layer.scales = torch.from_numpy(
        (layer.scales.numpy().view(np.float16) * np.float16(1.001)).view(np.uint8)
    )
    with pytest.raises(AssertionError):
        assert_layer_is_right("w8a8", layer, x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["int4", "w8a8"])
def test_every_linear_layer_of_a_model_is_quantized_and_runs(name, dtype):
    model, x = block(dtype), torch.randn(3, 64).to(dtype)
    assert fewbit.quantize_(model, CONFIGS[name]) is None
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    assert len(layers) == 4
    seen = []
    for layer in layers:
        assert isinstance(layer, QuantizedLinear)
        layer.register_forward_hook(lambda *call: seen.append(call))
    with torch.no_grad():
        model(x)
    assert len(seen) == 4
    for layer, (given,), result in seen:
        assert_layer_is_right(name, layer, given, result)
    shown = str(model)
    assert "QuantizedLinear(in_features=64, out_features=96, bias=True, weight=int" in shown


def test_weights_and_bias_without_a_kernel_of_their_own_are_seen():
    layer = torch.nn.Linear(64, 32).to(torch.bfloat16)
    before = layer.weight.detach()
    fewbit.quantize_(layer, INT4)
    assert layer.weight.dtype == torch.bfloat16
    assert layer.weight.shape == (32, 64)
    assert (layer.weight - before).norm() / before.norm() < 0.15
    assert layer.kernel.kernel.startswith("w4.asym.g32/abf16")
    assert {name for name, _ in layer.named_parameters()} == {"bias"}
    assert all("int4-g32-asym" not in key for key in layer.state_dict())


def copies(model, config):
    """A model again: by state dict, safetensors, deepcopy, and pickled as a whole."""
    fresh = {"state": block(), "safetensors": block()}
    for other in fresh.values():
        fewbit.quantize_(other, config)
    fresh["state"].load_state_dict(through_file(model.state_dict()))
    fresh["safetensors"].load_state_dict(load_safetensors(save_safetensors(model.state_dict())))
    return fresh | {
        "deepcopy": copy.deepcopy(model),
        "pickled": through_file(model, weights_only=False),
    }


def through_file(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.parametrize("name", ["int4", "w8a8", "fp8", "int8-tensor"])
def test_a_model_survives_files_and_copies(name):
    model, x = block(), torch.randn(3, 64)
    fewbit.quantize_(model, CONFIGS[name])
    y = model(x)
    assert not torch.equal(block()(x), y)
    for how, again in copies(model, CONFIGS[name]).items():
        assert torch.equal(again(x), y), how
    assert torch.equal(model(x), y)


def test_a_copy_is_independent():
    model, x = block(), torch.randn(3, 64)
    fewbit.quantize_(model, INT4)
    y, other = model(x), block()
    fewbit.quantize_(other, INT4)
    again = copy.deepcopy(model)
    again.load_state_dict(other.state_dict())
    assert torch.equal(again(x), other(x))
    assert torch.equal(model(x), y)


def test_another_format_is_not_loaded():
    model, other = block(), block()
    fewbit.quantize_(model, INT4)
    fewbit.quantize_(other, CONFIGS["int8"])
    with pytest.raises(UsageError, match=r"layer 0\.up holds int8-row/bf16, and .* int4-g32-asym"):
        other.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="codes"):
        other.load_state_dict(block().state_dict())


def test_casts_of_the_model_leave_the_weights():
    model, x = block(), torch.randn(3, 64)
    fewbit.quantize_(model, INT4)
    before = model[0].up.dequantized()
    model.half()
    assert model(x.half()).dtype == torch.float16
    model.to(torch.bfloat16)
    assert model(x.bfloat16()).dtype == torch.bfloat16
    np.testing.assert_array_equal(model[0].up.dequantized(), before)


def test_the_gradient_of_the_input_is_that_of_the_dequantized_weights():
    layer, x = torch.nn.Linear(64, 32), torch.randn(5, 64, requires_grad=True)
    fewbit.quantize_(layer, INT4)
    plain = torch.nn.Linear(64, 32)
    plain.weight.data, plain.bias.data = layer.weight.as_subclass(torch.Tensor), layer.bias.data
    ours, theirs = (
        torch.autograd.grad(module(x).square().sum() * 0 + module(x).sum(), x)[0]
        for module in (layer, plain)
    )
    torch.testing.assert_close(ours, theirs)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((32,), 5.0))


def test_a_layer_that_is_gone_before_its_gradient_is_asked_for():
    def result():
        layer = torch.nn.Linear(64, 32)
        fewbit.quantize_(layer, INT4)
        return layer(torch.randn(5, 64, requires_grad=True))

    y = result()
    gc.collect()
    with pytest.raises(UsageError, match="deleted before its result was used"):
        y.sum().backward()


def test_ops_of_torch_are_well_made():
    """torch's own check: schema, fake tensors, gradients, and tracing."""
    layer, x = torch.nn.Linear(64, 32), torch.randn(5, 64, requires_grad=True)
    fewbit.quantize_(layer, INT4)
    op = torch.ops.fewbit.linear.default
    torch.library.opcheck(op, (x, layer.number, 32))
    gradient = torch.ops.fewbit.linear_gradient.default
    torch.library.opcheck(gradient, (torch.randn(5, 32), layer.number, 64))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_runs_the_same_kernels():
    """The whole graph: a backend without code generation is enough to see that nothing breaks."""
    model, x = block(), torch.randn(3, 64)
    fewbit.quantize_(model, INT4)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    one, two = (x.clone().requires_grad_() for _ in range(2))
    compiled(one).sum().backward()
    model(two).sum().backward()
    torch.testing.assert_close(one.grad, two.grad)
    again = copy.deepcopy(model)
    again.load_state_dict(quantized_block().state_dict())
    with torch.no_grad():
        assert torch.equal(torch.compile(again, backend="aot_eager")(x), again(x))
        assert not torch.equal(again(x), model(x))


def quantized_block():
    other = block()
    fewbit.quantize_(other, INT4)
    return other


def test_a_layer_in_two_places_is_one():
    layer = torch.nn.Linear(64, 64)
    model, x = torch.nn.Sequential(layer, torch.nn.ReLU(), layer), torch.randn(2, 64)
    fewbit.quantize_(model, INT4, lambda _module, fqn: fqn == "2")
    assert model[0] is model[2] is layer
    assert isinstance(layer, QuantizedLinear)
    assert torch.equal(model(x), layer(torch.relu(layer(x))))


def test_tied_weights_stay_tied_among_layers_and_embeddings_keep_theirs():
    embedding = torch.nn.Embedding(40, 64)
    one, two = torch.nn.Linear(64, 40, bias=False), torch.nn.Linear(64, 40)
    one.weight = two.weight = embedding.weight
    model, x = torch.nn.ModuleList([embedding, one, two]), torch.randn(3, 64)
    table = embedding.weight.detach().clone()
    fewbit.quantize_(model, INT4)
    assert one.codes is two.codes
    assert one.packed is two.packed
    assert torch.equal(two(x), one(x) + two.bias)
    assert torch.equal(embedding.weight, table)
    again = copy.deepcopy(model)
    assert again[1].packed is again[2].packed


def test_the_filter_gets_every_module_and_its_name():
    model, seen = block(), {}

    def choose(module, fqn):
        seen[fqn] = module
        return isinstance(module, torch.nn.Linear) and fqn.startswith("2.")

    fewbit.quantize_(model, INT4, choose)
    assert seen[""] is model
    assert seen["0.inner.1"].in_features == 96
    quantized = [n for n, m in model.named_modules() if isinstance(m, QuantizedLinear)]
    assert quantized == ["2.up", "2.inner.1"]
    fewbit.quantize_(model, CONFIGS["int8"])
    assert "int8-row" in str(model[0].up)
    assert "int4-g32-asym" in str(model[2].up)
    with pytest.raises(UsageError, match="no linear layer that is not quantized"):
        fewbit.quantize_(model, INT4)
    with pytest.raises(UsageError, match=r"layer 2\.up is quantized already"):
        fewbit.quantize_(model, INT4, choose)


def test_attention_of_torch_keeps_the_projection_that_it_reads_itself():
    attention = torch.nn.TransformerEncoderLayer(64, 4, 96, batch_first=True).eval()
    x, before = torch.randn(2, 7, 64), []
    attention.linear1.register_forward_hook(lambda *_: before.append(True))
    fewbit.quantize_(attention, INT4)
    assert not isinstance(attention.self_attn.out_proj, QuantizedLinear)
    with torch.no_grad():
        attention(x)
    assert before == [True], "torch's fused path multiplied with the dequantized weights"
