"""GGUF files made from folders and artefacts, read by the gguf package and by ourselves."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import CONFIGS, HUGGINGFACE_ONLY, random_weights, write_gguf, write_huggingface
from tiny_tokenizers import hugging_face

from fewbit.cli.app import run
from fewbit.errors import OutputError, UnsupportedError
from fewbit.export.job import export
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.formats.registry import decode
from fewbit.model.config import ModelConfig
from fewbit.model.gguf import from_gguf
from fewbit.model.gguf_view import as_gguf
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import open_model
from fewbit.model.written import same_program
from fewbit.quantization import Container, execute, plan, quantize
from fewbit.recipes import find
from fewbit.records.manifest import read_manifest
from fewbit.tokens.identity import cut_difference, vocabulary

SETTINGS = ExportSettings()
EXPRESSIBLE = [name for name in CONFIGS if name not in HUGGINGFACE_ONLY]


def folder(path: Path, name: str = "llama", *, tokenizer: bool = False) -> Path:
    config = CONFIGS[name]
    if not tokenizer:
        return write_huggingface(path / name, config, random_weights(config))
    text, configured = hugging_face()
    config = {**config, "vocab_size": 1024}
    write_huggingface(path / name, config, random_weights(config))
    (path / name / "tokenizer.json").write_bytes(text)
    (path / name / "tokenizer_config.json").write_text(
        json.dumps({**configured, "chat_template": "{{ messages[0].content }}"})
    )
    return path / name


def exported(source: Path, out: Path, settings: ExportSettings = SETTINGS):
    with open_model(source) as model:
        return export(plan_export(model, find_target("gguf", settings)), out, settings)


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_what_the_converter_writes_is_written(tmp_path, name):
    """Metadata and tensors of the same model made by code that follows llama.cpp's converter."""
    exported(folder(tmp_path, name), tmp_path / "ours.gguf")
    peer = write_gguf(tmp_path / "theirs.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    ours, theirs = gguf.GGUFReader(tmp_path / "ours.gguf"), gguf.GGUFReader(peer)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.fields[key].contents() == field.contents(), key
    found = {tensor.name: tensor for tensor in ours.tensors}
    assert found.keys() == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        assert list(found[tensor.name].shape) == list(tensor.shape)
        # Divisors of Llama 3 are quotients of two rounded frequencies: two roundings.
        loose = 2.0**-22 if tensor.name == "rope_freqs.weight" else 0.0
        np.testing.assert_allclose(found[tensor.name].data, tensor.data, rtol=loose)


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_the_program_is_the_same(tmp_path, name):
    source = folder(tmp_path, name)
    exported(source, tmp_path / "m.gguf")
    with open_model(source) as one, open_model(tmp_path / "m.gguf") as other:
        assert same_program(one.config, other.config)
        assert one.slots.keys() == other.slots.keys()
        offset = np.float32(one.config.norm_offset)
        for slot in one.slots:
            # What the model computes with: Gemma adds 1 to its norms, in float32.
            before, after = decode(one.read(slot)), decode(other.read(slot))
            np.testing.assert_array_equal(before + offset, after + offset)


def test_tensors_of_no_slot_are_promised_too(tmp_path):
    """Divisors of rope: a folder has them in its configuration, a file as a tensor."""
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    for source, out in ((folder(tmp_path, "llama3"), one), (one, other)):
        manifest = exported(source, out)
        sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(out).tensors}
        assert "rope_freqs.weight" in sizes
        assert manifest.promised_bytes == manifest.tensor_bytes == sum(sizes.values())
    entry = next(e for e in manifest.tensors if e.stored == "rope_freqs.weight")
    assert (entry.status, entry.slot, entry.bytes) == ("kept", "", sizes["rope_freqs.weight"])
    assert {e.stored for e in manifest.tensors} == sizes.keys()


REFUSED = {"qwen3-moe-sparse": "norm_topk_prob", "gemma3-scaled": "no exact form as GGUF"}


