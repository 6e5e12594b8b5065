"""Folders of compressed-tensors, packed bit by bit by the test, come out value for value."""

import json

import numpy as np
import pytest
from packed_models import (
    E4m3,
    Integers,
    bf16,
    compressed,
    llama_integers,
    packed_llama,
    random_integers,
    write_folder,
)
from tiny_models import CONFIGS, random_weights

from fewbit.checkpoint.compressed_config import Targets, read_config
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, MissingError, NumericalError, UnsupportedError
from fewbit.formats import fp8
from fewbit.formats.registry import decode
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.records.kernels import Activations
from fewbit.records.kv import KvForm, KvScales

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


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("bits", "group", "padded"),
    [
        *((bits, 32, False) for bits in range(2, 9)),
        *((bits, 32, True) for bits in (3, 5, 6, 7)),
        (4, None, False),
        (8, None, False),
        (3, None, True),
    ],
)
def test_pack_quantized_weights_come_out_value_for_value(tmp_path, bits, group, padded, symmetric):
    matrices = {Q: random_integers(bits, (64, 64), bits, group, symmetric=symmetric)}
    folder = packed_llama(
        tmp_path / "m",
        lambda m: compressed(m, symmetric=symmetric, padded=padded),
        quantization(scheme(bits, group, symmetric=symmetric)),
        matrices,
    )
    with open_model(folder) as source:
        slot = "layers.0.q.weight"
        info, tensor = source.info(slot), source.read(slot)
        where = f"g{group}" if group else "row"
        assert info.format.name == f"int{bits}-{where}{'' if symmetric else '-asym'}"
        assert tensor.spec == info.format and tensor.nbytes == info.nbytes
        assert info.activations is Activations.BF16 and info.note == ""
        assert np.array_equal(decode(tensor), matrices[Q].values())


def test_a_whole_model_runs_on_the_kernels_of_its_formats(tmp_path):
    matrices = llama_integers(4, 32, symmetric=True)
    folder = packed_llama(
        tmp_path / "m", lambda m: compressed(m, symmetric=True), quantization(scheme()), matrices
    )
    source = open_model(folder)
    kernels = planned_kernels(source, RunSettings())
    inside = [k for k in kernels if k.slot.startswith("layers.")]
    assert {k.format for k in inside} == {"int4-g32"} and {k.activations for k in inside} == {
        "bf16"
    }
    assert not any(k.note for k in kernels)
    runner = runner_of(source, RunSettings(threads=1))
    assert np.isfinite(np.concatenate(list(runner.score(np.arange(5))))).all()


def test_groups_are_found_by_name_then_pattern_then_class(tmp_path):
    groups = quantization(
        scheme(4) | {"targets": ["re:.*self_attn.*", "model.layers.0.mlp.up_proj"]},
        scheme(8, None),
    )
    config = read_config(groups, "config.json")
    targets = Targets(config, "config.json")
    assert targets.of(Q).weights.num_bits == 4
    assert targets.of("model.layers.0.mlp.up_proj").weights.num_bits == 4
    assert targets.of("model.layers.1.mlp.up_proj").weights.num_bits == 8
    with pytest.raises(BadFileError, match="no config group"):
        targets.of("model.embed_tokens")

    names = [Q, "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj"]
    sizes = [((64, 64), 4, 32), ((96, 64), 4, 32), ((64, 96), 8, None)]
    matrices = {
        name: random_integers(i, *size, symmetric=True)
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    }
    folder = packed_llama(tmp_path / "m", lambda m: compressed(m, symmetric=True), groups, matrices)
    with open_checkpoint(folder) as checkpoint:
        for name, matrix in matrices.items():
            assert np.array_equal(decode(checkpoint.read(f"{name}.weight")), matrix.values())


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:(.*)*x", "re:.*.*.*.*.*x", r"re:(a)\1", "re:" + "a" * 3000, "re:("]
)
def test_a_pattern_that_could_run_for_ever_is_refused(pattern):
    groups = quantization(scheme() | {"targets": [pattern]})
    with pytest.raises(UnsupportedError, match="names modules by"):
        Targets(read_config(groups, "config.json"), "config.json")


