"""torchao both ways: its library loads what we write, and we load what it writes."""

# ruff: noqa: PLC0415  (torch is imported inside the tests, which run in `make test-interop` only)
from __future__ import annotations

import json

import numpy as np
import pytest
from test_export_compressed import artefact, assert_equal_models, exported, layers_in
from test_interop_compressed import decoded_folder, our_logits, their_logits
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.errors import UnsupportedError
from fewbit.formats.registry import decode
from fewbit.model.weights import open_model
from fewbit.records.kernels import Activations

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

CONFIGURATIONS = ("int8-wo", "int8-dynamic", "int4-g32", "int3-row-asym", "fp8")


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_packed_experts_are_refused_for_a_reason(tmp_path, name, monkeypatch):
    """Without the refusal transformers runs experts of random numbers."""
    source = artefact(tmp_path, layers_in("int8-row"), name)
    with pytest.raises(UnsupportedError, match=r"fills with random numbers.*compressed-tensors"):
        exported(source, tmp_path / "refused", "torchao")
    monkeypatch.setattr("fewbit.export.torchao._require_no_experts", lambda *_: None)
    exported(source, tmp_path / "out", "torchao")
    plain = decoded_folder(tmp_path / "out", tmp_path / "plain", name)
    assert np.abs(their_logits(tmp_path / "out") - our_logits(plain)).max() > 0.5


def configuration(name: str):
    import torch
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        MappingType,
        PerAxis,
        PerGroup,
    )

    return {
        "int8-wo": lambda: Int8WeightOnlyConfig(version=2),
        "int8-dynamic": lambda: Int8DynamicActivationInt8WeightConfig(version=2),
        "int4-g32": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
        "int3-row-asym": lambda: IntxWeightOnlyConfig(
            weight_dtype=torch.int3,
            granularity=PerAxis(0),
            mapping_type=MappingType.ASYMMETRIC,
        ),
        "fp8": Float8WeightOnlyConfig,
    }[name]()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_the_library_writes_comes_out_as_it_decodes_it(tmp_path, name):
    import torch
    from safetensors.torch import save_file
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import quantize_
    from transformers import AutoModelForCausalLM

    source = write_huggingface(tmp_path / "in", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    quantize_(
        model,
        configuration(name),
        filter_fn=lambda module, fqn: isinstance(module, torch.nn.Linear) and "lm_head" not in fqn,
    )
    tensors, metadata = flatten_tensor_state_dict(model.state_dict())
    (tmp_path / "out").mkdir()
    save_file(tensors, tmp_path / "out" / "model.safetensors", metadata)
    config = CONFIGS["llama"] | {"quantization_config": {"quant_method": "torchao"}}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with open_model(tmp_path / "out") as ours:
        for module_name, module in model.model.layers.named_modules():
            if not isinstance(module, torch.nn.Linear):
                continue
            values = module.weight.dequantize().float().numpy()
            stored = f"model.layers.{module_name}.weight"
            read = decode(ours.checkpoint.read(stored))
            # Scales are float32 and ours fp16, where it is said.
            near = 2.0**-11 if "fp16" in ours.checkpoint.tensors[stored].note else 0.0
            assert (np.abs(read - values) <= near * np.abs(values)).all()
        expected = Activations.TOKEN if name == "int8-dynamic" else Activations.BF16
        if name != "fp8":
            assert ours.activations("layers.0.q.weight") is expected


FORMS = ("int4-g32", "int4-g32-asym", "int3-row-asym", "int8-row", "int8-g32", "fp8_e4m3-row")


@pytest.mark.parametrize("form", FORMS)
def test_the_library_loads_what_we_write_and_would_write_the_same(tmp_path, form):
    from safetensors import safe_open
    from torchao.prototype.safetensors.safetensors_support import (
        flatten_tensor_state_dict,
        unflatten_tensor_state_dict,
    )

    source = artefact(tmp_path, layers_in(form))
    record = exported(source, tmp_path / "out", "torchao")
    file = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert len(file) - 8 - int.from_bytes(file[:8], "little") == record.bytes
    assert record.changed == ()
    assert_equal_models(source, tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    loaded, left = unflatten_tensor_state_dict(stored, metadata)
    assert not left
    tensors, described = flatten_tensor_state_dict(loaded)
    assert {k: json.loads(v) for k, v in described.items()} == {
        k: json.loads(v) for k, v in metadata.items() if k != "format"
    }
    assert tensors.keys() == stored.keys()
    with open_model(source) as ours:
        for slot in ours.slots:
            weight = loaded[ours.huggingface_name(slot)]
            if hasattr(weight, "qdata"):
                values = decode(ours.read(slot))
                # It multiplies in float32 and rounds to fp16, the type of the layer.
                assert np.array_equal(
                    weight.dequantize().float().numpy(),
                    values.astype(np.float16).astype(np.float32),
                )


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen2", "gemma3"])
def test_transformers_runs_what_we_write(tmp_path, name):
    exported(artefact(tmp_path, layers_in("int4-g32-asym"), name), tmp_path / "out", "torchao")
    plain = decoded_folder(tmp_path / "out", tmp_path / "plain", name, np.float16)
    theirs = their_logits(tmp_path / "out", "float16")
    # Every op rounds to fp16: 2^-11 of values of 1 to 10, through 3 or 4 layers.
    assert np.abs(theirs - our_logits(plain)).max() <= 0.05


def test_transformers_runs_int8_with_int8_inputs(tmp_path):
    exported(
        artefact(tmp_path, layers_in("int8-row", Activations.TOKEN)), tmp_path / "out", "torchao"
    )
    theirs = their_logits(tmp_path / "out")
    plain = our_logits(decoded_folder(tmp_path / "out", tmp_path / "plain", "llama"))
    ours = our_logits(tmp_path / "out")
    far = np.sqrt(np.mean((plain - ours) ** 2))
    assert np.sqrt(np.mean((theirs - ours) ** 2)) < 2 * far
