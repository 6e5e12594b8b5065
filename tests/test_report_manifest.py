"""`fewbit inspect --manifest`."""

import pytest
from quantize_cases import folder
from test_walk import calibration

from fewbit.cli.app import run
from fewbit.model.weights import open_model
from fewbit.quantization import QuantizeSettings, quantize
from fewbit.recipes import built_in
from fewbit.records.manifest import read_manifest


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    out = tmp_path_factory.mktemp("manifest")
    settings = QuantizeSettings(calibration=calibration(), threads=1)
    with open_model(folder(out)) as source:
        quantize(source, built_in("gptq-int4-g64"), out / "small", settings)
    return out / "small"


def test_the_worst_tensor_comes_first_and_kept_ones_last(artefact, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["inspect", str(artefact), "--manifest"]) == 0
    lines = capsys.readouterr().out.splitlines()
    entries = [e for e in read_manifest(artefact).tensors if e.status == "quantized"]
    worst = max(entries, key=lambda entry: entry.relative_error)
    assert lines[1].split()[0] == worst.stored
    shown = [float(line.split()[3]) for line in lines[1 : len(entries) + 1]]
    assert shown == sorted(shown, reverse=True)
    assert "norm" in lines[len(entries) + 1]
    down = next(line for line in lines if "layers.1.mlp.down_proj" in line)
    assert "asked for int4-g64; int4-g64 does not divide 96 columns" in down
    assert " 0.0" in down and "gptq" in down
    said = " ".join(lines)
    assert read_manifest(artefact).source.sha256 in said
    assert read_manifest(artefact).calibration.tokens_sha256 in said
    assert "Made with fewbit" in said


def test_a_model_without_a_manifest_is_refused(tmp_path, capsys):
    assert run(["inspect", str(folder(tmp_path)), "--manifest"]) == 2
    assert "has no readable manifest" in capsys.readouterr().err


def test_manifest_and_kernels_are_two_lists(artefact, capsys):
    assert run(["inspect", str(artefact), "--manifest", "--kernels"]) == 2
    assert "give one of them" in capsys.readouterr().err