@pytest.mark.parametrize(
    "pattern",
    [
        r"re:.*self_attn\.(q|k|v|o)_proj$",
        r"re:model\.layers\.\d+\.mlp\.[a-z_+*]+",
        "re:(?!.*lm_head).*",
    ],
)
def test_patterns_of_real_files_are_taken(pattern):
    Targets(read_config(quantization(scheme() | {"targets": [pattern]}), "c"), "c")


def int8(matrix: Integers, scale=None):
    stored = {
        "weight": (matrix.codes - 128).astype(np.int8),
        "weight_scale": bf16(matrix.scales),
    }
    return stored | ({} if scale is None else {"input_scale": np.float32([scale])})


INT8 = {"num_bits": 8, "type": "int", "symmetric": True}


@pytest.mark.parametrize(
    ("inputs", "scale", "expected"),
    [
        ({**INT8, "strategy": "token", "dynamic": True}, None, (Activations.TOKEN, None, "")),
        ({**INT8, "strategy": "tensor"}, 0.25, (Activations.STATIC, 0.25, "")),
        (
            {**INT8, "strategy": "tensor", "dynamic": True},
            None,
            (Activations.TOKEN, None, "instead of dynamic int8 per tensor"),
        ),
        (
            {**INT8, "strategy": "tensor", "symmetric": False},
            0.25,
            (Activations.TOKEN, None, "per tensor with a zero point"),
        ),
        (None, None, (Activations.BF16, None, "")),
    ],
)
def test_int_quantized_weights_and_their_inputs(tmp_path, inputs, scale, expected):
    matrices = {Q: random_integers(1, (64, 64), 8, None, symmetric=True)}
    group = scheme(8, None, form="int-quantized", inputs=inputs)
    folder = packed_llama(tmp_path / "m", lambda m: int8(m, scale), quantization(group), matrices)
    with open_checkpoint(folder) as checkpoint:
        info = checkpoint.tensors[f"{Q}.weight"]
        assert info.format.name == "int8-row"
        assert (info.activations, info.input_scale) == expected[:2]
        assert expected[2] in info.note and bool(expected[2]) == bool(info.note)
        assert np.array_equal(decode(checkpoint.read(f"{Q}.weight")), matrices[Q].values())


def test_one_scale_for_the_whole_tensor_becomes_one_for_each_row(tmp_path):
    matrix = random_integers(1, (64, 64), 8, None, symmetric=True)
    matrix = Integers(
        8, matrix.codes, np.full((64, 1), 2.0**-9, np.float32), matrix.zeros, matrix.group_of
    )
    group = scheme(8, None, form="int-quantized", strategy="tensor")
    folder = packed_llama(
        tmp_path / "m",
        lambda m: int8(m) | {"weight_scale": np.float32(2.0**-9)},
        quantization(group),
        {Q: matrix},
    )
    with open_checkpoint(folder) as checkpoint:
        assert np.array_equal(decode(checkpoint.read(f"{Q}.weight")), matrix.values())


def test_scales_that_fp16_does_not_hold_are_rounded_and_said(tmp_path):
    matrices = {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)}
    odd = np.float32(0.01) * (1 + np.float32(2.0**-20))
    folder = packed_llama(
        tmp_path / "m",
        with_part("weight_scale", lambda _: np.full((64, 2), odd, np.float32)),
        quantization(scheme()),
        matrices,
    )
    with open_model(folder) as source:
        assert "scales are rounded to fp16" in source.note("layers.0.q.weight")
        kernels = planned_kernels(source, RunSettings())
        assert "rounded to fp16" in kernels[1].note
        scales = source.read("layers.0.q.weight").scales
        assert np.abs(scales.astype(np.float64) - odd).max() <= 2.0**-11 * odd


def test_scales_beyond_fp16_are_decoded_and_said(tmp_path):
    matrices = {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)}
    folder = packed_llama(
        tmp_path / "m",
        with_part("weight_scale", lambda _: np.full((64, 2), 1e-9, np.float32)),
        quantization(scheme()),
        matrices,
    )
    with open_model(folder) as source:
        assert source.info("layers.0.q.weight").format.name == "f32"
        assert "exceed fp16" in source.note("layers.0.q.weight")
        codes = matrices[Q].codes - 8
        values = decode(source.read("layers.0.q.weight"))
        assert np.array_equal(values, codes.astype(np.float32) * np.float32(1e-9))


