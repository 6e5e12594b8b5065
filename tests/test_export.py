"""Plans, refusals and manifests of exports, with the plain Hugging Face target."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.atomic import claimed
from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.checkpoint.safetensors_write import Part, write_shards
from fewbit.cli.app import run
from fewbit.errors import BadFileError, FaultError, OutputError, UsageError
from fewbit.export.cost import expected_error
from fewbit.export.job import export
from fewbit.export.plan import plan_export, require_held
from fewbit.export.target import ExportSettings
from fewbit.export.targets import TARGETS, find_target
from fewbit.formats.registry import decode, parse_format
from fewbit.formats.spec import digest
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.manifest import manifest_path, read_manifest

SETTINGS = ExportSettings()
FOLDERS = [to for to in TARGETS if to not in ("gguf", "torchao")]


def folder(path: Path, name: str = "llama") -> Path:
    return write_huggingface(path / name, CONFIGS[name], random_weights(CONFIGS[name]))


def artefact(path: Path, recipe: str = "rtn-int4-g32", name: str = "llama") -> Path:
    with open_model(folder(path, name)) as source:
        quantize(source, find(recipe), path / "artefact")
    return path / "artefact"


def exported(source: Path, out: Path, to: str = "hf", settings: ExportSettings = SETTINGS):
    with open_model(source) as model:
        return export(plan_export(model, find_target(to, settings)), out, settings)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "mixtral", "qwen3-moe"])
def test_a_gguf_file_becomes_a_folder_of_equal_values(tmp_path, name):
    source = write_gguf(tmp_path / "m.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    exported(source, tmp_path / "out")
    with open_model(source) as one, open_model(tmp_path / "out") as other:
        assert one.slots.keys() == other.slots.keys()
        for slot in one.slots:
            np.testing.assert_array_equal(decode(one.read(slot)), decode(other.read(slot)))


def test_integers_become_floats_only_when_asked(tmp_path):
    source = artefact(tmp_path)
    with open_model(source) as model:
        planned = plan_export(model, find_target("hf", SETTINGS))
        with pytest.raises(UsageError, match=r"int4-g32 to bf16.*--requantize"):
            require_held(planned)
    manifest = exported(source, tmp_path / "out")
    with open_model(source) as one, open_model(tmp_path / "out") as other:
        for slot in one.slots:
            before, after = decode(one.read(slot)), decode(other.read(slot))
            # bf16 keeps 8 bits: half a unit in the last place of each value.
            np.testing.assert_allclose(after, before, rtol=2.0**-8)
            norm = np.linalg.norm(after - before) / np.linalg.norm(before)
            assert manifest.export.errors.get(slot, 0.0) == pytest.approx(norm, rel=1e-3, abs=1e-9)


def test_a_manifest_is_continued(tmp_path):
    source = artefact(tmp_path)
    before = read_manifest(source)
    after = exported(source, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == after
    assert (after.source, after.recipe, after.container) == (before.source, before.recipe, "hf")
    old = {entry.slot: entry for entry in before.tensors}
    for entry in after.tensors:
        first, second = old[entry.slot].relative_error, after.export.errors.get(entry.slot, 0.0)
        assert entry.method == old[entry.slot].method
        assert entry.relative_error == pytest.approx(first + second * (1 + first))


def test_the_manifest_of_a_source_without_one(tmp_path):
    source = folder(tmp_path)
    manifest = exported(source, tmp_path / "out")
    assert manifest.recipe.name == "export-hf"
    with open_model(source) as model:
        assert {entry.source for entry in manifest.tensors} == set(model.checkpoint.tensors)
    assert manifest.export.plan.changed == ()


def test_a_source_without_a_manifest_is_hashed_once(tmp_path, monkeypatch):
    hashed = []
    digest_of = SafetensorsFile.digest
    monkeypatch.setattr(
        SafetensorsFile, "digest", lambda file, name: hashed.append(name) or digest_of(file, name)
    )
    source = folder(tmp_path)
    with open_model(source) as model:
        planned = plan_export(model, find_target("hf", SETTINGS))
        export(planned, tmp_path / "out", SETTINGS, card=lambda manifest: manifest.recipe.name)
        assert sorted(hashed) == sorted(model.checkpoint.tensors)


def test_the_manifest_of_the_file_that_was_here_before_is_not_continued(tmp_path, capsys):
    source = tmp_path / "m.gguf"
    for recipe, out in (("rtn-q4_0", source), ("rtn-q8_0", tmp_path / "new.gguf")):
        with open_model(folder(tmp_path)) as model:
            quantize(model, find(recipe), out)
    (tmp_path / "new.gguf").replace(source)
    arguments = ["export", str(source), "--to", "hf", "--requantize", "--out"]
    assert run([*arguments, str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split()).replace(" ", "")
    assert "m.gguf.manifest.jsonisnotofm.gguf:" in said and "q8_0,notq4_0.Itisnotcontinued." in said
    manifest = read_manifest(tmp_path / "out")
    assert manifest.recipe.name == "export-hf"
    assert manifest.source.path == str(source)


def test_a_source_that_is_not_what_its_manifest_hashed_is_refused(tmp_path):
    source = tmp_path / "m.gguf"
    with open_model(folder(tmp_path)) as model:
        quantize(model, find("rtn-q4_0"), source)
    content = bytearray(source.read_bytes())
    content[-40] ^= 1
    source.write_bytes(content)
    with pytest.raises(BadFileError, match=r"1 tensors of .*, the first .*remove that"):
        exported(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    manifest_path(source).unlink()
    exported(source, tmp_path / "out")


def test_the_manifest_of_another_program_does_not_stop_an_export(tmp_path):
    source = folder(tmp_path)
    (source / "manifest.json").write_text('{"files": {"model.safetensors": "0" }}')
    assert exported(source, tmp_path / "out").recipe.name == "export-hf"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "manifest.json").write_text("{}")
    with pytest.raises(OutputError, match="exists already"):
        exported(source, tmp_path / "there")


def test_an_unused_tensor_is_declared_absent(tmp_path):
    weights = {**random_weights(CONFIGS["llama"]), "mtp.extra": np.ones((4, 4), np.float32)}
    source = write_huggingface(tmp_path / "extra", CONFIGS["llama"], weights)
    manifest = exported(source, tmp_path / "out")
    absent = [entry.source for entry in manifest.tensors if entry.status == "absent"]
    assert absent == ["mtp.extra"]


def test_an_existing_output_is_left_alone(tmp_path):
    source, out = folder(tmp_path), tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("keep")
    with pytest.raises(OutputError, match="exists already"):
        exported(source, out)
    assert [p.name for p in out.iterdir()] == ["mine"]


def test_a_long_name_is_taken_in_parts(tmp_path):
    parts = ExportSettings(split_bytes=50_000)
    exported(folder(tmp_path), tmp_path / f"{'x' * 185}.gguf", "gguf", parts)
    assert len(list(tmp_path.glob("x*-of-*.gguf"))) > 1
    with pytest.raises(OutputError, match="choose one of at most 190"):
        exported(folder(tmp_path), tmp_path / f"{'x' * 186}.gguf", "gguf", parts)


@pytest.mark.parametrize(("to", "name"), [("hf", "m.gguf"), ("gguf", "m"), ("gguf", "m.bin")])
def test_a_name_of_another_kind_is_refused_before_the_work(tmp_path, monkeypatch, to, name):
    monkeypatch.setattr("fewbit.export.job.Job.read", lambda *_: 1 / 0)
    with pytest.raises(OutputError, match=r"end in \.gguf; choose another name"):
        exported(folder(tmp_path), tmp_path / name, to)


def test_a_source_that_is_cut_while_it_is_read_is_an_error(tmp_path):
    """To look at pages behind a file's end would end the process."""
    source = folder(tmp_path)
    with open_model(source) as model:
        planned = plan_export(model, find_target("hf", SETTINGS))
        os.truncate(source / "model.safetensors", 4096)
        with pytest.raises(BadFileError, match="something writes to it"):
            export(planned, tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["hf", "gguf"])
