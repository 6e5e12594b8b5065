"""Planning and carrying out; lines of shared/cases/quantize.md are named by their number."""

import dataclasses
import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_write import write_gguf as rewrite_gguf
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import FaultError, NumericalError, OutputError, UnsupportedError, UsageError
from fewbit.formats.registry import F32, decode, encode, parse_format
from fewbit.methods.rtn import round_to_nearest
from fewbit.model.decoder import build_program
from fewbit.model.weights import open_model
from fewbit.quantization import (
    Container,
    container_of,
    execute,
    plan,
    quantize,
    require_no_fallback,
)
from fewbit.quantization import writing as writing_module
from fewbit.recipes import built_in
from fewbit.records.manifest import manifest_path, read_manifest
from fewbit.records.recipe import Recipe, Role, Rule


def recipe(*rules: Rule, method: str = "rtn") -> Recipe:
    return Recipe(name="test", method=method, rules=rules)


LINEAR_4 = Rule(role=Role.LINEAR, format="int4-g32")
HEAD_8 = Rule(role=Role.HEAD, format="int8-g32")


@pytest.fixture
def llama(tmp_path):
    return write_huggingface(tmp_path / "llama", CONFIGS["llama"], random_weights(CONFIGS["llama"]))


@pytest.fixture
def tied(tmp_path):
    config = CONFIGS["llama-tied"]
    return write_huggingface(tmp_path / "tied", config, random_weights(config))


def tree_hash(path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.is_file()}


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


def test_case_4_a_pattern_that_fits_nothing_names_near_ones(llama):
    with pytest.raises(UsageError, match=r"'layers\.0\.dwon\.weight'.*layers\.0\.down\.weight"):
        plan(open_model(llama), recipe(LINEAR_4, Rule(match="layers.0.dwon.weight", format="q8_0")))


def test_case_4_a_pattern_that_fits_only_vectors_fits_nothing(llama):
    with pytest.raises(UsageError, match=r"fits no matrix"):
        plan(open_model(llama), recipe(LINEAR_4, Rule(match="*norm.weight", format="q8_0")))


