"""`fewbit certify` on a tiny model, from the command line to the record and the page."""

from pathlib import Path

import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface
from tiny_text import write_text_files, write_text_model

from fewbit.certify import planted
from fewbit.certify.cases import CertifySettings
from fewbit.certify.room import room_for
from fewbit.cli.app import run
from fewbit.cli.certify import _shallow
from fewbit.model.weights import open_model
from fewbit.records.base import from_json
from fewbit.records.certificate import Certificate, Standing


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_text_model(tmp_path_factory.mktemp("tiny")))


SMALL = ("--draft-tokens", "3", "--concurrency", "1,16", "--tokens", "12", "--threads", "1")


def test_a_draft_is_certified_and_both_files_are_written(model, tmp_path, capsys):
    json, html = tmp_path / "c.json", tmp_path / "c.html"
    code = run(
        ["certify", model, "--draft", "suffix", *SMALL, "--json", str(json), "--html", str(html)]
    )
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "CERTIFIED" in out
    assert "not the original's" in " ".join(out.split())
    found = from_json(Certificate, json.read_bytes(), name="c.json")
    assert found.standing is Standing.CERTIFIED
    assert found.draft == "suffix"
    assert len(found.controls) == 7
    assert all(case.caught for case in found.controls)
    page = html.read_text()
    assert "CERTIFIED" in page
    assert all(control.bug in page for control in found.controls)
    assert "http" not in page.replace("http-equiv", "")


def test_a_model_is_certified_as_a_draft(model, tmp_path, monkeypatch):
    monkeypatch.setattr(planted, "CONTROLS", planted.CONTROLS[:1])
    json = tmp_path / "c.json"
    assert run(["certify", model, "--draft", model, *SMALL, "--json", str(json)]) == 0
    found = from_json(Certificate, json.read_bytes(), name="c.json")
    assert found.draft_model is not None
    assert {case.rule for case in found.enumerations} == {"block", "token"}
    assert found.equality.acceptance.accepted > 0


def short(folder, context):
    """Write the tiny model as one that was made for fewer positions."""
    config = {**CONFIGS["llama"], "max_position_embeddings": context}
    return str(write_text_files(write_huggingface(folder, config, random_weights(config))))


def test_a_model_of_a_short_context_is_certified(tmp_path, monkeypatch):
    monkeypatch.setattr(planted, "CONTROLS", planted.CONTROLS[:1])
    model, json = short(tmp_path, 400), tmp_path / "c.json"
    assert run(["certify", model, "--draft", "suffix", *SMALL, "--json", str(json)]) == 0
    found = from_json(Certificate, json.read_bytes(), name="c.json")
    assert all(case.pages > 2 for case in found.caches)


@pytest.mark.parametrize(
    ("context", "options", "needed", "way_out"),
    [
        (256, (), 392, "a longer context"),
        (400, ("--tokens", "300"), 500, "lower --tokens"),
        (399, ("--long",), 400, "leave --long out"),
    ],
)
def test_a_context_that_is_too_short_is_refused_before_anything_runs(  # noqa: PLR0917
    tmp_path, capsys, monkeypatch, context, options, needed, way_out
):
    monkeypatch.setattr("fewbit.engine.loaded.load_model", None)
    assert run(["certify", short(tmp_path, context), "--draft", "ngram", *options]) == 2
    err = capsys.readouterr().err
    assert f"takes {needed} positions" in err and f"was made for {context}" in err
    assert way_out in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("tokens", [24, 1000])
def test_no_request_is_cut_by_the_context_that_is_asked_for(tmp_path, tokens):
    """And branches have as many pages beside a short context as beside a long one."""
    settings = CertifySettings(tokens=tokens, together=(1, 4))
    with open_model(Path(short(tmp_path, 4096))) as model:
        room = room_for(model, settings)
    assert room.context == max(512, 200 + tokens) and room.sequences == 5
    with open_model(Path(short(tmp_path, 2000 if tokens == 1000 else 400))) as model:
        less = room_for(model, settings)
    assert less.context * less.sequences >= room.context * room.sequences


def test_a_tiny_model_has_fewer_layers_to_leave():
    assert _shallow("exit:8") == "exit:1"
    assert _shallow("ngram+exit:20") == "ngram+exit:1"
    assert _shallow("low-bit:q4_0") == "low-bit:q4_0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--draft", "none"), "--draft is none"),
        (("--draft", "ngram", "--draft-tokens", "x"), "--draft-tokens is 'x'"),
        (("--draft", "ngram", "--draft-tokens", "0"), "is 0"),
        (("--draft", "ngram", "--concurrency", "-1"), "is -1"),
        (("--draft", "ngram", "--tokens", "0"), "tokens is 0"),
        (("--draft", "ngram", "--draft-tree", "99"), "give 0 to 32"),
        (("--draft", "/nowhere.gguf"), "/nowhere.gguf"),
        ((), "--draft"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(model, capsys, options, said):
    assert run(["certify", model, *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
