"""An artefact made again from its manifest."""

import json

import pytest
from msgspec.structs import replace
from quantize_cases import tree_hash
from test_job import command, model, text  # noqa: F401 - fixtures
from tiny_subjects import sharp_weights, write_subject

from fewbit.cli.app import run
from fewbit.quantization.making import differing, doubts
from fewbit.records.base import to_json
from fewbit.records.manifest import manifest_path, read_manifest


@pytest.fixture(scope="module")
def made(tmp_path_factory, model, text):  # noqa: F811
    out = tmp_path_factory.mktemp("again") / "out"
    assert run(command(model, text, out)) == 0
    return out


def again(model, manifest, out, *options):  # noqa: F811
    fixed = ["--from-manifest", str(manifest), "--out", str(out), "--threads", "1"]
    return run(["quantize", str(model), *fixed, *options])


def test_a_manifest_makes_the_same_artefact(tmp_path, model, made, capsys):  # noqa: F811
    assert again(model, made, tmp_path / "a") == 0
    assert "tensors are the manifest's, bit for bit" in " ".join(capsys.readouterr().out.split())
    assert tree_hash(tmp_path / "a") == tree_hash(made)
    assert again(model, manifest_path(made), tmp_path / "b") == 0
    assert tree_hash(tmp_path / "b") == tree_hash(made)


def test_formats_that_were_chosen_for_a_size_are_not_chosen_again(tmp_path, model, text):  # noqa: F811
    first, second = tmp_path / "a", tmp_path / "b"
    arguments = ["quantize", str(model), "--recipe", "rtn", "--target-bpw", "5.5"]
    common = ["--calibration", str(text), "--window", "64", "--calibration-windows", "4"]
    assert run([*arguments, *common, "--out", str(first)]) == 0
    assert again(model, first, second) == 0
    assert tree_hash(second) == tree_hash(first)
    assert read_manifest(second).allocation is not None


def test_propagation_of_the_command_line_is_the_recipes(tmp_path, model, text, made, capsys):  # noqa: F811
    first, second = tmp_path / "a", tmp_path / "b"
    assert run(command(model, text, first, "--propagation", "0.5")) == 0
    assert read_manifest(first).recipe.propagation == 0.5
    assert tree_hash(first).keys() == tree_hash(made).keys()
    assert tree_hash(first) != tree_hash(made)
    assert again(model, first, second) == 0
    assert tree_hash(second) == tree_hash(first)
    capsys.readouterr()
    assert run(command(model, text, tmp_path / "c", "--propagation", "2")) == 2
    assert "propagation is 2" in capsys.readouterr().err


@pytest.mark.interop
@pytest.mark.parametrize("what", ["scales", "weights"])
def test_a_manifest_makes_the_same_tuned_artefact(tmp_path, model, text, what, capsys):  # noqa: F811
    arguments = command(model, text, tmp_path / "a", "--tune", what, "--tune-steps", "4")
    assert run([*arguments, "--tune-windows", "12"]) == 0
    manifest = read_manifest(tmp_path / "a")
    assert manifest.tuned is not None and manifest.tuned.kept > 0
    assert manifest.recipe.tune_steps == manifest.tuned.steps == 4
    assert again(model, tmp_path / "a", tmp_path / "b") == 0
    assert "tensors are the manifest's, bit for bit" in " ".join(capsys.readouterr().out.split())
    one, other = (tree_hash(tmp_path / name) for name in "ab")
    assert one.pop("manifest.json") != other.pop("manifest.json")  # it has the seconds
    assert one == other
    # The settings are what makes them the same: other steps give other bits.
    edited = replace(manifest, tuned=replace(manifest.tuned, steps=3))
    (tmp_path / "edited.json").write_bytes(to_json(edited))
    assert again(model, tmp_path / "edited.json", tmp_path / "c") == 3


def test_another_source_is_refused(tmp_path, made, capsys):
    other = write_subject(tmp_path / "m", weights=sharp_weights())
    assert again(other, made, tmp_path / "out") == 2
    assert "is not what the manifest's artefact was made from" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_text_that_changed_is_refused(tmp_path, model, text, capsys):  # noqa: F811
    copy = tmp_path / "text.txt"
    copy.write_text(text.read_text())
    assert run(command(model, copy, tmp_path / "a")) == 0
    copy.write_text(text.read_text().replace("cat", "cow"))
    assert again(model, tmp_path / "a", tmp_path / "b") == 2
    assert "gives other tokens than it gave" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--recipe", "rtn-q4_0"], "Give either --recipe or --from-manifest"),
        (["--window", "32"], "leave those options out"),
    ],
)
def test_a_manifest_stands_alone(tmp_path, model, made, options, said, capsys):  # noqa: F811, PLR0917
    assert again(model, made, tmp_path / "out", *options) == 2
    assert said in capsys.readouterr().err


def test_a_recipe_in_a_manifest_is_checked_as_any_other(tmp_path, model, made, capsys):  # noqa: F811
    manifest = read_manifest(made)
    path = tmp_path / "edited.json"
    for change, said in (({"method": "no"}, "method 'no'"), ({"name": "../x"}, "named '../x'")):
        edited = replace(manifest, recipe=replace(manifest.recipe, **change))
        path.write_bytes(to_json(edited))
        assert again(model, path, tmp_path / "b") == 2
        assert said in capsys.readouterr().err


def test_neither_a_recipe_nor_a_manifest_is_refused(tmp_path, model, capsys):  # noqa: F811
    assert run(["quantize", str(model), "--out", str(tmp_path / "out")]) == 2
    assert "Give either --recipe or --from-manifest" in capsys.readouterr().err


def test_what_may_keep_bits_from_being_the_same_is_said(made):
    manifest = read_manifest(made)
    assert doubts(manifest) == ()
    other = {**manifest.making.versions, "numpy": "1.0"}
    making = replace(manifest.making, versions=other, kernels="abacus")
    said = doubts(replace(manifest, making=making))
    assert "was 1.0" in said[0]
    assert "was abacus" in said[1]
    propagating = replace(manifest.recipe, propagation=0.5)
    assert "depend on the threads" in doubts(replace(manifest, recipe=propagating))[0]


def test_bits_that_differ_end_with_3_and_name_a_tensor(tmp_path, model, made, capsys):  # noqa: F811
    manifest = read_manifest(made)
    entry = manifest.tensors[3]
    tensors = [replace(e, sha256="0" * 64) if e is entry else e for e in manifest.tensors]
    planted = replace(manifest, tensors=tuple(tensors))
    assert differing(planted, manifest) == (entry.stored,)
    path = tmp_path / "manifest.json"
    path.write_bytes(to_json(planted))
    assert again(model, path, tmp_path / "out") == 3
    assert f"1 of {len(tensors)} tensors are not the manifest's bits" in capsys.readouterr().err


def test_a_manifest_says_what_was_seen_and_how_it_was_damped(made):
    entries = {e.slot: e for e in read_manifest(made).tensors}
    manifest = read_manifest(made)
    layer = entries["layers.0.q.weight"]
    assert layer.damping is not None and layer.damping > 0
    assert layer.calibration_tokens == manifest.calibration.counted
    assert entries["final_norm.weight"].damping is None
    assert set(manifest.making.versions) == {"fewbit", "numpy", "python"}
    assert json.loads(manifest_path(made).read_text())["making"]["text"]["windows"] == 4
