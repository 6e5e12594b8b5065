"""Carrying recipes out; lines of shared/cases/quantize.md are named by their number."""

import os

import numpy as np
import pytest
from quantize_cases import folder, recipe, tree_hash
from safetensors.numpy import load_file
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import NumericalError
from fewbit.formats.registry import decode, parse_format
from fewbit.methods.rtn import round_to_nearest
from fewbit.model.weights import open_model
from fewbit.quantization import QuantizeSettings, quantize
from fewbit.recipes import built_in
from fewbit.records.manifest import read_manifest
from fewbit.records.recipe import Role, Rule


@pytest.fixture
def llama(tmp_path):
    return folder(tmp_path)


@pytest.fixture
def tied(tmp_path):
    return folder(tmp_path, "llama-tied")


@pytest.mark.parametrize("name", ["rtn-int4-g32", "rtn-int3-g64-asym", "rtn-int8-row", "rtn-q4_0"])
def test_every_matrix_is_what_the_solver_gives_and_every_vector_is_kept(llama, tmp_path, name):
    source = open_model(llama)
    manifest = quantize(source, built_in(name), tmp_path / "out")
    weights = load_file(llama / "model.safetensors")
    written = open_checkpoint(tmp_path / "out")
    for entry in manifest.tensors:
        tensor = written.read(entry.stored)
        weight = weights[entry.source]
        if entry.status == "kept":
            assert np.array_equal(decode(tensor), np.atleast_2d(weight))
            continue
        expected = round_to_nearest(weight, parse_format(entry.format))
        assert np.array_equal(tensor.codes, expected.codes)
        error = decode(tensor) - weight
        ratio = np.linalg.norm(error.astype(np.float64)) / np.linalg.norm(weight)
        assert entry.relative_error == pytest.approx(ratio, rel=1e-5)
        assert 0 < entry.relative_error < 0.5


