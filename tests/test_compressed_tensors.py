"""Folders of compressed-tensors, packed bit by bit by the test, come out value for value."""

import numpy as np
import pytest
from compressed_cases import Q, quantization, scheme, with_part
from packed_models import (
    Integers,
    bf16,
    compressed,
    llama_integers,
    packed_llama,
    random_integers,
)

from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, MissingError, NumericalError
from fewbit.formats.registry import decode
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.records.kernels import Activations


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