def test_an_order_of_groups_is_followed(tmp_path):
    plain = random_integers(1, (64, 64), 4, 32, symmetric=True)
    order = np.random.default_rng(0).permutation(64) // 32
    matrix = Integers(4, plain.codes, plain.scales, plain.zeros, order)
    group = scheme(actorder="group")
    for index in (order, np.arange(64) // 32):
        folder = packed_llama(
            tmp_path / str(index[1]) / str(index[2]),
            lambda m, i=index: compressed(m, symmetric=True) | {"weight_g_idx": i.astype(np.int32)},
            quantization(group),
            {Q: matrix},
        )
        with open_checkpoint(folder) as checkpoint:
            values = decode(checkpoint.read(f"{Q}.weight"))
            expected = Integers(4, matrix.codes, matrix.scales, matrix.zeros, index).values()
            assert np.array_equal(values, expected)


@pytest.mark.parametrize("wrong", [2, -1, 1 << 30])
def test_an_order_out_of_range_is_refused(tmp_path, wrong):
    index = np.arange(64, dtype=np.int32) // 32
    index[5] = wrong
    folder = packed_llama(
        tmp_path / "m",
        with_part("weight_g_idx", lambda _: index),
        quantization(scheme(actorder="group")),
        {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)},
    )
    with pytest.raises(BadFileError, match=f"puts input 5 into group {wrong} of 2"):
        open_checkpoint(folder)


def test_inputs_that_no_kernel_reads_are_decoded_and_said(tmp_path):
    matrices = {
        f"model.layers.{layer}.mlp.{name}_proj": random_integers(1, shape, 4, None, symmetric=False)
        for layer in range(3)
        for name, shape in (("gate", (40, 64)), ("up", (40, 64)), ("down", (64, 40)))
    }
    folder = packed_llama(
        tmp_path / "m",
        lambda m: compressed(m, symmetric=False),
        quantization(scheme(4, None, symmetric=False)),
        matrices,
        intermediate_size=40,
    )
    source = open_model(folder)
    assert "no kernel runs int4-row-asym" in source.note("layers.0.down.weight")
    assert "40 columns are not a multiple of 32" in source.note("layers.0.down.weight")
    for name in ("gate", "down"):
        stored = matrices[f"model.layers.0.mlp.{name}_proj"].values()
        assert np.array_equal(decode(source.read(f"layers.0.{name}.weight")), stored)
    runner = runner_of(source, RunSettings(threads=1))
    assert np.isfinite(np.concatenate(list(runner.score(np.arange(5))))).all()


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


@pytest.mark.parametrize(
    ("part", "change", "error", "message"),
    [
        ("weight_packed", lambda a: a[:, :-1], BadFileError, "7 words for 64 codes of 4 bits"),
        ("weight_packed", lambda a: a.astype(np.int64), BadFileError, "is in i64 where i32"),
        ("weight_shape", lambda a: a[::-1] + 1, BadFileError, "says"),
        ("weight_shape", lambda a: a * 0 - 1, BadFileError, "says"),
        (
            "weight_scale",
            lambda a: bf16(np.ones((64, 3), np.float32)),
            BadFileError,
            "group strategy",
        ),
        ("weight_scale", lambda a: np.full((64, 2), np.nan, np.float32), NumericalError, "is nan"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(tmp_path, part, change, error, message):
    folder = packed_llama(
        tmp_path / "m",
        with_part(part, change),
        quantization(scheme()),
        {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)},
    )
    with pytest.raises(error, match=message):
        open_model(folder).read("layers.0.q.weight")


def test_a_part_that_is_missing_is_named(tmp_path):
    def pack(matrix):
        stored = compressed(matrix, symmetric=True)
        del stored["weight_scale"]
        return stored

    matrices = {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)}
    folder = packed_llama(tmp_path / "m", pack, quantization(scheme()), matrices)
    with pytest.raises(MissingError, match="weight_scale"):
        open_model(folder)


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        ({"config_groups": {"g": {"targets": "Linear"}}}, BadFileError, "cannot be read"),
        ({"config_groups": {}}, BadFileError, "no config group"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, UnsupportedError, "transforms"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, UnsupportedError, "sparse"),
        ({"config_groups": {"g": scheme(9)}}, UnsupportedError, "has 9 bits"),
        ({"config_groups": {"g": {"targets": ["Linear"]}}}, UnsupportedError, "does not say how"),
    ],
)
def test_configurations_that_cannot_be_followed_are_refused(tmp_path, stated, error, message):
    folder = packed_llama(
        tmp_path / "m",
        lambda m: compressed(m, symmetric=True),
        quantization(scheme()) | stated,
        {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)},
    )
    with pytest.raises(error, match=message):
        open_model(folder)