@pytest.mark.parametrize(("name", "sentence"), REFUSED.items())
def test_what_gguf_cannot_say_is_refused(tmp_path, name, sentence):
    with pytest.raises(UnsupportedError, match=sentence):
        exported(folder(tmp_path, name), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("name", ["mistral", "mixtral-window"])
def test_a_context_is_cut_to_the_window(tmp_path, name):
    manifest = exported(folder(tmp_path, name), tmp_path / "m.gguf")
    assert "cut to 16 of 512 positions" in manifest.export.plan.notes[0]
    with open_model(tmp_path / "m.gguf") as model:
        assert (model.config.context, set(model.config.windows)) == (16, {None})


def test_a_planted_permutation_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fewbit.model.weights.interleaved_rows", lambda heads, width: np.arange(heads * width)
    )
    exported(folder(tmp_path), tmp_path / "ours.gguf")
    peer = write_gguf(tmp_path / "t.gguf", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    one, other = gguf.GGUFReader(tmp_path / "ours.gguf"), gguf.GGUFReader(peer)
    theirs = {tensor.name: tensor.data for tensor in other.tensors}
    differ = [t.name for t in one.tensors if not np.array_equal(t.data, theirs[t.name])]
    assert {name.split(".")[2] for name in differ} == {"attn_q", "attn_k"}


def test_tokenizer_and_template_are_in_the_file(tmp_path):
    source = folder(tmp_path, tokenizer=True)
    exported(source, tmp_path / "m.gguf")
    with open_model(source) as one, open_model(tmp_path / "m.gguf") as other:
        before, after = tokenizer_of(one), tokenizer_of(other)
    assert vocabulary(before) == vocabulary(after)
    assert cut_difference(before, after) is None
    assert before.behaviour.prefix == after.behaviour.prefix != ()
    assert before.vocabulary_size < 1024 == len(other.checkpoint.facts.metadata[TOKENS])
    assert gguf.GGUFReader(tmp_path / "m.gguf").get_field("tokenizer.chat_template") is not None


TOKENS = "tokenizer.ggml.tokens"

MOVED = (
    ("int4-g32", "q4_0"),
    ("int4-g64", "q4_0"),
    ("int4-g32-asym", "q5_0"),
    ("int8-row", "q8_0"),
    ("int3-g32", "q4_0"),
    ("q4_0", "q4_0"),
    ("q4_1", "q4_1"),
)


@pytest.mark.parametrize(("form", "expected"), MOVED)
def test_artefacts_keep_every_code(tmp_path, form, expected):
    with open_model(folder(tmp_path)) as source:
        recipe = find("rtn-int4-g32")
        rules = tuple(
            rule.__class__(format=form, role=rule.role, fallback=("keep",)) for rule in recipe.rules
        )
        changed = recipe.__class__(name="t", method="rtn", rules=rules)
        quantize(source, changed, tmp_path / "artefact")
    manifest = exported(tmp_path / "artefact", tmp_path / "m.gguf")
    assert manifest.export.plan.changed == ()
    with open_model(tmp_path / "artefact") as one, open_model(tmp_path / "m.gguf") as other:
        assert other.info("layers.0.q.weight").format.name == expected
        for slot in one.slots:
            np.testing.assert_array_equal(decode(one.read(slot)), decode(other.read(slot)))


@pytest.mark.parametrize(
    ("form", "expected"), [("int8-g32-asym", "q8_0"), ("fp8_e4m3-row", "q8_0")]
)
def test_what_has_no_type_gets_the_nearest(tmp_path, form, expected):
    with open_model(folder(tmp_path)) as source:
        recipe = find("rtn-int4-g32")
        rules = tuple(
            rule.__class__(format=form, role=rule.role, fallback=("keep",)) for rule in recipe.rules
        )
        quantize(source, recipe.__class__(name="t", method="rtn", rules=rules), tmp_path / "a")
    manifest = exported(tmp_path / "a", tmp_path / "m.gguf")
    changed = {tensor.format for tensor in manifest.export.plan.changed}
    assert changed == {expected}
    # Half a step of 1/127 of each block's range, over weights of about a third of it.
    assert all(0 < error < 0.02 for error in manifest.export.errors.values())


@pytest.mark.parametrize("name", ["llama3", "qwen2", "gemma3", "mixtral", "qwen3-moe"])
def test_quantizing_a_folder_gives_the_file_of_its_gguf_twin(tmp_path, name):
    """Through the view or from a converter's file: the same tensors, bit for bit."""
    source = folder(tmp_path, name)
    twin = write_gguf(tmp_path / "twin.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    for path, out in ((source, "a.gguf"), (twin, "b.gguf")):
        with open_model(path) as model:
            quantize(model, find("rtn-q4_0"), tmp_path / out)
    one, other = gguf.GGUFReader(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "b.gguf")
    theirs = {tensor.name: tensor for tensor in other.tensors}
    for tensor in one.tensors:
        if tensor.name != "rope_freqs.weight":
            assert tensor.tensor_type == theirs[tensor.name].tensor_type
            np.testing.assert_array_equal(tensor.data, theirs[tensor.name].data)
    manifest = read_manifest(tmp_path / "a.gguf")
    with open_model(source) as model:
        names = set(model.checkpoint.tensors)
    assert names <= {entry.source for entry in manifest.tensors}
    assert manifest.container == "gguf"


def test_the_manifest_names_what_lies_behind(tmp_path):
    weights = {**random_weights(CONFIGS["llama"]), "mtp.extra": np.ones((4, 4), np.float32)}
    source = write_huggingface(tmp_path / "extra", CONFIGS["llama"], weights)
    with open_model(source) as model:
        manifest = execute(plan(model, find("rtn-q8_0"), Container.GGUF), tmp_path / "m.gguf")
        entries = {entry.source: entry for entry in manifest.tensors}
        assert entries.keys() == set(model.checkpoint.tensors)
        for name, entry in entries.items():
            assert entry.source_sha256 == model.checkpoint.digest(name)
    assert entries["mtp.extra"].status == "absent"
    assert entries["model.layers.0.self_attn.q_proj.weight"].stored == "blk.0.attn_q.weight"


def test_parts(tmp_path):
    source = folder(tmp_path)
    whole, settings = tmp_path / "whole.gguf", ExportSettings(split_bytes=100_000)
    exported(source, whole)
    exported(source, tmp_path / "cut.gguf", settings)
    parts = sorted(tmp_path.glob("cut-*.gguf"))
    assert len(parts) > 2 and parts[0].name == f"cut-00001-of-{len(parts):05d}.gguf"
    assert not (tmp_path / "cut.gguf").exists()
    for part in parts:
        with open_model(whole) as one, open_model(part) as other:
            assert other.path == parts[0]
            assert dict(one.checkpoint.facts.metadata) == dict(other.checkpoint.facts.metadata)
            assert one.checkpoint.tensors == other.checkpoint.tensors
            for name in one.checkpoint.tensors:
                assert one.checkpoint.digest(name) == other.checkpoint.digest(name)
        assert read_manifest(part).container == "gguf"
    exported(parts[1], tmp_path / "joined.gguf")
    with open_model(whole) as one, open_model(tmp_path / "joined.gguf") as other:
        assert dict(one.checkpoint.facts.metadata) == dict(other.checkpoint.facts.metadata)


def test_an_existing_part_is_left_alone(tmp_path):
    source, settings = folder(tmp_path), ExportSettings(split_bytes=100_000)
    exported(source, tmp_path / "a.gguf", settings)
    last = sorted(tmp_path.glob("a-*.gguf"))[-1]
    for path in sorted(tmp_path.glob("a-*"))[:-1]:
        if path != last:
            path.unlink()
    before = last.read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        exported(source, tmp_path / "a.gguf", settings)
    assert last.read_bytes() == before
    assert [p.name for p in tmp_path.glob("a-*.gguf")] == [last.name]


@pytest.mark.parametrize("split", [None, 100_000])
def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, split):
    source = folder(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fewbit.atomic.os.fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        exported(source, tmp_path / "m.gguf", ExportSettings(split_bytes=split))
    assert [p.name for p in tmp_path.iterdir()] == ["llama"]


def test_the_command(tmp_path, capsys):
    source, out = folder(tmp_path, tokenizer=True), tmp_path / "m.gguf"
    assert run(["export", str(source), "--to", "gguf", "--plan"]) == 0
    assert run(["export", str(source), "--to", "gguf", "--out", str(out)]) == 0
    assert out.is_file() and (tmp_path / "m.gguf.manifest.json").is_file()
    capsys.readouterr()
    assert run(["export", str(source), "--to", "gguf", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    arguments = ["quantize", str(source), "--recipe", "rtn-q4_0", "--out", str(tmp_path / "q.gguf")]
    assert run(arguments) == 0
    split = ["--to", "gguf", "--split-size", "200kB", "--out", str(tmp_path / "s.gguf")]
    assert run(["export", str(source), *split]) == 0
    assert "s-00001-of-" in capsys.readouterr().out


def test_metadata_is_undone_by_the_reader(tmp_path):
    with open_model(folder(tmp_path, "qwen2-yarn")) as source:
        view = as_gguf(source)
        found = from_gguf(view.checkpoint.facts.metadata, view.checkpoint.tensors)
    assert isinstance(found, ModelConfig) and same_program(found, source.config)
