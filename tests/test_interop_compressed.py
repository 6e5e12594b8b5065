"""compressed-tensors both ways: transformers runs what we write, and we run what it writes."""

# ruff: noqa: PLC0415  (torch is imported inside the tests, which run in `make test-interop` only)
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_export_compressed import artefact, exported, layers_in
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.formats.registry import FLOATS, decode
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.records.kernels import Activations
from fewbit.runtime import reference

pytestmark = pytest.mark.interop

TOKENS = np.random.default_rng(7).integers(0, 320, 60).astype(np.int32)
BOUND = 1e-4
"""Both sides round float32 at each op: see test_interop_transformers.py."""

DENSE = [n for n in CONFIGS if "moe" not in n and "mixtral" not in n]
MIXTURES = [n for n in CONFIGS if n not in DENSE]
EXPERTS_BOUND = 1e-2
"""transformers 5 makes an fp16 parameter of a layer's packed experts and runs them in fp16: sums of
at most 96 products of size 1/sqrt(96), each rounded by 2^-11, three in a row, in at most 4 layers.
A gate of one expert taken for its up moves them by more (test_export_interop.py)."""


def decoded_folder(folder: Path, out: Path, name: str, kind: type = np.float32) -> Path:
    """Write the values of a packed folder as plain float32, those of integers rounded to `kind`."""
    with open_model(folder) as source:
        weights = {}
        for slot in source.slots:
            tensor = source.read(slot)
            values = decode(tensor)
            if tensor.spec not in FLOATS:
                values = values.astype(kind).astype(np.float32)
            shape = values.shape if len(source.info(slot).shape) > 1 else (values.shape[1],)
            weights[source.huggingface_name(slot)] = values.reshape(shape)
    return write_huggingface(out, CONFIGS[name], weights)


def our_logits(folder: Path) -> np.ndarray:
    settings = RunSettings(executor="reference", cache_type=CacheType.F32)
    runner = runner_of(open_model(folder), settings)
    return np.concatenate([rows.copy() for rows in runner.score(TOKENS)])


def their_logits(folder: Path, dtype: str = "float32", **loading: Any) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **loading).eval()
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].float().numpy()


@pytest.mark.parametrize("name", DENSE)
def test_transformers_runs_an_export_of_every_family(tmp_path, name):
    exported(artefact(tmp_path, layers_in("int4-g32"), name), tmp_path / "out")
    plain = decoded_folder(tmp_path / "out", tmp_path / "plain", name)
    assert np.abs(their_logits(tmp_path / "out") - our_logits(plain)).max() <= BOUND


@pytest.mark.parametrize("name", MIXTURES)
def test_transformers_runs_packed_experts(tmp_path, name):
    exported(artefact(tmp_path, layers_in("int4-g32"), name), tmp_path / "out")
    plain = our_logits(decoded_folder(tmp_path / "out", tmp_path / "plain", name))
    assert np.abs(their_logits(tmp_path / "out") - plain).max() <= EXPERTS_BOUND


@pytest.mark.parametrize("form", ["int8-row", "int3-g32", "fp8_e4m3-row", "fp8_e4m3-tensor"])
def test_transformers_runs_experts_in_other_formats(tmp_path, form):
    exported(artefact(tmp_path, layers_in(form), "qwen3-moe"), tmp_path / "out")
    plain = our_logits(decoded_folder(tmp_path / "out", tmp_path / "plain", "qwen3-moe"))
    bound = BOUND if form.startswith("fp8") else EXPERTS_BOUND
    assert np.abs(their_logits(tmp_path / "out") - plain).max() <= bound


@pytest.mark.parametrize("attention", ["int8-g32", "fp8_e4m3-row"])
def test_transformers_tells_experts_of_another_format_from_the_rest(tmp_path, attention):
    recipe = layers_in(attention, **{"layers_*_experts_*": "int4-g32"})
    exported(artefact(tmp_path, recipe, "mixtral"), tmp_path / "out")
    plain = our_logits(decoded_folder(tmp_path / "out", tmp_path / "plain", "mixtral"))
    assert np.abs(their_logits(tmp_path / "out") - plain).max() <= EXPERTS_BOUND


