"""AWQ folders, packed bit by bit by the test, come out value for value."""

import numpy as np
import pytest
from packed_models import awq, llama_integers, packed_llama, random_integers

from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, UnsupportedError
from fewbit.formats.registry import decode
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model

Q = "model.layers.0.self_attn.q_proj"


def quantization(**other):
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
        **other,
    }


def test_a_whole_model_comes_out_value_for_value_and_runs(tmp_path):
    matrices = llama_integers(4, 32, symmetric=False)
    source = open_model(packed_llama(tmp_path / "m", awq, quantization(), matrices))
    assert source.info("layers.1.down.weight").format.name == "int4-g32-asym"
    for module, matrix in matrices.items():
        assert np.array_equal(decode(source.checkpoint.read(f"{module}.weight")), matrix.values())
    runner = runner_of(source, RunSettings(threads=1))
    assert np.isfinite(np.concatenate(list(runner.score(np.arange(5))))).all()


def test_one_group_for_a_row(tmp_path):
    matrix = random_integers(1, (64, 64), 4, None, symmetric=False)
    folder = packed_llama(tmp_path / "m", awq, quantization(group_size=-1), {Q: matrix})
    with open_model(folder) as source:
        assert source.info("layers.0.q.weight").format.name == "int4-row-asym"
        assert np.array_equal(decode(source.read("layers.0.q.weight")), matrix.values())


def test_without_zero_points_the_zero_is_the_middle(tmp_path):
    def pack(matrix):
        stored = awq(matrix)
        del stored["qzeros"]
        return stored

    matrix = random_integers(1, (64, 64), 4, 32, symmetric=True)
    folder = packed_llama(tmp_path / "m", pack, quantization(zero_point=False), {Q: matrix})
    with open_model(folder) as source:
        assert source.info("layers.0.q.weight").format.name == "int4-g32"
        assert np.array_equal(decode(source.read("layers.0.q.weight")), matrix.values())


@pytest.mark.parametrize(
    ("stated", "error", "message"),
    [
        (
            {"version": "gemv"},
            UnsupportedError,
            "layout 'gemv' is not supported",
        ),
        ({"bits": 3}, BadFileError, "cannot be read"),
        ({"group_size": 64}, BadFileError, r"has shape \(2, 64\) where \(1, 64\)"),
    ],
)
def test_other_layouts_are_refused(tmp_path, stated, error, message):
    matrix = random_integers(1, (64, 64), 4, 32, symmetric=False)
    folder = packed_llama(tmp_path / "m", awq, quantization(**stated), {Q: matrix})
    with pytest.raises(error, match=message):
        open_checkpoint(folder)