def test_case_9_an_all_zero_row_and_matrix_decode_to_zero(tmp_path):
    weights = random_weights(CONFIGS["llama"])
    weights["model.layers.0.mlp.down_proj.weight"][:] = 0
    weights["model.layers.1.mlp.down_proj.weight"][5] = 0
    source = open_model(write_huggingface(tmp_path / "in", CONFIGS["llama"], weights))
    for name in ("rtn-int4-g32-asym", "rtn-q4_0"):
        manifest = quantize(source, built_in(name), tmp_path / name)
        written = open_checkpoint(tmp_path / name)
        assert not decode(written.read("model.layers.0.mlp.down_proj.weight")).any()
        assert not decode(written.read("model.layers.1.mlp.down_proj.weight"))[5].any()
        assert all(np.isfinite(entry.relative_error) for entry in manifest.tensors)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_refused_and_leaves_nothing(tmp_path, bad):
    weights = random_weights(CONFIGS["llama"])
    weights["model.layers.2.mlp.up_proj.weight"][90, 7] = bad
    source = open_model(write_huggingface(tmp_path / "in", CONFIGS["llama"], weights))
    with pytest.raises(NumericalError, match=r"layers\.2\.mlp\.up_proj\.weight.*row 90, column 7"):
        quantize(source, built_in("rtn-int4-g32"), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.self_attn.q_proj.weight"])
def test_a_value_that_is_not_finite_is_refused_in_kept_tensors_too(tmp_path, name):
    weights = random_weights(CONFIGS["llama"])
    weights[name].flat[63] = np.nan
    source = open_model(write_huggingface(tmp_path / "in", CONFIGS["llama"], weights))
    rules = recipe(Rule(match="layers.*.up.weight", format="int4-g32"))
    with pytest.raises(NumericalError, match=rf"{name}: .*row 0, column 63 is nan"):
        quantize(source, rules, tmp_path / "out")


def test_a_place_is_counted_from_the_first_row_of_the_tensor(monkeypatch, tmp_path):
    monkeypatch.setattr("fewbit.quantization.solving.PIECE", 64 * 7)
    test_a_value_that_is_not_finite_is_refused_and_leaves_nothing(tmp_path, np.nan)


@pytest.mark.parametrize(
    "name", ["int4-g32-asym", "int3-row", "q8_0", "int4-tensor", "int4-channel"]
)
def test_pieces_of_rows_change_no_bit(monkeypatch, llama, tmp_path, name):
    rules = recipe(Rule(role=Role.LINEAR, format=name))
    whole = quantize(open_model(llama), rules, tmp_path / "whole")
    monkeypatch.setattr("fewbit.quantization.solving.PIECE", 64 * 7)
    pieces = quantize(open_model(llama), rules, tmp_path / "pieces")
    assert [e.sha256 for e in whole.tensors] == [e.sha256 for e in pieces.tensors]


def test_case_13_the_source_keeps_its_bits(llama, tmp_path):
    before = tree_hash(llama)
    quantize(open_model(llama), built_in("mse-int4-g32"), tmp_path / "out")
    assert tree_hash(llama) == before


def test_case_16_a_tied_table_is_stored_once_with_the_heads_format(tied, tmp_path):
    manifest = quantize(open_model(tied), built_in("rtn-int4-g32"), tmp_path / "out")
    tables = [e for e in manifest.tensors if e.slot in ("embed.weight", "head.weight")]
    assert [(e.stored, e.format) for e in tables] == [("model.embed_tokens.weight", "int6-g32")]
    assert "lm_head.weight" not in open_checkpoint(tmp_path / "out").tensors
    assert open_model(tmp_path / "out").config.tied


def test_case_16_a_second_copy_of_a_tied_table_is_declared_absent(tmp_path):
    config = CONFIGS["llama-tied"]
    weights = random_weights(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    source = open_model(write_huggingface(tmp_path / "in", config, weights))
    manifest = quantize(source, built_in("rtn-int4-g32"), tmp_path / "out")
    entry = next(e for e in manifest.tensors if e.source == "lm_head.weight")
    assert (entry.status, entry.stored, entry.bytes) == ("absent", "", 0)
    assert "ties it to the embedding" in entry.reason


@pytest.mark.parametrize("bits", range(2, 9))
def test_case_17_codes_take_the_ceiling_of_their_bits(llama, tmp_path, bits):
    form = f"int{bits}-row"
    quantize(open_model(llama), recipe(Rule(role=Role.LINEAR, format=form)), tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored["model.layers.0.self_attn.q_proj.weight.codes"].shape == (64, -(-64 * bits // 8))
    assert stored["model.layers.0.mlp.down_proj.weight.codes"].shape == (64, -(-96 * bits // 8))


def test_case_18_tensors_without_a_slot_are_kept_in_a_folder(tmp_path):
    weights = random_weights(CONFIGS["llama"])
    extra = np.random.default_rng(1).normal(size=(8, 64)).astype(np.float32)
    weights["model.layers.3.mtp.weight"] = extra
    source = open_model(write_huggingface(tmp_path / "in", CONFIGS["llama"], weights))
    manifest = quantize(source, built_in("rtn-int4-g32"), tmp_path / "out")
    assert [e.source for e in manifest.tensors] == list(source.checkpoint.tensors)
    written = open_checkpoint(tmp_path / "out")
    assert set(written.tensors) == set(weights)
    assert np.array_equal(decode(written.read("model.layers.3.mtp.weight")), extra)


def test_case_23_every_solver_changes_the_weights_and_the_searched_range_lowers_the_error(
    llama, tmp_path
):
    plain = quantize(open_model(llama), built_in("rtn-int3-g32"), tmp_path / "rtn")
    searched = quantize(open_model(llama), built_in("mse-int3-g32"), tmp_path / "mse")
    for before, after in zip(plain.tensors, searched.tensors, strict=True):
        if before.status == "quantized":
            assert before.sha256 != before.source_sha256
            assert 0 < after.relative_error < before.relative_error


def test_tensors_already_small_enough_are_kept_bit_for_bit(llama, tmp_path):
    rules = recipe(
        Rule(match="layers.*.q.weight", format="int4-g32"),
        Rule(role=Role.LINEAR, format="int8-g32"),
    )
    quantize(open_model(llama), rules, tmp_path / "first")
    manifest = quantize(
        open_model(tmp_path / "first"), built_in("rtn-int5-g32"), tmp_path / "again"
    )
    for entry in manifest.tensors:
        if entry.slot.endswith("q.weight"):
            assert (entry.status, entry.format) == ("kept", "int4-g32")
            assert entry.sha256 == entry.source_sha256
            assert entry.reason == (
                "the source's int4-g32 has 4.5 bits per weight, int5-g32 would have 5.5"
            )
        elif entry.slot.endswith("up.weight"):
            assert (entry.status, entry.format) == ("quantized", "int5-g32")
    assert manifest.source.quantized
    assert manifest.source.formats["int4-g32"] == 3


def test_the_same_recipe_gives_the_same_bytes(llama, tmp_path):
    for name in ("a", "b"):
        quantize(open_model(llama), built_in("mse-int4-g32-asym"), tmp_path / name)
    assert tree_hash(tmp_path / "a") == tree_hash(tmp_path / "b")


@pytest.mark.parametrize("out", ["out", "out.gguf"])
def test_a_folder_whose_name_is_no_utf8(tmp_path, out):
    """As file systems allow; after hours it would end in a record that cannot be written."""
    source = folder(tmp_path).rename(tmp_path / os.fsdecode(b"mod\xe9le"))
    form = "rtn-q4_0" if out.endswith(".gguf") else "rtn-int4-g32"
    settings = QuantizeSettings(card=lambda manifest: f"Made from {manifest.source.path}.")
    quantize(open_model(source), built_in(form), tmp_path / out, settings)
    assert read_manifest(tmp_path / out).source.path.endswith("\N{REPLACEMENT CHARACTER}le")