@pytest.mark.parametrize(
    ("form", "inputs", "said"),
    [
        ("int4-g32-asym", Activations.BF16, "with zero points"),
        ("int8-row", Activations.TOKEN, "whose inputs are int8 too"),
    ],
)
def test_what_the_plan_says_of_experts_is_so(tmp_path, form, inputs, said):
    recipe = layers_in(form, inputs)
    record = exported(artefact(tmp_path, recipe, "qwen3-moe"), tmp_path / "out")
    assert any(said in sentence for sentence in record.refusals)
    with pytest.raises(RuntimeError, match="conversion of the weights"):
        their_logits(tmp_path / "out")


def test_experts_of_two_formats_are_said_and_come_out_wrong(tmp_path):
    recipe = layers_in("int4-g32", **{"layers_1_experts_*": "int8-g32"})
    record = exported(artefact(tmp_path, recipe, "qwen3-moe"), tmp_path / "out")
    assert any("all experts like the first" in sentence for sentence in record.refusals)
    try:
        theirs = their_logits(tmp_path / "out")
    except (RuntimeError, ValueError):
        return
    plain = our_logits(decoded_folder(tmp_path / "out", tmp_path / "plain", "qwen3-moe"))
    assert not np.abs(theirs - plain).max() <= EXPERTS_BOUND


@pytest.mark.parametrize(
    "form", ["int3-g32", "int8-g32", "int6-row", "fp8_e4m3-row", "fp8_e4m3-tensor"]
)
def test_transformers_runs_every_format(tmp_path, form):
    exported(artefact(tmp_path, layers_in(form)), tmp_path / "out")
    plain = decoded_folder(tmp_path / "out", tmp_path / "plain", "llama")
    assert np.abs(their_logits(tmp_path / "out") - our_logits(plain)).max() <= BOUND


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("form", ["int4-g32-asym", "int3-g32-asym", "int8-row-asym"])
def test_transformers_decodes_zero_points(tmp_path, form):
    """Packed zero points load only with `dequantize=True`: transformers 5.24 expects them unpacked.

    (compressed-tensors 0.20.1 leaves them so where it packs a model without data; what the package
    writes itself fails alike.) It decodes in the type of the scales, fp16.
    """
    from transformers import CompressedTensorsConfig

    exported(artefact(tmp_path, layers_in(form)), tmp_path / "out")
    plain = decoded_folder(tmp_path / "out", tmp_path / "plain", "llama", np.float16)
    theirs = their_logits(
        tmp_path / "out", quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    assert np.abs(theirs - our_logits(plain)).max() <= BOUND


def test_transformers_runs_mixed_formats(tmp_path):
    recipe = layers_in("int4-g32", layers_1_down_weight="int8-g32")
    exported(artefact(tmp_path, recipe), tmp_path / "out")
    plain = decoded_folder(tmp_path / "out", tmp_path / "plain", "llama")
    assert np.abs(their_logits(tmp_path / "out") - our_logits(plain)).max() <= BOUND


def test_transformers_rounds_inputs_as_our_reference_does(tmp_path, monkeypatch):
    """W8A8. Its scale is absmax / 127.5 where vLLM's kernels and ours have absmax / 127.

    With that scale in our reference, only inputs within a rounding error of the middle of two codes
    differ; but then they change what all later layers round. The control is the model without
    rounded inputs.
    """
    exported(artefact(tmp_path, layers_in("int8-row", Activations.TOKEN)), tmp_path / "out")
    plain = our_logits(decoded_folder(tmp_path / "out", tmp_path / "plain", "llama"))
    theirs, ours = their_logits(tmp_path / "out"), our_logits(tmp_path / "out")
    monkeypatch.setattr(reference, "quantize_tokens", _tokens_as_the_package)
    alike = our_logits(tmp_path / "out")

    def apart(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.sqrt(np.mean((one - other) ** 2)))

    assert apart(theirs, alike) < apart(theirs, plain) / 2
    assert apart(theirs, ours) < 2 * apart(theirs, plain)


def _tokens_as_the_package(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scales = np.abs(x).max(axis=-1) / np.float32(127.5)
    return np.clip(np.rint(x / scales[:, None]), -128, 127).astype(np.int8), scales


SCHEMES = {
    "w4a16": {"num_bits": 4, "symmetric": True, "strategy": "group", "group_size": 32},
    "w4a16-asym": {"num_bits": 4, "symmetric": False, "strategy": "group", "group_size": 32},
    "w3-asym": {"num_bits": 3, "symmetric": False, "strategy": "group", "group_size": 32},
    "w5": {"num_bits": 5, "symmetric": True, "strategy": "channel"},
    "w8a8": {"num_bits": 8, "symmetric": True, "strategy": "channel"},
    "fp8": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
    "fp8-block": {
        "num_bits": 8,
        "type": "float",
        "strategy": "block",
        "block_structure": [32, 32],
    },
    "nvfp4": {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group",
        "group_size": 16,
    },
    "mxfp4": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
}


def saved_by_the_package(folder: Path, name: str):
    """Quantize the tiny Llama by round to nearest with the package; return its decoded weights."""
    import torch
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from transformers import AutoModelForCausalLM

    source = write_huggingface(folder / "in", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    inputs = None
    if name in ("w8a8", "fp8"):
        kind = SCHEMES[name].get("type", "int")
        inputs = QuantizationArgs(num_bits=8, type=kind, strategy="token", dynamic=True)
    scheme = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(**SCHEMES[name]), input_activations=inputs
    )
    config = QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], quantization_status="frozen"
    )
    apply_quantization_config(model, config)
    schemes = {
        name: module.quantization_scheme
        for name, module in model.named_modules()
        if getattr(module, "quantization_scheme", None) is not None
    }
    for module in schemes:
        _calibrate(model.get_submodule(module))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder / "out")
    compressor.update_config(folder / "out")
    return folder / "out", _decoded(folder / "out", schemes)


