"""The manifest beside a file: believed where it is of this very file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

import fewbit
from fewbit.checkpoint.open import open_checkpoint
from fewbit.checkpoint.own_manifest import altered, own_manifest, require_own
from fewbit.cli.app import run
from fewbit.errors import BadFileError
from fewbit.export.job import export
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import TARGETS, find_target
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.manifest import manifest_path, read_manifest

NAMES = ("llama", "mixtral")


def folder(path: Path, name: str = "llama") -> Path:
    return write_huggingface(path / name, CONFIGS[name], random_weights(CONFIGS[name]))


def quantized(source: Path, out: Path, recipe: str = "rtn-q4_0") -> Path:
    with open_model(source) as model:
        quantize(model, find(recipe), out)
    return out


def in_another_format(source: Path, to: str, out: Path) -> Path:
    with open_model(source) as model:
        export(plan_export(model, find_target(to, ExportSettings())), out, ExportSettings())
    return out


def judged(path: Path) -> tuple[str, ...]:
    with open_checkpoint(path) as checkpoint:
        found = own_manifest(checkpoint)
        assert found.stale == ""
        assert found.manifest == read_manifest(path)
        return altered(checkpoint, found.manifest)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe", ["rtn-int4-g32", "rtn-int4-g64-asym", "rtn-fp8"])
def test_whatever_was_just_written_has_its_own_manifest(tmp_path, name, recipe):
    made = quantized(folder(tmp_path, name), tmp_path / "made", recipe)
    assert judged(made) == ()
    for to in set(TARGETS) - {"torchao"}:
        out = tmp_path / (f"{to}.gguf" if to == "gguf" else to)
        assert judged(in_another_format(made, to, out)) == ()


@pytest.mark.parametrize("name", NAMES)
def test_experts_in_one_tensor_are_hashed_one_by_one(tmp_path, name):
    twin = write_gguf(tmp_path / "twin.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    for source, out in ((folder(tmp_path, name), "a.gguf"), (twin, "b.gguf")):
        made = quantized(source, tmp_path / out)
        assert judged(made) == ()
        content = bytearray(made.read_bytes())
        content[-40] ^= 1
        made.write_bytes(content)
        assert len(judged(made)) == 1


@pytest.mark.parametrize("recipe", ["rtn-q8_0", "rtn-iq4_nl"])  # another size, and the same
def test_a_file_that_was_written_anew_is_told_from_its_predecessor(tmp_path, recipe):
    source, out = folder(tmp_path), tmp_path / "m.gguf"
    quantized(source, out)
    quantized(source, tmp_path / "new.gguf", recipe).replace(out)
    with open_checkpoint(out) as checkpoint:
        found = own_manifest(checkpoint)
        assert found.manifest is None
        assert found.stale.startswith(f"{out}.manifest.json is not of m.gguf: ")
        with pytest.raises(BadFileError, match="not q4_0; remove it"):
            require_own(checkpoint)


def test_nobody_believes_the_manifest_of_a_predecessor(tmp_path, capsys):
    out = quantized(folder(tmp_path), tmp_path / "m.gguf")
    quantized(folder(tmp_path), tmp_path / "new.gguf", "rtn-q8_0").replace(out)
    again = ["quantize", str(folder(tmp_path)), "--out", str(tmp_path / "again.gguf")]
    for command in (
        ["inspect", str(out), "--manifest"],
        ["card", str(out)],
        [*again, "--from-manifest", str(out)],
    ):
        assert run(command) == 2
        assert "m.gguf.manifest.json is not of m.gguf: " in capsys.readouterr().err
    with pytest.raises(BadFileError, match="remove it"):
        fewbit.Artefact.open(out)


def test_a_card_is_of_the_very_tensors(tmp_path, capsys):
    out = quantized(folder(tmp_path), tmp_path / "m.gguf")
    assert run(["card", str(out)]) == 0
    content = bytearray(out.read_bytes())
    content[-40] ^= 1
    out.write_bytes(content)
    assert run(["card", str(out)]) == 2
    assert "has the hashes of; get the model again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CONFIGS["mixtral"], "blk.0.ffn_gate_inp.weight is not there"),
        ({**CONFIGS["llama"], "intermediate_size": 64}, "blk.0.ffn_gate.weight has "),
    ],
)
def test_a_file_of_another_model_is_told(tmp_path, config, said):
    other = write_huggingface(tmp_path / "other", config, random_weights(config))
    made = quantized(other, tmp_path / "other.gguf")
    out = quantized(folder(tmp_path), tmp_path / "m.gguf")
    manifest_path(made).replace(manifest_path(out))
    with open_checkpoint(out) as checkpoint:
        assert said in own_manifest(checkpoint).stale


def test_another_model_of_the_same_shapes_is_told_by_its_hashes(tmp_path):
    weights = random_weights(CONFIGS["llama"], seed=1)
    other = write_huggingface(tmp_path / "tuned", CONFIGS["llama"], weights)
    made = quantized(folder(tmp_path), tmp_path / "m.gguf")
    quantized(other, tmp_path / "new.gguf").replace(made)
    assert len(judged(made)) == len(read_manifest(made).tensors)


@pytest.mark.parametrize(
    "content", [b'{"files": ["a"]}', b"[]", b"not json", b"", b'{"schema_version": 1}']
)
def test_what_another_program_left_in_a_folder_is_no_manifest(tmp_path, content):
    source = folder(tmp_path)
    (source / "manifest.json").write_bytes(content)
    with open_checkpoint(source) as checkpoint:
        found = own_manifest(checkpoint)
    assert (found.manifest, found.stale) == (None, "")


def test_a_damaged_manifest_of_ours_is_no_stranger(tmp_path):
    made = quantized(folder(tmp_path), tmp_path / "made", "rtn-int4-g32")
    moved = in_another_format(made, "hf", tmp_path / "hf")
    for place in (made, moved):
        path = manifest_path(place)
        path.write_bytes(path.read_bytes()[:2000])
        with (
            open_checkpoint(place) as checkpoint,
            pytest.raises(BadFileError, match="not a valid Manifest"),
        ):
            own_manifest(checkpoint)
    manifest_path(made).write_text(json.dumps({}))
    with open_checkpoint(made) as checkpoint, pytest.raises(BadFileError, match="missing required"):
        own_manifest(checkpoint)
