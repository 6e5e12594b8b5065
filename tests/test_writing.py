"""What is written, and where; lines of shared/cases/quantize.md are named by their number."""

import dataclasses
import json

import numpy as np
import pytest
from quantize_cases import folder, tree_hash
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import FaultError, OutputError, UnsupportedError
from fewbit.formats.registry import F32, decode, encode, parse_format
from fewbit.model.decoder import build_program
from fewbit.model.weights import open_model
from fewbit.quantization import (
    Container,
    container_of,
    execute,
    plan,
    quantize,
)
from fewbit.quantization import writing as writing_module
from fewbit.recipes import built_in
from fewbit.records.manifest import manifest_path, read_manifest
from fewbit.records.recipe import Recipe, Role, Rule


@pytest.fixture
def llama(tmp_path):
    return folder(tmp_path)


def test_case_3_the_size_is_promised_before_and_found_after(llama, tmp_path):
    planned = plan(open_model(llama), built_in("rtn-int4-g32"))
    manifest = execute(planned, tmp_path / "out")
    written = open_checkpoint(tmp_path / "out")
    assert manifest.promised_bytes == planned.promised_bytes == manifest.tensor_bytes
    assert sum(info.nbytes for info in written.tensors.values()) == planned.promised_bytes
    assert planned.promised_bytes < 0.25 * planned.source_bytes
    # The file adds its header and nothing else.
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    head = int.from_bytes((tmp_path / "out" / "model.safetensors").read_bytes()[:8], "little")
    assert size == planned.promised_bytes + 8 + head


def test_case_3_an_artefact_that_is_not_as_promised_is_a_fault(llama, tmp_path):
    planned = plan(open_model(llama), built_in("rtn-int4-g32"))
    execute(planned, tmp_path / "out")
    broken = dataclasses.replace(
        planned, tensors=(dataclasses.replace(planned.tensors[0], format=F32), *planned.tensors[1:])
    )
    with pytest.raises(FaultError, match="is not what was promised"):
        writing_module.check_written(broken, tmp_path / "out")


@pytest.mark.parametrize("name", ["llama", "llama3", "llama-biased", "qwen2", "qwen3", "gemma3"])
def test_a_gguf_source_gives_the_same_artefact_as_its_folder(tmp_path, name):
    config = CONFIGS[name]
    weights = random_weights(config)
    folder = open_model(write_huggingface(tmp_path / "hf", config, weights))
    file = open_model(write_gguf(tmp_path / "in.gguf", config, weights))
    from_folder = quantize(folder, built_in("rtn-int4-g32"), tmp_path / "a")
    from_file = quantize(file, built_in("rtn-int4-g32"), tmp_path / "b")
    ours, theirs = ({e.slot: e for e in m.tensors} for m in (from_folder, from_file))
    written = open_model(tmp_path / "a"), open_model(tmp_path / "b")
    for slot, entry in ours.items():
        assert theirs[slot].stored == entry.stored
        if entry.status == "quantized":
            assert theirs[slot].sha256 == entry.sha256
            continue
        # A Gemma norm is stored as fl(w + 1): what it held below 2^-24 is lost in the file.
        kept, expected = (decode(w.read(slot)) for w in written[::-1])
        assert np.abs(kept - expected).max() <= (2.0**-23 if "norm" in slot else 0)
    assert build_program(written[0].config).slots() == build_program(written[1].config).slots()