def test_a_name_that_cannot_be_is_refused(tmp_path, to):
    with pytest.raises(OutputError, match="File name too long"):
        exported(folder(tmp_path), tmp_path / ("n" * 300), to)


@pytest.mark.parametrize("to", TARGETS)
def test_a_target_holds_nothing_of_a_model(tmp_path, to):
    """Planning another model between a plan and its writing changes nothing."""
    target = find_target(to, SETTINGS)
    with open_model(artefact(tmp_path)) as one, open_model(folder(tmp_path, "qwen2")) as other:
        alone = plan_export(one, find_target(to, SETTINGS))
        planned = plan_export(one, target)
        assert plan_export(other, target).record != planned.record
        assert plan_export(one, target) == planned and planned.record == alone.record
    assert hash(target) == hash(find_target(to, SETTINGS))


@pytest.mark.parametrize("to", [*FOLDERS, pytest.param("torchao", marks=pytest.mark.interop)])
def test_weights_in_shards(tmp_path, to):
    """Every tensor in a file of at most 8 kB, or alone in a larger one, is read back as it was."""
    source = artefact(tmp_path)
    exported(source, tmp_path / "whole", to)
    exported(source, tmp_path / "out", to, ExportSettings(shard_bytes=8_000))
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    assert [path.name for path in shards] == names and len(names) > 5
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    sizes = Counter()
    for path in shards:
        with SafetensorsFile(path) as file:
            stored = [entry.info for entry in file.header.tensors.values()]
            assert {index["weight_map"][info.name] for info in stored} == {path.name}
            sizes[path.name] = sum(info.nbytes for info in stored)
            assert sizes[path.name] <= 8_000 or len(stored) == 1
    assert index["metadata"] == {"total_size": sizes.total()}
    with open_model(tmp_path / "whole") as one, open_model(tmp_path / "out") as other:
        assert one.slots.keys() == other.slots.keys()
        for slot in one.slots:
            assert one.info(slot).format == other.info(slot).format
            assert digest(one.read(slot)) == digest(other.read(slot))
    assert read_manifest(tmp_path / "whole") == read_manifest(tmp_path / "out")


