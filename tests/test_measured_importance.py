"""Importance matrices taken on text: the inputs of NumPy's run, under llama.cpp's names."""

import numpy as np
import pytest
from test_walk import calibration, traced
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.calibrate.importance import read_importance, write_importance
from fewbit.cli.app import main
from fewbit.model.families import gguf_name
from fewbit.model.weights import open_model
from fewbit.quantization.measured_importance import measure_importance


@pytest.fixture
def source(tmp_path):
    config = CONFIGS["llama"]
    return open_model(write_huggingface(tmp_path / "in", config, random_weights(config)))


def test_sums_are_those_of_the_rows_that_layers_read(source):
    found = measure_importance(source, calibration(), threads=2)
    buffers = traced(source, calibration())
    for slot, buffer in (
        ("layers.1.k.weight", "layers.1.attn_norm"),
        ("head.weight", "final_norm"),
    ):
        entry = found.entries[gguf_name(slot)]
        rows = buffers[buffer].astype(np.float64)
        assert entry.counts.tolist() == [len(rows)]
        # Float paths of two executors agree to 1e-5 of a value, squares to twice that.
        np.testing.assert_allclose(entry.sum_squares[0], (rows**2).sum(0), rtol=1e-4)


def test_experts_have_a_row_each_and_the_tokens_that_reached_them(tmp_path):
    config = CONFIGS["mixtral"]
    source = open_model(write_huggingface(tmp_path / "moe", config, random_weights(config)))
    found = measure_importance(source, calibration(), threads=2)
    entry = found.entries[gguf_name("layers.0.experts.0.gate.weight")]
    mixture = source.config.mixture
    assert len(entry.counts) == mixture.experts
    assert entry.counts.sum() == sum(calibration().lengths) * mixture.used


def test_what_is_written_is_read_again(source, tmp_path):
    found = measure_importance(source, calibration(), threads=1)
    write_importance(tmp_path / "x.gguf", found)
    again = read_importance(tmp_path / "x.gguf")
    assert again.entries.keys() == found.entries.keys()
    assert again.chunks == 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.txt", "must end in .gguf or .dat"),
        ("there.gguf", "exists already"),
        ("folder.gguf", "exists already"),
        ("absent/x.gguf", "cannot be written (No such file or directory)"),
        (f"{'n' * 300}.gguf", "cannot be written (File name too long)"),
    ],
)
def test_the_command_refuses_outputs_before_the_model_is_looked_at(tmp_path, capsys, name, words):
    (tmp_path / "there.gguf").write_bytes(b"x")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["imatrix", str(tmp_path / "no-model"), "--out", str(tmp_path / name)])
    assert ended.value.code == 2 and words in capsys.readouterr().err