def test_case_4_a_recipe_that_would_quantize_nothing_is_refused(llama, tmp_path):
    quantize(open_model(llama), built_in("rtn-int4-g32"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"would quantize nothing .* int4-g32 has 4\.5 bits"):
        plan(open_model(tmp_path / "out"), built_in("rtn-int8-g32"))


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


def test_case_14_a_group_that_does_not_divide_is_refused_in_the_plan_with_names(llama):
    with pytest.raises(
        UsageError, match=r"layers\.0\.mlp\.down_proj\.weight with 96 columns \(int4-g64\)"
    ):
        plan(open_model(llama), recipe(Rule(role=Role.LINEAR, format="int4-g64")))


def test_case_14_a_declared_fallback_is_taken_and_recorded(llama, tmp_path):
    planned = plan(open_model(llama), built_in("rtn-int4-g64"))
    assert planned.fallbacks == (
        "int4-g64 does not divide 96 columns, so 3 matrices are in int4-g32.",
    )
    with pytest.raises(UsageError, match=r"needs fallbacks, which strict forbids \(int4-g64 does"):
        require_no_fallback(planned)
    require_no_fallback(plan(open_model(llama), built_in("rtn-int4-g32")))
    manifest = execute(planned, tmp_path / "out")
    entry = next(e for e in manifest.tensors if e.slot == "layers.1.down.weight")
    assert (entry.format, entry.fallback) == ("int4-g32", "int4-g64")
    assert entry.reason == "int4-g64 does not divide 96 columns"


def test_case_15_an_override_equal_to_the_default_is_honoured(llama):
    override = Rule(match="head.weight", format="int4-g32")
    planned = plan(open_model(llama), recipe(override, LINEAR_4, HEAD_8))
    formats = {t.slot: t.format.name for t in planned.tensors}
    assert formats["head.weight"] == formats["layers.0.q.weight"] == "int4-g32"
    without = plan(open_model(llama), recipe(LINEAR_4, HEAD_8))
    assert {t.slot: t.format.name for t in without.tensors}["head.weight"] == "int8-g32"


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


def test_case_18_tensors_without_a_name_in_the_layout_are_declared_absent(tmp_path):
    config = CONFIGS["llama3"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    planned = plan(source, built_in("rtn-int4-g32"))
    assert [(t.source.name, t.reason) for t in planned.absent] == [
        ("rope_freqs.weight", "the configuration holds it as rope scaling")
    ]
    assert {t.source.name for t in planned.tensors} == set(source.checkpoint.tensors)


def test_case_23_every_solver_changes_the_weights_and_the_searched_range_lowers_the_error(
    llama, tmp_path
):
    plain = quantize(open_model(llama), built_in("rtn-int3-g32"), tmp_path / "rtn")
    searched = quantize(open_model(llama), built_in("mse-int3-g32"), tmp_path / "mse")
    for before, after in zip(plain.tensors, searched.tensors, strict=True):
        if before.status == "quantized":
            assert before.sha256 != before.source_sha256
            assert 0 < after.relative_error < before.relative_error


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


def test_what_gguf_cannot_hold_or_be_made_from_is_refused(llama, tmp_path):
    with pytest.raises(UnsupportedError, match="int4-g32, which GGUF has no type for"):
        quantize(open_model(llama), built_in("rtn-int4-g32"), tmp_path / "out.gguf")
    with pytest.raises(UnsupportedError, match="is no GGUF file"):
        quantize(open_model(llama), built_in("rtn-q4_0"), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


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


def test_the_same_recipe_gives_the_same_bytes(llama, tmp_path):
    for name in ("a", "b"):
        quantize(open_model(llama), built_in("mse-int4-g32-asym"), tmp_path / name)
    assert tree_hash(tmp_path / "a") == tree_hash(tmp_path / "b")


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


def test_progress_is_told_of_every_stored_tensor(llama, tmp_path):
    seen = []
    planned = plan(open_model(llama), built_in("rtn-int4-g32"))
    execute(planned, tmp_path / "out", progress=lambda *told: seen.append(told))
    count = len(planned.tensors)
    assert seen == [("quantizing", done + 1, count) for done in range(count)]


def test_a_tensor_that_cannot_be_decoded_is_named(tmp_path):
    config = CONFIGS["qwen2"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    strange = parse_format("nvfp4")

    def info(known: TensorInfo) -> TensorInfo:
        if known.name != "blk.0.attn_q.weight":
            return known
        return TensorInfo(known.name, strange, known.shape, 64 * 36)

    def read(name: str):
        tensor = source.checkpoint.read(name)
        if name != "blk.0.attn_q.weight":
            return tensor
        return dataclasses.replace(tensor, spec=strange, codes=np.zeros((64, 36), np.uint8))

    facts = source.checkpoint.facts
    assert isinstance(facts, GgufFacts)
    path = tmp_path / "strange.gguf"
    rewrite_gguf(path, facts, [info(t) for t in source.checkpoint.tensors.values()], read)
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q\.weight is in nvfp4"):
        plan(open_model(path), built_in("rtn-int2-g32"))
    kept = plan(open_model(path), built_in("rtn-int4-g32"))
    assert {t.status for t in kept.tensors if t.source.name == "blk.0.attn_q.weight"} == {"kept"}


def test_an_output_inside_the_source_is_refused(llama):
    before = tree_hash(llama)
    with pytest.raises(OutputError, match="the source is only read"):
        quantize(open_model(llama), built_in("rtn-int4-g32"), llama / "out")
    assert tree_hash(llama) == before


def test_a_gguf_file_goes_where_its_manifest_cannot_be_written(tmp_path, monkeypatch):
    config = CONFIGS["llama"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))

    def full(*_):
        raise OutputError("no room")

    monkeypatch.setattr(writing_module, "write_bytes", full)
    with pytest.raises(OutputError, match="no room"):
        quantize(source, built_in("rtn-q4_0"), tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]