def test_content_out_of_order_is_a_fault_where_weights_are_in_shards(tmp_path):
    parts = [Part(name, "U8", (4,)) for name in "abc"]
    arrays = [(name, np.zeros(4, np.uint8)) for name in "acb"]
    write_shards(tmp_path, parts, arrays, {}, 100)
    with pytest.raises(FaultError, match="no content was given for b"):
        write_shards(tmp_path, parts, arrays, {}, 8)


@pytest.mark.parametrize(("to", "name"), [("hf", "out"), ("gguf", "out.gguf")])
def test_a_second_run_on_an_output_refuses(tmp_path, capsys, to, name):
    source, out = folder(tmp_path), tmp_path / name
    command = ["export", str(source), "--to", to, "--out", str(out)]
    with claimed(out):
        assert run(command) == 2
    assert f"Another run is writing {out}" in capsys.readouterr().err
    assert not out.exists()
    assert run(command) == 0


def test_a_manifest_that_came_alone_gives_way_to_the_same_export_only(tmp_path):
    source, out = folder(tmp_path), tmp_path / "out.gguf"
    exported(source, out, "gguf")
    out.unlink()  # as a writer leaves it that is killed between the two
    with pytest.raises(OutputError, match=r"manifest.json exists already"):
        exported(folder(tmp_path, "qwen2"), out, "gguf")
    exported(source, out, "gguf")
    with pytest.raises(OutputError, match=r"out.gguf exists already"):
        exported(source, out, "gguf")


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    source = folder(tmp_path)
    monkeypatch.setattr("fewbit.export.job.Job.manifest_json", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exported(source, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama"]


def test_expected_errors_follow_from_the_formats():
    four, five, bf16 = (parse_format(n) for n in ("int4-g32", "int5-g32", "bf16"))
    assert expected_error(four, parse_format("q4_0"), 64) == 0.0
    assert expected_error(four, parse_format("q5_0"), 64) == 0.0
    # Uniform in the last place: 2^-9 / sqrt(3) of each value at most, and about 0.75 of it.
    assert 0.5 * 2.0**-9 < expected_error(parse_format("f32"), bf16, 96) < 2.0**-9
    assert 0.02 < expected_error(five, parse_format("int4-g64"), 128) < 0.2


def test_the_command(tmp_path, capsys):
    source, out = str(artefact(tmp_path)), str(tmp_path / "out")
    assert run(["export", source, "--to", "hf", "--plan", "--json", "-"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["target"] == "hf" and any(tensor["reason"] for tensor in plan["tensors"])
    assert run(["export", source, "--to", "hf", "--out", out]) == 2
    assert "--requantize" in capsys.readouterr().err
    assert not Path(out).exists()
    assert run(["export", source, "--to", "hf", "--out", out, "--requantize"]) == 0
    assert "exporting" in capsys.readouterr().err
    assert json.loads((Path(out) / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "onnx"], "there are"),
        (["--to", "hf"], "--out is missing"),
        (["--to", "hf", "--split-size", "2GB", "--out", "x"], "--split-size is for"),
        (["--to", "hf", "--split-size", "much", "--out", "x"], "is no size"),
        (["--to", "gguf", "--shard-size", "2GB", "--out", "x"], "--shard-size is for"),
    ],
)
def test_wrong_flags(tmp_path, capsys, arguments, message):
    assert run(["export", str(folder(tmp_path)), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "columns"), [("int4-g96", 6144), ("int4-g4096", 8192), ("int8-g384", 6144)]
)
def test_the_cost_of_groups_that_do_not_divide_the_sample(form, columns):
    """2,048 columns stand for more, but not where groups of 96 or 4,096 lie across their end."""
    found = expected_error(parse_format(form), parse_format("bf16"), columns)
    assert 0 < found < 0.01  # bf16 of values on a grid: 2^-9 of each at most
    assert expected_error(parse_format("f32"), parse_format(form), columns) > 0.001


def test_what_the_disk_has_no_room_for_is_not_begun(tmp_path, monkeypatch):
    source = folder(tmp_path)
    usage = type(shutil.disk_usage(tmp_path))
    with open_model(source) as model:
        planned = plan_export(model, find_target("hf", SETTINGS))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, planned.record.bytes - 1))
        with pytest.raises(OutputError, match=r"for its tensors, and the disk has"):
            export(planned, tmp_path / "out", SETTINGS)
        assert not (tmp_path / "out").exists()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, planned.record.bytes))
        export(planned, tmp_path / "out", SETTINGS)
