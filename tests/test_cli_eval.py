"""`fewbit eval` and `fewbit compress` as commands: exit codes, files, what is printed where."""

import json

import pytest
from tiny_subjects import letters, sharp_weights, write_subject

from fewbit.cli import app
from fewbit.records.base import from_json
from fewbit.records.evaluation import CompressReport, Evaluation
from fewbit.report.kinds import read_record

ONE = ["--executor", "reference", "--threads", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    write_subject(folder / "source", weights=sharp_weights())
    lines = [json.dumps({"text": d.text}) for d in letters(documents=14, characters=170).documents]
    (folder / "text.jsonl").write_text("\n".join(lines))
    (folder / "three.txt").write_text("The sky is blue. Grass is green. The night is long.\n")
    return folder


@pytest.fixture(scope="module")
def compressed(folder):
    """The small artefact of a compression that takes the first recipe."""
    arguments = ["compress", str(folder / "source"), "--out", str(folder / "out"), *ONE]
    arguments += ["--text", str(folder / "text.jsonl"), "--recipe", "rtn-int8-g32"]
    assert app.run([*arguments, "--json", str(folder / "report.json")]) == 0
    return folder / "out"


def test_compress_writes_what_it_says(compressed, folder):
    report = from_json(CompressReport, (folder / "report.json").read_bytes(), name="report")
    assert report.accepted == "rtn-int8-g32"
    assert (compressed / "report.html").is_file()


def test_eval_prints_the_verdict_and_writes_both_reports(compressed, folder, capsys):
    arguments = ["eval", str(compressed), "--against", str(folder / "source"), *ONE]
    arguments += ["--text", str(folder / "text.jsonl")]
    html, record = folder / "e.html", folder / "e.json"
    assert app.run([*arguments, "--html", str(html), "--json", str(record)]) == 0
    assert "ACCEPT" in capsys.readouterr().out
    assert from_json(Evaluation, record.read_bytes(), name="e").verdict.outcome.value == "ACCEPT"
    assert html.read_text().startswith("<!doctype html>")


def test_three_sentences_end_with_4_and_json_alone_on_stdout(compressed, folder, capsys):
    arguments = ["eval", str(compressed), "--against", str(folder / "source"), *ONE]
    code = app.run([*arguments, "--text", str(folder / "three.txt"), "--json", "-"])
    assert code == 4
    found = from_json(Evaluation, capsys.readouterr().out.encode(), name="stdout")
    assert found.verdict.outcome.value == "INCONCLUSIVE"


def test_a_rejection_ends_with_3(folder, capsys):
    arguments = ["compress", str(folder / "source"), "--out", str(folder / "bad"), *ONE]
    arguments += ["--text", str(folder / "text.jsonl"), "--recipe", "rtn-int2-g64"]
    assert app.run(arguments) == 3
    assert "REJECT" in capsys.readouterr().out


@pytest.mark.parametrize(
    "extra",
    [
        ["--text", "/nowhere.txt"],
        ["--windows", "0"],
        ["--executor", "abacus"],
        ["--axes", "kernels", "--text", "/nowhere.txt"],
    ],
)
def test_bad_input_is_one_line_and_2(extra, folder, capsys):
    source = str(folder / "source")
    assert app.run(["eval", source, "--against", source, *extra]) == 2
    error = capsys.readouterr().err
    assert error.startswith("fewbit: ")
    assert error.count("\n") == 1


def test_a_cache_of_fewer_bits_is_measured_against_f16(folder, capsys):
    """A model against itself: nothing but the cache can make a difference."""
    source, record = str(folder / "source"), folder / "kv.json"
    arguments = ["eval", source, "--against", source, *ONE]
    arguments += ["--text", str(folder / "text.jsonl"), "--json", str(record)]
    divergences = []
    for options in ([], ["--kv", "bf16", "--rotate-keys"]):
        assert app.run([*arguments, *options]) in {0, 3}
        found = from_json(Evaluation, record.read_bytes(), name="kv")
        divergences.append(found.language.divergence.mean.value)
    assert divergences[0] == 0.0 < divergences[1]
    assert (found.conditions.kv, found.conditions.rotated_keys) == ("bf16", True)
    assert "KV cache of bf16, its keys rotated" in found.notes[0]


def test_a_cache_type_that_there_is_not_is_refused(folder, capsys):
    source = str(folder / "source")
    assert app.run(["eval", source, "--against", source, "--kv", "int3"]) == 2
    assert "int8" in capsys.readouterr().err
    assert app.run(["eval", source, "--against", source, *ONE, "--kv", "int4"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "heads of a multiple of 32 elements, and this model's have 16" in message


def test_the_record_is_kept_where_the_page_cannot_be_drawn(folder, tmp_path, monkeypatch, capsys):
    """Minutes of measuring are not lost to a page, which can be drawn again of the record."""

    def broken(_):
        raise ValueError("no page")

    monkeypatch.setattr("fewbit.report.html.evaluation_page", broken)
    source, json = str(folder / "source"), tmp_path / "e.json"
    arguments = ["--axes", "kernels", "--json", str(json), "--html", str(tmp_path / "e.html")]
    assert app.run(["eval", source, "--against", source, *arguments]) == 70
    assert read_record(json.read_bytes(), "e.json")[0].name == "evaluation"
