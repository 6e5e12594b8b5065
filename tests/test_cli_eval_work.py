"""`fewbit eval` with axes, gates and folders of work: exit codes and what is said."""

import json

import pytest
from tiny_subjects import letters, sharp_weights, write_subject

from fewbit.cli import app
from fewbit.evaluate import evaluation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    write_subject(folder / "source", weights=sharp_weights())
    lines = [json.dumps({"text": d.text}) for d in letters(documents=12, characters=40).documents]
    (folder / "text.jsonl").write_text("\n".join(lines))
    return folder


def command(folder, *options):
    source = str(folder / "source")
    slow = ["--executor", "reference", "--threads", "1", "--no-floor"]
    text = ["--text", str(folder / "text.jsonl")]
    return ["eval", source, "--against", source, *slow, *text, *options]


@pytest.mark.parametrize(
    ("axes", "said"),
    [("langauge", "did you mean language?"), ("language,xyz", "there are language, tasks")],
)
def test_an_unknown_axis_is_refused_before_anything_runs(folder, capsys, axes, said):
    assert app.run(command(folder, "--axes", axes)) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_gate_decides(folder, tmp_path, capsys):
    codes = {}
    for margin, least in ((0.05, 12), (-0.1, 12), (0.05, 500)):
        gate = tmp_path / "gate.toml"
        rule = f'[[slices]]\nmatch = "language/kl"\nmargin = {margin}\nminimum_items = {least}\n'
        gate.write_text(rule)
        codes[margin, least] = app.run(command(folder, "--gate", str(gate)))
    assert list(codes.values()) == [0, 3, 4]  # inside, over, on too few items
    assert "INCONCLUSIVE" in capsys.readouterr().out


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stopped_run_says_how_it_goes_on_where_something_is_kept(
    folder, tmp_path, capsys, monkeypatch, stop
):
    def stopped(*_):
        raise stop

    monkeypatch.setattr(evaluation, "evaluate", stopped)
    work = str(tmp_path / "kept here")
    assert app.run(command(folder, "--work", work)) == 75
    said = capsys.readouterr().err
    assert f"what was measured is kept in {work}" in said
    assert f"Go on with: fewbit eval {folder}/source" in said and f"--work '{work}'" in said
    if stop is KeyboardInterrupt:
        assert app.run(command(folder)) == 130


def test_a_work_folder_without_a_parent_is_refused(folder, tmp_path, capsys):
    assert app.run(command(folder, "--work", str(tmp_path / "no" / "such"))) == 2
    assert "cannot be written" in capsys.readouterr().err
