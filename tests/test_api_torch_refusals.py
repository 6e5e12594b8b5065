"""What `quantize_` refuses, with nothing changed."""

from __future__ import annotations

import pytest
import torch
from torch_blocks import CONFIGS, INT4, block

import fewbit
from fewbit.errors import (
    FewbitError,
    KernelError,
    NumericalError,
    UnsupportedError,
    UsageError,
)

pytestmark = pytest.mark.interop


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def refused(error, words, model, config=INT4, *arguments):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(error, match=words):
        fewbit.quantize_(model, config, *arguments)
    assert [type(module) for module in model.modules()] == kinds
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]) or value.isnan().any(), name


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_what_does_not_fit_is_named_and_nothing_changes():
    words = r"layer 0\.inner\.1 has 96 inputs, which do not divide into groups of 64"
    refused(UsageError, words, block(), fewbit.Int4WeightOnlyConfig(group_size=64))
    odd = torch.nn.Sequential(torch.nn.Linear(64, 40), torch.nn.Linear(40, 8))
    refused(KernelError, "layer 1 cannot run .* 40 columns", odd, CONFIGS["int8"])
    refused(UsageError, "layer 1 has 40 inputs", odd)
    fewbit.quantize_(odd, CONFIGS["fp8"])


def test_what_is_no_plain_layer_is_named_and_nothing_changes():
    words = "layer 1 is a Doubled"
    refused(UnsupportedError, words, torch.nn.Sequential(torch.nn.Linear(64, 64), Doubled(64, 64)))
    refused(UnsupportedError, "layer 1 is a LayerNorm", block(), INT4, lambda _m, fqn: fqn == "1")
    refused(UnsupportedError, "is a Sequential", block(), INT4, lambda _m, fqn: not fqn)
    patched = block()
    patched[0].up.forward = lambda x: x
    refused(UnsupportedError, "layer 0.up is a Linear", patched)
    normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(64, 64))
    refused(UnsupportedError, "Parametrized", normed)


def test_a_filter_that_chooses_nothing_is_named_and_nothing_changes():
    words = (
        r"filter 'lambda' of test_api_torch_refusals\.py, line \d+ chose none .* did you mean inner"
    )
    refused(UsageError, words, block(), INT4, lambda _module, fqn: "iner" in fqn)
    refused(UsageError, "no linear layer", torch.nn.LayerNorm(8))
    refused(UsageError, "filter_fn is of type list", block(), INT4, ["0.up"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_located_and_nothing_changes(value):
    model = block()
    model[2].up.weight.data[5, 3] = value
    refused(NumericalError, r"2\.up: .*row 5, column 3.*Nothing was changed", model)


def test_what_is_not_on_the_cpu_is_refused():
    with torch.device("meta"):
        away = torch.nn.Sequential(torch.nn.Linear(64, 64))
    with pytest.raises(UnsupportedError, match=r"layer 0 are .* on meta"):
        fewbit.quantize_(away, INT4)
    refused(UnsupportedError, "device is 'cuda'", block(), INT4, None, torch.device("cuda"))
    refused(UnsupportedError, "float64", block().double())
    model = block()
    fewbit.quantize_(model, INT4, device="cpu")
    with pytest.raises(UnsupportedError, match="a tensor on meta"):
        model(torch.empty(2, 64, device="meta"))


@pytest.mark.parametrize(
    "x",
    [torch.ones(2, 63), torch.ones(64, dtype=torch.int32), torch.tensor(1.0)],
    ids=["width", "integers", "scalar"],
)
def test_an_input_that_does_not_fit(x):
    layer = torch.nn.Linear(64, 32)
    fewbit.quantize_(layer, INT4)
    with pytest.raises(UsageError, match="layer of 64 inputs was given"):
        layer(x)


def test_what_is_no_model():
    for wrong in (torch.ones(3), torch.nn.Linear, "model"):
        with pytest.raises(FewbitError, match="give what fewbit"):
            fewbit.quantize_(wrong, INT4)