@pytest.mark.parametrize("name", ["rtn-q4_0", "rtn-q8_0"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_gguf_to_gguf_keeps_metadata_order_and_rows(tmp_path, name, family):
    config = CONFIGS[family]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    out = tmp_path / "out.gguf"
    manifest = quantize(source, built_in(name), out)
    written = open_checkpoint(out)
    assert list(written.tensors) == list(source.checkpoint.tensors)
    was, now = source.checkpoint.facts.metadata, written.facts.metadata
    assert {k: v for k, v in now.items() if k in was} == was
    assert set(now) - set(was) == {"general.file_type", "general.quantization_version"}
    for entry in manifest.tensors:
        stored = source.checkpoint.read(entry.source)
        expected = encode(decode(stored), parse_format(entry.format))
        assert np.array_equal(written.read(entry.stored).codes, expected.codes)
    assert read_manifest(out) == manifest
    assert container_of(out) is Container.GGUF
    assert open_model(out).config == source.config


@pytest.mark.parametrize(("form", "file_type"), [("mxfp4", 38), ("f16", 1)])
def test_a_gguf_file_says_what_most_of_its_weights_are_in(tmp_path, form, file_type):
    config = CONFIGS["llama"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    recipe = Recipe(name="r", method="rtn", rules=tuple(Rule(role=r, format=form) for r in Role))
    quantize(source, recipe, tmp_path / "out.gguf")
    with open_checkpoint(tmp_path / "out.gguf") as written:
        assert written.facts.metadata["general.file_type"] == file_type


@pytest.mark.parametrize("form", ["fp8_e4m3-row", "fp8_e4m3-tensor"])
def test_an_artefact_in_fp8_holds_what_the_format_gives(tmp_path, form):
    config = CONFIGS["llama"]
    source = open_model(write_huggingface(tmp_path / "in", config, random_weights(config)))
    recipe = Recipe(name="r", method="rtn", rules=tuple(Rule(role=r, format=form) for r in Role))
    manifest = quantize(source, recipe, tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as written:
        for entry in manifest.tensors:
            if entry.status == "quantized":
                assert entry.format == form
                expected = decode(
                    encode(
                        decode(source.checkpoint.read(entry.source)),
                        written.tensors[entry.stored].format,
                    )
                )
                assert np.array_equal(decode(written.read(entry.stored)), expected)
    with pytest.raises(UnsupportedError, match="GGUF has no type for"):
        quantize(source, recipe, tmp_path / "out.gguf")


def test_a_gguf_file_is_the_folder_in_other_rows(tmp_path):
    """Quantizing permuted rows and permuting quantized rows are the same."""
    config = CONFIGS["llama"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    quantize(source, built_in("rtn-q4_0"), tmp_path / "out.gguf")
    quantize(source, built_in("rtn-q4_0"), tmp_path / "out")
    file, folder = open_model(tmp_path / "out.gguf"), open_model(tmp_path / "out")
    for slot in source.slots:
        assert np.array_equal(decode(file.read(slot)), decode(folder.read(slot)))


def test_the_manifest_says_where_everything_came_from(llama, tmp_path):
    manifest = quantize(open_model(llama), built_in("rtn-int4-g32"), tmp_path / "out")
    assert read_manifest(tmp_path / "out") == manifest
    source = open_checkpoint(llama)
    written = open_checkpoint(tmp_path / "out")
    for entry in manifest.tensors:
        assert entry.source_sha256 == source.digest(entry.source)
        assert entry.sha256 == written.digest(entry.stored)
    assert not manifest.source.quantized
    assert manifest.recipe == built_in("rtn-int4-g32")
    assert (manifest.transforms, manifest.tuning) == ((), ())
    stored = json.loads((tmp_path / "out" / "config.json").read_text())
    assert stored["quantization_config"] == {"quant_method": "fewbit", "format_version": 1}


@pytest.mark.parametrize("out", ["out", "out.gguf"])
def test_an_output_that_exists_is_left_alone(tmp_path, out):
    config = CONFIGS["llama"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    target = tmp_path / out
    quantize(source, built_in("rtn-q4_0"), target)
    before = tree_hash(target)
    with pytest.raises(OutputError, match="exists already"):
        quantize(source, built_in("rtn-q8_0"), target)
    assert tree_hash(target) == before
    assert manifest_path(target).exists()


def test_what_lies_where_the_manifest_goes_is_named(tmp_path):
    (tmp_path / "out.gguf.manifest.json").mkdir()
    with pytest.raises(OutputError, match=r"out.gguf.manifest.json exists already"):
        quantize(gguf(tmp_path), built_in("rtn-q4_0"), tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["x" * 191, "x" * 250, f"{'y' * 186}.gguf", f"{'y' * 300}.gguf"])
def test_a_name_too_long_for_what_is_made_beside_it_is_refused_before_the_work(tmp_path, name):
    planned = plan(gguf(tmp_path), built_in("rtn-q4_0"), container_of(tmp_path / name))
    with pytest.raises(OutputError, match="choose one of at most 190"):
        writing_module.require_free(planned, tmp_path / name)


@pytest.mark.parametrize("name", ["x" * 190, f"{'y' * 185}.gguf"])
def test_a_long_name_is_taken(tmp_path, name):
    quantize(gguf(tmp_path), built_in("rtn-q4_0"), tmp_path / name)
    assert manifest_path(tmp_path / name).is_file()


def test_progress_is_told_of_every_stored_tensor(llama, tmp_path):
    seen = []
    planned = plan(open_model(llama), built_in("rtn-int4-g32"))
    execute(planned, tmp_path / "out", progress=lambda *told: seen.append(told))
    count = len(planned.tensors)
    assert seen == [("quantizing", done + 1, count) for done in range(count)]


def test_an_output_inside_the_source_is_refused(llama):
    before = tree_hash(llama)
    with pytest.raises(OutputError, match="the source is only read"):
        quantize(open_model(llama), built_in("rtn-int4-g32"), llama / "out")
    assert tree_hash(llama) == before


def test_a_gguf_file_goes_where_its_manifest_cannot_be_written(tmp_path, monkeypatch):
    source = gguf(tmp_path)

    def full(*_):
        raise OutputError("no room")

    monkeypatch.setattr(writing_module, "write_bytes", full)
    with pytest.raises(OutputError, match="no room"):
        quantize(source, built_in("rtn-q4_0"), tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_a_manifest_that_came_without_its_file_is_written_again_by_the_same_job_only(tmp_path):
    source, out = gguf(tmp_path), tmp_path / "out.gguf"
    quantize(source, built_in("rtn-q4_0"), out)
    whole = tree_hash(out), tree_hash(manifest_path(out))
    out.unlink()
    with pytest.raises(OutputError, match=r"out\.gguf\.manifest\.json exists already"):
        quantize(source, built_in("rtn-q8_0"), out)
    quantize(source, built_in("rtn-q4_0"), out)
    assert (tree_hash(out), tree_hash(manifest_path(out))) == whole
    out.unlink()
    manifest_path(out).write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        quantize(source, built_in("rtn-q4_0"), out)


def gguf(tmp_path):
    config = CONFIGS["llama"]
    return open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