WEIGHTS = scheme()


def with_kept(folder, scheme, kept):
    """The tiny Llama with a packed matrix, and stored scales for keys and values."""

    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    tensors = dict(random_weights(CONFIGS["llama"])) | kept
    del tensors[f"{Q}.weight"]
    tensors |= {f"{Q}.{n}": a for n, a in compressed(matrix, symmetric=True).items()}
    stated = quantization(WEIGHTS, kv_cache_scheme=scheme)
    config = {**CONFIGS["llama"], "quantization_config": stated}
    return write_folder(folder / "m", config, tensors)


KEPT = {"num_bits": 8, "type": "float", "strategy": "tensor"}
TWO_OF_EACH_LAYER = {
    f"model.layers.{layer}.self_attn.{side}_scale": np.float32([0.5 + layer])
    for layer in range(3)
    for side in "kv"
}


@pytest.mark.parametrize(("kind", "form"), [("float", KvForm.FP8), ("int", KvForm.INT8)])
def test_stored_scales_of_keys_and_values_stay_with_the_model(tmp_path, kind, form):
    with open_model(with_kept(tmp_path, KEPT | {"type": kind}, TWO_OF_EACH_LAYER)) as source:
        rows = tuple((0.5 + layer,) * 2 for layer in range(3))
        assert source.kv_scales == KvScales(form=form, keys=rows, values=rows)
        assert source.checkpoint.notes == ()
        assert not any("k_scale" in name for name in source.checkpoint.tensors)


@pytest.mark.parametrize(
    ("scheme", "change"),
    [
        (KEPT, {"model.layers.0.self_attn.q_scale": np.float32([1])}),
        (KEPT | {"strategy": "attn_head"}, {}),
        (KEPT | {"num_bits": 4}, {}),
        (None, {}),
    ],
)
def test_stored_scales_of_another_kind_are_left_out_and_said(tmp_path, scheme, change):
    with open_model(with_kept(tmp_path, scheme, TWO_OF_EACH_LAYER | change)) as source:
        assert source.kv_scales is None
        assert f"{6 + len(change)} stored scales" in source.checkpoint.notes[0]


def test_a_stored_scale_that_is_no_number_is_refused(tmp_path):
    wrong = {"model.layers.1.self_attn.v_scale": np.float32([0])}
    with pytest.raises(BadFileError, match="not one positive number"):
        open_model(with_kept(tmp_path, KEPT, TWO_OF_EACH_LAYER | wrong))


def test_the_configuration_leaves_out_how_weights_are_packed(tmp_path):
    matrices = {Q: random_integers(1, (64, 64), 4, 32, symmetric=True)}
    folder = packed_llama(
        tmp_path / "m", lambda m: compressed(m, symmetric=True), quantization(scheme()), matrices
    )
    with open_checkpoint(folder) as checkpoint:
        assert "quantization_config" in json.loads((folder / "config.json").read_text())
        assert "quantization_config" not in checkpoint.facts.config
        names = list(checkpoint.tensors)
        assert f"{Q}.weight" in names and f"{Q}.weight_packed" not in names
        assert len(checkpoint.digest(f"{Q}.weight")) == 64
        checkpoint.release(f"{Q}.weight")
        with pytest.raises(MissingError):
            checkpoint.read(f"{Q}.weight_packed")
