"""`fewbit card`."""

import pytest
import sample_evaluation as sample
from msgspec.structs import replace
from test_job import command, model, text  # noqa: F401 - fixtures

from fewbit.cli.app import run
from fewbit.records.base import to_json
from fewbit.records.manifest import read_manifest


@pytest.fixture(scope="module")
def artefact(tmp_path_factory, model, text):  # noqa: F811
    out = tmp_path_factory.mktemp("card") / "small"
    assert run(command(model, text, out)) == 0
    return out


def evaluation(tmp_path, size):
    found = sample.evaluation(0.05)
    found = replace(found, candidate=replace(found.candidate, bytes=size))
    path = tmp_path / "eval.json"
    path.write_bytes(to_json(found))
    return path


def test_a_card_says_what_it_was_made_from_and_how(artefact, capsys):
    assert run(["card", str(artefact), "--base-model", "org/name"]) == 0
    assert capsys.readouterr().out.strip() == str(artefact / "README.md")
    said, manifest = (artefact / "README.md").read_text(), read_manifest(artefact)
    assert said.startswith("---\nbase_model: org/name\nbase_model_relation: quantized\n")
    assert manifest.calibration.tokens_sha256 in said
    assert manifest.source.sha256 in said
    assert "`gptq-int4-g32` (gptq), formats int4-g32, int6-g32" in said
    assert "Not measured." in said
    assert "fewbit generate small" in said


def test_measured_quality_is_told_and_only_that_of_this_model(artefact, tmp_path, capsys):
    size = read_manifest(artefact).tensor_bytes
    assert run(["card", str(artefact), "--evaluation", str(evaluation(tmp_path, size))]) == 0
    said = (artefact / "README.md").read_text()
    assert "mean KL(source || model): 0.05" in said
    assert "verdict:" in said
    assert run(["card", str(artefact), "--evaluation", str(evaluation(tmp_path, size + 1))]) == 2
    assert "give the evaluation of this one" in capsys.readouterr().err


def test_what_cannot_be_read_is_refused(artefact, tmp_path, capsys):
    assert run(["card", str(tmp_path)]) == 2
    assert run(["card", str(artefact), "--evaluation", str(tmp_path / "no.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
