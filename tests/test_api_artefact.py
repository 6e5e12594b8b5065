"""`fewbit.quantize`: a recipe in, an artefact out, as the command line writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface
from tiny_text import write_text_files, write_text_model

import fewbit
from fewbit.calibrate.mix import Ingredient
from fewbit.cli.app import run
from fewbit.errors import (
    BadFileError,
    FewbitError,
    MissingError,
    NumericalError,
    OutputError,
    StoppedError,
    UnsupportedError,
    UsageError,
)
from fewbit.records.recipe import Role, Rule

TEXT = "Some text of a few words, again and again. " * 60


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_text_model(tmp_path_factory.mktemp("source"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_writes_what_the_command_line_writes(source, tmp_path, capsys):
    artefact = fewbit.quantize(source, "rtn-int4-g32", out=tmp_path / "ours")
    command = ["quantize", str(source), "--recipe", "rtn-int4-g32", "--out", str(tmp_path / "cli")]
    assert run(command) == 0
    capsys.readouterr()
    ours, theirs = content(tmp_path / "ours"), content(tmp_path / "cli")
    assert ours == theirs
    assert artefact.path == tmp_path / "ours"
    assert artefact.manifest.recipe.name == "rtn-int4-g32"


def test_the_artefact_loads_and_generates(source, tmp_path):
    artefact = fewbit.quantize(str(source), "rtn-int8-g32", out=str(tmp_path / "small"))
    again = fewbit.Artefact.open(tmp_path / "small")
    assert again == artefact
    with artefact.load(fewbit.RunSettings(context=64)) as small, fewbit.load(source) as whole:
        assert small.context == 64
        assert {kernel.format for kernel in small.kernels} == {"int8-g32"}
        error = np.abs(small.logits([1, 2, 3]) - whole.logits([1, 2, 3])).max()
        assert 0 < error < 0.5


def test_calibrates_on_a_file_and_tells_of_progress(source, tmp_path, text):
    told = []
    artefact = fewbit.quantize(
        source,
        "gptq-int4-g32",
        text,
        out=tmp_path / "small",
        threads=2,
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    facts = artefact.manifest.calibration
    assert facts is not None
    assert len(facts.texts) == 1
    kinds = {what.split()[0] for what, _, _ in told}
    assert {"solving", "writing"} <= kinds
    assert all(0 <= done <= total for _, done, total in told)
    assert any(what.startswith("writing") and done == total for what, done, total in told)


def test_takes_settings_and_recipes_as_objects(source, tmp_path, text):
    recipe = fewbit.Recipe(
        name="mine", method="gptq", rules=(Rule(role=Role.LINEAR, format="int4-g32"),)
    )
    settings = fewbit.CalibrationSettings(mix=(Ingredient(str(text)),), windows=3, length=64)
    artefact = fewbit.quantize(source, recipe, settings, out=tmp_path / "a")
    assert artefact.manifest.calibration is not None
    assert artefact.manifest.calibration.windows == 3
    listed = fewbit.quantize(source, recipe, [text, str(text)], out=tmp_path / "b")
    assert listed.manifest.calibration is not None
    assert len(listed.manifest.calibration.texts) == 2


def test_names_the_output_itself_where_nobody_does(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    artefact = fewbit.quantize(source, "rtn-int4-g32")
    assert artefact.path == Path(f"{source.name}-rtn-int4-g32")
    assert (tmp_path / artefact.path / "manifest.json").exists()
    with pytest.raises(OutputError, match="exists already"):
        fewbit.quantize(source, "rtn-int4-g32")


def test_writes_gguf_from_gguf(tmp_path):
    config = CONFIGS["llama"]
    path = write_gguf(tmp_path / "model.gguf", config, random_weights(config))
    artefact = fewbit.quantize(path, "rtn-q8_0", out=tmp_path / "small.gguf")
    assert artefact.path.read_bytes()[:4] == b"GGUF"
    assert artefact.manifest.container == "gguf"


@pytest.mark.parametrize(
    ("recipe", "error", "words"),
    [
        ("rtn-int9-g32", UnsupportedError, "did you mean"),
        ("nothing.toml", MissingError, "cannot be read"),
        (Path("nothing.toml"), MissingError, "cannot be read"),
        (4, UsageError, "type int"),
        (None, UsageError, "type NoneType"),
        (fewbit.Recipe(name="x", method="magic", rules=()), UnsupportedError, "magic"),
        (fewbit.Recipe(name="x", method="rtn", rules=()), UsageError, "no rules"),
    ],
)
def test_a_recipe_that_is_none(source, tmp_path, recipe, error, words):
    with pytest.raises(error, match=words):
        fewbit.quantize(source, recipe, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_none(source, tmp_path, text):
    with pytest.raises(UsageError, match="looks at no text"):
        fewbit.quantize(source, "rtn-int4-g32", text, out=tmp_path / "out")
    for calibration in (5, [5], {"a": 1}):
        with pytest.raises(UsageError, match="calibration is of type"):
            fewbit.quantize(source, "gptq-int4-g32", calibration, out=tmp_path / "out")
    with pytest.raises(MissingError):
        fewbit.quantize(source, "gptq-int4-g32", tmp_path / "nothing.txt", out=tmp_path / "out")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(BadFileError):
        fewbit.quantize(source, "gptq-int4-g32", tmp_path / "empty.txt", out=tmp_path / "out")


def test_a_source_that_is_none(tmp_path):
    with pytest.raises(MissingError):
        fewbit.quantize(tmp_path / "nothing", "rtn-int4-g32", out=tmp_path / "out")
    with pytest.raises(UsageError, match="type list"):
        fewbit.quantize([], "rtn-int4-g32", out=tmp_path / "out")


def test_a_fallback_is_refused_where_that_is_asked_for(source, tmp_path):
    with pytest.raises(UsageError, match="strict forbids"):
        fewbit.quantize(source, "rtn-int4-g128", out=tmp_path / "out", strict=True)
    assert fewbit.quantize(source, "rtn-int4-g128", out=tmp_path / "out").path.exists()


def test_a_weight_that_is_nan_is_named(tmp_path):
    config = CONFIGS["llama"]
    weights = random_weights(config)
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    folder = write_text_files(write_huggingface(tmp_path / "nan", config, weights))
    with pytest.raises(NumericalError, match=r"layers\.1\.mlp\.up_proj.*row 3, column 4"):
        fewbit.quantize(folder, "rtn-int4-g32", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_artefact_that_is_none(source):
    with pytest.raises(MissingError, match="no readable manifest"):
        fewbit.Artefact.open(source)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"windows": "many"}, "windows is 'many'"),
        ({"mix": "samples"}, "Ingredient"),
        ({"mix": ("samples",)}, "Ingredient"),
        ({"windows": 0}, "0 windows"),
    ],
)
def test_settings_of_a_calibration_that_cannot_be(options, words):
    with pytest.raises(UsageError, match=words):
        fewbit.CalibrationSettings(**options)


@pytest.mark.parametrize("out", [5, b"out", ["out"]])
def test_an_output_that_is_none(source, out):
    with pytest.raises(UsageError, match="out is of type"):
        fewbit.quantize(source, "rtn-int4-g32", out=out)


def test_a_job_goes_on_only_where_there_is_one(source, tmp_path, text):
    with pytest.raises(UsageError, match="resume is 'later'; choose from auto, required, never"):
        fewbit.quantize(source, "rtn-int4-g32", out=tmp_path / "out", resume="later")
    with pytest.raises(FewbitError):
        fewbit.quantize(source, "gptq-int4-g32", text, out=tmp_path / "out", resume="required")
    assert not (tmp_path / "out").exists()
    assert fewbit.quantize(
        source, "gptq-int4-g32", text, out=tmp_path / "out", resume="never"
    ).path.exists()


def test_what_the_model_wrote_is_kept_when_it_is_stopped(source, tmp_path):
    text = fewbit.CalibrationSettings(mix=(Ingredient("samples"),), windows=40, length=16)

    out, work = tmp_path / "out", tmp_path / ".out.work"

    def stop(what: str, *_: int) -> None:
        if what == "writing samples" and list(work.glob("samples-*")):  # the second batch of 32
            raise KeyboardInterrupt

    with pytest.raises(StoppedError):
        fewbit.quantize(source, "gptq-int4-g32", text, out=out, threads=1, progress=stop)
    assert len(list(work.glob("samples-*"))) == 1
    fewbit.quantize(source, "gptq-int4-g32", text, out=out, resume="required")
    fewbit.quantize(source, "gptq-int4-g32", text, out=tmp_path / "whole")
    assert content(out) == content(tmp_path / "whole")
    assert not work.exists()


def test_rules_that_never_decide_and_what_no_kernel_runs_are_refused(source, tmp_path):
    linear = Rule(role=Role.LINEAR, format="int4-g32")
    idle = Rule(match="layers.*.down.weight", format="int8-g32")
    odd = Rule(match="layers.*.down.weight", format="int4-channel")
    for rules, error, words in (
        ((linear, idle), UsageError, "never decides"),
        ((odd, linear), UnsupportedError, "stored but not run"),
    ):
        recipe = fewbit.Recipe(name="mine", method="rtn", rules=rules)
        with pytest.raises(error, match=words):
            fewbit.quantize(source, recipe, out=tmp_path / "out")
