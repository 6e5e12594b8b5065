"""torchao's folders, written by the test from their description, come out value for value."""

import json

import numpy as np
import pytest
from packed_models import E4m3, Integers, packed_llama, random_integers, write_folder
from tiny_models import CONFIGS, random_weights

from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, UnsupportedError
from fewbit.formats import fp8
from fewbit.formats.registry import decode
from fewbit.model.weights import open_model
from fewbit.records.kernels import Activations

Q = "model.layers.0.self_attn.q_proj"
SLOT = "layers.0.q.weight"


def folder_of(path, kind, attributes, arrays):
    """The tiny Llama with one matrix of a class of torchao."""
    config = {**CONFIGS["llama"], "quantization_config": {"quant_method": "torchao"}}
    tensors = dict(random_weights(config))
    del tensors[f"{Q}.weight"]
    described = {"_type": kind, "_data": attributes, "_tensor_data_names": list(arrays)}
    metadata = {name: json.dumps({"_type": "Tensor"}) for name in tensors}
    metadata |= {f"{Q}.weight": json.dumps(described), "format": "pt"}
    metadata["tensor_names"] = json.dumps([*tensors, f"{Q}.weight"])
    tensors |= {f"{Q}._weight_{name}": array for name, array in arrays.items()}
    return write_folder(path / "m", config, tensors, metadata)


def signed(matrix: Integers):
    half = 1 << (matrix.bits - 1)
    return {
        "qdata": (matrix.codes - half).astype(np.int8),
        "scale": matrix.scales.astype(np.float16),
        "zero_point": (matrix.zeros - half).astype(np.int8),
    }


def intx(bits, group, **other):
    dtype = {"_type": "torch.dtype", "_data": f"int{bits}"}
    return {
        "target_dtype": dtype,
        "block_size": [1, group],
        "activation_quantization": None,
    } | other


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 64), (4, 32), (8, 32)])
def test_integers_come_out_value_for_value(tmp_path, bits, group, symmetric):
    matrix = random_integers(bits, (64, 64), bits, group, symmetric=symmetric)
    folder = folder_of(tmp_path, "IntxUnpackedToInt8Tensor", intx(bits, group), signed(matrix))
    with open_model(folder) as source:
        where = "row" if group == 64 else f"g{group}"
        form = f"int{bits}-{where}{'' if symmetric else '-asym'}"
        assert source.info(SLOT).format.name == form and source.note(SLOT) == ""
        assert source.activations(SLOT) is Activations.BF16
        assert np.array_equal(decode(source.read(SLOT)), matrix.values())


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("PerRow", "SYMMETRIC"), (Activations.TOKEN, "")),
        (("PerTensor", "SYMMETRIC"), (Activations.TOKEN, "instead of PerTensor")),
        (None, (Activations.BF16, "")),
    ],
)
def test_int8_and_the_rounding_of_its_inputs(tmp_path, asked, expected):
    matrix = random_integers(1, (64, 64), 8, None, symmetric=True)
    kwargs = asked and {
        "_type": "QuantizeTensorToInt8Kwargs",
        "_data": {
            "granularity": {"_type": asked[0], "_data": {}},
            "mapping_type": {"_type": "MappingType", "_data": asked[1]},
        },
    }
    attributes = {"block_size": [1, 64], "act_quant_kwargs": kwargs}
    folder = folder_of(tmp_path, "Int8Tensor", attributes, signed(matrix))
    with open_model(folder) as source:
        assert source.info(SLOT).format.name == "int8-row"
        assert source.activations(SLOT) is expected[0]
        assert expected[1] in source.note(SLOT) and bool(expected[1]) == bool(source.note(SLOT))
        assert np.array_equal(decode(source.read(SLOT)), matrix.values())


@pytest.mark.parametrize(("block", "scales"), [([1, 64], (64, 1)), ([64, 64], (1, 1))])
def test_fp8(tmp_path, block, scales):
    codes = np.random.default_rng(0).integers(0, 127, (64, 64), dtype=np.uint8)
    scale = np.full(scales, 0.01, np.float32)
    arrays = {"qdata": E4m3(codes), "scale": scale}
    folder = folder_of(tmp_path, "Float8Tensor", {"block_size": block}, arrays)
    with open_model(folder) as source:
        name = "fp8_e4m3-row" if block[0] == 1 else "fp8_e4m3-tensor"
        assert source.info(SLOT).format.name == name
        assert np.array_equal(decode(source.read(SLOT)), fp8.VALUES[codes] * scale)


@pytest.mark.parametrize(
    ("kind", "attributes", "change", "error", "message"),
    [
        ("Int4Tensor", intx(4, 32), {}, UnsupportedError, "is a 'Int4Tensor' of torchao"),
        ("IntxUnpackedToInt8Tensor", intx(9, 32), {}, UnsupportedError, "int2 to int8"),
        ("IntxUnpackedToInt8Tensor", {"block_size": "x"}, {}, BadFileError, "cannot be read"),
        ("IntxUnpackedToInt8Tensor", intx(4, 0), {}, BadFileError, "belongs to blocks of"),
        ("IntxUnpackedToInt8Tensor", intx(4, 16), {}, BadFileError, "has shape"),
        (
            "IntxUnpackedToInt8Tensor",
            intx(4, 32),
            {"qdata": np.full((64, 64), 8, np.int8)},
            BadFileError,
            "outside -8 to 7",
        ),
        (
            "IntxUnpackedToInt8Tensor",
            intx(4, 32),
            {"act_pre_scale": np.ones(64, np.float32)},
            UnsupportedError,
            "act_pre_scale",
        ),
    ],
)
def test_what_is_not_read_is_refused(  # noqa: PLR0917
    tmp_path, kind, attributes, change, error, message
):
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    folder = folder_of(tmp_path, kind, attributes, signed(matrix) | change)
    with pytest.raises(error, match=message):
        open_model(folder).read(SLOT)


def test_a_folder_without_descriptions_has_nothing_packed(tmp_path):
    folder = packed_llama(tmp_path / "m", None, {"quant_method": "torchao"}, {})
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tensors[f"{Q}.weight"].format.name == "f32"


@pytest.mark.parametrize("granularity", ["PerRow", None, 7, ["PerRow"], {"_type": ["PerRow"]}])
def test_a_rounding_of_another_shape_is_no_crash(tmp_path, granularity):
    matrix = random_integers(1, (64, 64), 8, None, symmetric=True)
    kwargs = {"_type": "QuantizeTensorToInt8Kwargs", "_data": {"granularity": granularity}}
    attributes = {"block_size": [1, 64], "act_quant_kwargs": kwargs}
    folder = folder_of(tmp_path, "Int8Tensor", attributes, signed(matrix))
    with open_model(folder) as source:
        assert source.activations(SLOT) is Activations.TOKEN
        assert "per token instead of" in source.note(SLOT)


def test_half_a_surrogate_pair_in_a_description_is_refused(tmp_path):
    matrix = random_integers(1, (64, 64), 8, None, symmetric=True)
    attributes = {"block_size": [1, 64], "\ud800": 1}
    folder = folder_of(tmp_path, "Int8Tensor", attributes, signed(matrix))
    with pytest.raises(BadFileError, match="half of a pair"):
        open_model(folder)
