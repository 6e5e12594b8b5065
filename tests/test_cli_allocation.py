"""`fewbit quantize --target-size` and `--target-bpw`."""

import json

import numpy as np
import pytest
from msgspec.structs import replace
from tiny_subjects import CONFIG, letters, write_subject

from fewbit.calibrate.mix import CalibrationSettings, Ingredient, held_out_windows
from fewbit.calibrate.mix import calibration_windows as read_windows
from fewbit.cli.allocation import TargetOptions, require_kept
from fewbit.cli.app import run as run_command
from fewbit.errors import FaultError, MissingError, UnsupportedError, UsageError
from fewbit.model.weights import open_model
from fewbit.quantization.allocating import base_recipe
from fewbit.quantization.target import parse_bits
from fewbit.records.manifest import read_manifest


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_subject(tmp_path_factory.mktemp("t") / "m")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "letters.jsonl"
    lines = (json.dumps({"text": d.text}) for d in letters(documents=60, characters=100).documents)
    path.write_text("\n".join(lines))
    return path


def run(model, text, out, *options, recipe="rtn"):
    common = ("--recipe", recipe, "--out", str(out), "--calibration", str(text), "--threads", "1")
    return run_command(["quantize", str(model), *common, "--window", "64", *options])


@pytest.mark.parametrize("recipe", ["rtn-int8-g32", "gptq"])
def test_bits_per_weight_are_kept_and_the_manifest_says_how(tmp_path, model, text, recipe, capsys):
    out = tmp_path / "out"
    options = ("--target-bpw", "5.5", "--calibration-windows", "8")
    assert run(model, text, out, *options, recipe=recipe) == 0
    manifest = read_manifest(out)
    found = manifest.allocation
    assert manifest.bits_per_weight <= 5.5
    assert manifest.recipe.method == found.method == recipe.partition("-")[0]
    assert manifest.recipe.name == f"{found.method}-5.5bpw"
    assert found.allocated.divergence <= found.uniform.divergence or found.chosen == "uniform"
    assert len(found.sensitivities) == 1 + 7 * CONFIG["num_hidden_layers"]
    assert "the best uniform one" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("recipe", ["rtn", "gptq"])
def test_formats_that_were_chosen_on_another_text_are_not_taken(  # noqa: PLR0917
    tmp_path, model, text, recipe, monkeypatch, capsys
):
    options = ("--target-bpw", "5.5", "--calibration-windows", "8")
    mine, out = tmp_path / "mine.jsonl", tmp_path / "out"
    mine.write_text(text.read_text())
    with monkeypatch.context() as patched:
        patched.setattr("fewbit.quantization.execute", interrupted)
        assert run(model, mine, out, *options, recipe=recipe) == 75
    mine.write_text(turned(text))
    assert run(model, mine, out, *options, recipe=recipe) == 2
    assert "was done with another" in capsys.readouterr().err
    mine.write_text(text.read_text())
    assert run(model, mine, out, *options, recipe=recipe) == 0


def interrupted(*_):
    raise KeyboardInterrupt


def turned(text):
    """Return the same documents, the last first."""
    return "\n".join(reversed(text.read_text().splitlines()))


def test_without_a_target_there_is_no_allocation(tmp_path, model, text):
    assert run(model, text, tmp_path / "out", recipe="imatrix-int4-g32") == 0
    assert read_manifest(tmp_path / "out").allocation is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target-bpw", "4", "--target-size", "1MB"), "give one of them"),
        (("--target-size", "90"), "the model takes"),
        (("--target-size", "x"), "is no size"),
        (("--target-bpw", "0"), "bits per weight"),
        (("--target-bpw", "32"), "as it is; ask for less"),
    ],
)
def test_targets_that_cannot_be_are_refused(model, text, options, message, capsys):
    out = model.parent / "refused"
    assert run(model, text, out, *options) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_the_name_of_a_method_is_a_recipe_only_for_a_target():
    assert base_recipe("rtn", parse_bits(4)).method == "rtn"
    with pytest.raises(UnsupportedError):
        base_recipe("rtn", None)
    with pytest.raises(MissingError):
        base_recipe("absent.toml", parse_bits(4))
    with pytest.raises(UsageError):
        TargetOptions(target_size="1MB", target_bpw=4.0).target()


def test_an_artefact_above_its_target_is_our_fault(tmp_path, model, text):
    out = tmp_path / "out"
    run(model, text, out, "--target-bpw", "6")
    manifest = read_manifest(out)
    require_kept(manifest, out)
    planted = replace(manifest, allocation=replace(manifest.allocation, target_bytes=9))
    with pytest.raises(FaultError, match="more than the target"):
        require_kept(planted, out)


def test_held_out_windows_are_others(model, text):
    chosen = CalibrationSettings(
        mix=(Ingredient(str(text)), Ingredient("samples")), windows=12, length=64, threads=1
    )
    with open_model(model) as source:
        seen = read_windows(source, chosen)
        held_out = held_out_windows(source, chosen, 12, seen)
        again = held_out_windows(source, chosen, 12, seen)
    assert len(held_out) >= 10
    known = {window.tobytes() for window in seen.windows}
    assert not known & {window.tobytes() for window in held_out}
    assert all(map(np.array_equal, held_out, again))


def test_a_window_that_calibration_has_seen_is_left_out(model, tmp_path):
    """The planted case: a text of one window, which both would take."""
    path = tmp_path / "short.txt"
    path.write_text("a" * 63)
    chosen = CalibrationSettings(mix=(Ingredient(str(path)),), windows=1, length=64)
    with open_model(model) as source:
        assert len(held_out_windows(source, chosen, 1, None)) == 1
        assert held_out_windows(source, chosen, 1, read_windows(source, chosen)) == ()