def _calibrate(module) -> None:
    import torch
    from compressed_tensors.quantization.utils import (
        calculate_qparams,
        compute_dynamic_scales_and_zp,
        generate_gparam,
    )

    arguments = module.quantization_scheme.weights
    weight = module.weight.data
    whole = None
    if arguments.strategy == "tensor_group":
        whole = generate_gparam(weight.min(), weight.max())
        module.weight_global_scale.data.copy_(whole)
    if arguments.strategy == "block":
        height, width = arguments.block_structure
        blocks = weight.reshape(weight.shape[0] // height, height, -1, width)
        scale, zero = calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), arguments)
    elif arguments.strategy == "channel":
        scale, zero = calculate_qparams(weight.amin(1), weight.amax(1), arguments)
    else:
        scale, zero = compute_dynamic_scales_and_zp(weight, arguments, module, global_scale=whole)
    module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    if getattr(module, "weight_zero_point", None) is not None:
        module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))
    assert torch.isfinite(module.weight_scale).all()


def _decoded(folder: Path, modules: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return what the package's decompressor makes of the file, by module."""
    from compressed_tensors.compressors import BaseCompressor
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    decoded = {}
    for name, scheme in modules.items():
        state = {
            part.removeprefix(f"{name}."): tensor
            for part, tensor in tensors.items()
            if part.startswith(f"{name}.")
        }
        compressor = BaseCompressor.get_value_from_registry(scheme.format)
        decoded[name] = compressor.decompress(state, scheme)["weight"].float().numpy()
    return decoded


@pytest.mark.parametrize("name", SCHEMES)
def test_what_the_package_writes_comes_out_as_it_decodes_it(tmp_path, name):
    folder, decoded = saved_by_the_package(tmp_path, name)
    with open_model(folder) as source:
        for module, values in decoded.items():
            ours = decode(source.checkpoint.read(f"{module}.weight"))
            note = source.checkpoint.tensors[f"{module}.weight"].note
            # float32 scales are rounded to fp16 (2^-11 of each), and nvfp4 to bf16 (2^-8).
            near = 2.0**-8 if "bf16" in note else 2.0**-11 if "fp16" in note else 0.0
            assert (np.abs(ours - values) <= near * np.abs(values) + 1e-30).all(), module
    runner = runner_of(open_model(folder), RunSettings(threads=1))
    assert np.isfinite(np.concatenate(list(runner.score(TOKENS[:8])))).all()
