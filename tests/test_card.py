"""`fewbit card`."""

import pytest
import sample_evaluation as sample
from msgspec.structs import replace
from test_job import command, model, text  # noqa: F401 - fixtures

from fewbit.checkpoint.checkpoint import content_digest
from fewbit.checkpoint.open import open_checkpoint
from fewbit.cli.app import run
from fewbit.records.base import to_json
from fewbit.records.manifest import read_manifest
from fewbit.report.card import published_name


@pytest.fixture(scope="module")
def artefact(tmp_path_factory, model, text):  # noqa: F811
    out = tmp_path_factory.mktemp("card") / "small"
    assert run(command(model, text, out)) == 0
    return out


def evaluation(tmp_path, digest, size):
    found = sample.evaluation(0.05)
    found = replace(
        found,
        candidate=replace(found.candidate, bytes=size),
        identity=replace(found.identity, candidate_sha256=digest),
    )
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
    with open_checkpoint(artefact) as checkpoint:
        own = content_digest(checkpoint)
    given = ["card", str(artefact), "--evaluation"]
    assert run([*given, str(evaluation(tmp_path, own, size))]) == 0
    said = (artefact / "README.md").read_text()
    assert "language/kl: 0.05" in said
    assert "verdict: " in said
    for other in ("0" * 64, ""):  # of another model with as many bytes, or of one behind a URL
        assert run([*given, str(evaluation(tmp_path, other, size))]) == 2
        assert "give the evaluation of this one" in capsys.readouterr().err


def test_what_cannot_be_read_is_refused(artefact, tmp_path, capsys):
    assert run(["card", str(tmp_path)]) == 2
    assert run(["card", str(artefact), "--evaluation", str(tmp_path / "no.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_folder_has_a_card_that_does_not_depend_on_its_place(artefact, tmp_path, model, text):  # noqa: F811
    for name in ("one", "other"):
        assert run(command(model, text, tmp_path / name)) == 0
    one, other = ((tmp_path / name / "README.md").read_text() for name in ("one", "other"))
    assert one == other
    assert one.startswith(f"---\nbase_model: {model.name}\nbase_model_relation: quantized\n")
    assert "fewbit generate . " in one and str(tmp_path) not in one


def test_an_export_has_a_card_and_says_quantized_only_where_it_is(artefact, tmp_path, model):  # noqa: F811
    for name, source in (("q", artefact), ("plain", model)):
        target = "compressed-tensors" if name == "q" else "hf"
        arguments = ["export", str(source), "--to", target, "--out", str(tmp_path / name)]
        assert run([*arguments, "--requantize"]) == 0
    quantized, plain = ((tmp_path / name / "README.md").read_text() for name in ("q", "plain"))
    assert "base_model_relation: quantized" in quantized and "vllm serve ." in quantized
    assert "quantized" not in plain.split("---")[1]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/a/.cache/fewbit/models/org--name/file.gguf", "org/name"),
        ("/home/a/.cache/huggingface/hub/models--org--name/snapshots/1", "org/name"),
        ("small-1.5B", "small-1.5B"),
        ("/m/small-1.5B.gguf", "small-1.5B"),
    ],
)
def test_a_source_is_called_what_it_is_published_as_where_that_can_be_seen(path, name):
    assert published_name(path) == name
