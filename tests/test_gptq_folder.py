"""GPTQ folders, packed bit by bit by the test, come out value for value, whatever their label."""

import numpy as np
import pytest
from packed_models import gptq, llama_integers, packed_llama, random_integers

from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, UnsupportedError
from fewbit.formats.registry import decode
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.records.kernels import Activations

Q = "model.layers.0.self_attn.q_proj"
SLOT = "layers.0.q.weight"


def quantization(bits=4, group=32, *, sym=True, **other):
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": sym,
        "desc_act": False,
        "checkpoint_format": "gptq",
        **other,
    }


def folder_of(path, matrix, stated, pack=gptq):
    return packed_llama(path / "m", pack, stated, {Q: matrix})


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 32), (3, None), (4, 32), (8, 64)])
def test_both_versions_come_out_value_for_value(tmp_path, bits, group, sym, version):
    matrix = random_integers(bits, (64, 64), bits, group, symmetric=sym)
    label = "gptq" if version == 1 else "gptq_v2"
    stated = quantization(bits, group or -1, sym=sym, checkpoint_format=label)
    folder = folder_of(tmp_path, matrix, stated, lambda m: gptq(m, version))
    with open_model(folder) as source:
        info = source.info(SLOT)
        where = f"g{group}" if group and group < 64 else "row"
        assert info.format.name == f"int{bits}-{where}{'' if sym else '-asym'}"
        assert info.activations is Activations.BF16 and info.note == ""
        assert np.array_equal(decode(source.read(SLOT)), matrix.values())


@pytest.mark.parametrize(("version", "label"), [(1, "gptq_v2"), (2, "gptq")])
def test_a_mislabelled_version_is_told_by_its_zeros_where_they_must_be_the_middle(
    tmp_path, version, label
):
    # Read as labelled, every weight would be off by one step, and the model say "!!!!".
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    stated = quantization(checkpoint_format=label)
    folder = folder_of(tmp_path, matrix, stated, lambda m: gptq(m, version))
    with open_model(folder) as source:
        assert np.array_equal(decode(source.read(SLOT)), matrix.values())
        assert f"though it is labelled {label}" in source.note(SLOT)
        assert "its zeros are those of" in planned_kernels(source, RunSettings())[1].note


def test_the_same_file_called_asymmetric_is_read_as_labelled(tmp_path):
    # The negative control: nothing but `sym` lets the values tell the version.
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    stated = quantization(sym=False, checkpoint_format="gptq")
    folder = folder_of(tmp_path, matrix, stated, lambda m: gptq(m, 2))
    with open_model(folder) as source:
        off_by_one = np.float32(matrix.scales[:, matrix.group_of])
        assert np.array_equal(decode(source.read(SLOT)), matrix.values() - off_by_one)


def test_symmetric_zeros_that_are_neither_version_are_refused(tmp_path):
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=False)
    with pytest.raises(BadFileError, match=r"have 7 \(version 1\) or 8 \(version 2\) everywhere"):
        open_checkpoint(folder_of(tmp_path, matrix, quantization()))


def test_a_zero_of_nought_that_wraps_in_version_1_is_said(tmp_path):
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=False)
    matrix.zeros[3, 1] = 0
    with open_model(folder_of(tmp_path, matrix, quantization(sym=False))) as source:
        assert np.array_equal(decode(source.read(SLOT)), matrix.values())
        assert source.note(SLOT) == "1 of its zeros are stored as 15 and read as 0"


def test_a_folder_without_an_index(tmp_path):
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    folder = folder_of(tmp_path, matrix, quantization(), lambda m: gptq(m, index=False))
    with open_model(folder) as source:
        assert np.array_equal(decode(source.read(SLOT)), matrix.values())


@pytest.mark.parametrize("wrong", [2, -1, 2**31 - 1])
def test_an_index_out_of_range_is_refused(tmp_path, wrong):
    def pack(matrix):
        stored = gptq(matrix)
        stored["g_idx"][7] = wrong
        return stored

    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    with pytest.raises(BadFileError, match=f"g_idx' puts input 7 into group {wrong} of 2"):
        open_checkpoint(folder_of(tmp_path, matrix, quantization(), pack))


def test_modules_of_other_bits_are_told_by_their_size(tmp_path):
    matrices = llama_integers(4, 32, symmetric=True)
    matrices[Q] = random_integers(9, (64, 64), 8, 32, symmetric=True)
    stated = quantization(dynamic={r"+:.*layers\.0.*q_proj": {"bits": 8}})
    folder = packed_llama(tmp_path / "m", gptq, stated, matrices)
    source = open_model(folder)
    assert source.info(SLOT).format.name == "int8-g32"
    assert source.info("layers.0.k.weight").format.name == "int4-g32"
    for module, matrix in matrices.items():
        assert np.array_equal(decode(source.checkpoint.read(f"{module}.weight")), matrix.values())
    runner = runner_of(source, RunSettings(threads=1))
    assert np.isfinite(np.concatenate(list(runner.score(np.arange(5))))).all()


def test_other_bits_without_that_are_refused(tmp_path):
    matrix = random_integers(9, (64, 64), 8, 32, symmetric=True)
    with pytest.raises(BadFileError, match=r"has 8 bits, but config\.json says 4"):
        open_checkpoint(folder_of(tmp_path, matrix, quantization()))


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("qweight", lambda a: a[:-1], "words for 64 inputs"),
        ("qweight", lambda a: a.astype(np.int64), "is in i64 where i32"),
        ("qzeros", lambda a: a[:, :-1], r"has shape \(2, 7\) where \(2, 8\)"),
        ("scales", lambda a: a[:, :-1], r"has shape \(2, 63\) where \(2, 64\)"),
        ("g_idx", lambda a: a[:-1], "words for 63 inputs"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(tmp_path, part, change, message):
    def pack(matrix):
        stored = gptq(matrix)
        return stored | {part: change(stored[part])}

    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    with pytest.raises(BadFileError, match=message):
        open_model(folder_of(tmp_path, matrix, quantization(), pack)).read(SLOT)


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        ({"checkpoint_format": "marlin"}, UnsupportedError, "layout 'marlin' is not supported"),
        ({"bits": 5}, UnsupportedError, "with 5 bits is not supported"),
        ({"bits": "4"}, BadFileError, "cannot be read"),
        ({"pack_dtype": "int16"}, BadFileError, "cannot be read"),
    ],
)
def test_other_layouts_are_refused(tmp_path, stated, error, message):
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    with pytest.raises(error, match=message):
        open_checkpoint(folder_of(tmp_path, matrix, quantization(**stated)))
