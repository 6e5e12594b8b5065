"""Mixtures of experts from file to file: every expert on its own, wherever its matrices lie."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
import pytest
from test_walk import calibration
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.checkpoint.artefact import encoded_info, write_artefact
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, MissingError, UnsupportedError, UsageError
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.model.families import expert_of
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.quantization import QuantizeSettings, quantize
from fewbit.recipes import built_in
from fewbit.records.manifest import Manifest, read_manifest
from fewbit.records.recipe import Recipe, Role, Rule

FAMILIES = ("mixtral", "qwen3-moe")
TOKENS = np.random.default_rng(7).integers(0, 320, 40).astype(np.int32)
FOUR_BITS = tuple(Rule(role=role, format="q4_0", fallback=("keep",)) for role in Role)


def logits_of(path: Path, executor: str = "native") -> np.ndarray:
    settings = RunSettings(executor=executor, cache_type=CacheType.F32, context=64)
    with open_model(path) as source:
        return np.concatenate([rows.copy() for rows in runner_of(source, settings).score(TOKENS)])


def folder_of(path: Path, name: str) -> Path:
    return write_huggingface(path / name, CONFIGS[name], random_weights(CONFIGS[name]))


def file_of(path: Path, name: str) -> Path:
    return write_gguf(path / f"{name}.gguf", CONFIGS[name], random_weights(CONFIGS[name]))


def digests(manifest: Manifest) -> dict[str, str]:
    return {entry.slot: entry.sha256 for entry in manifest.tensors}


def experts_of(name: str) -> int:
    config = CONFIGS[name]
    return config.get("num_local_experts") or config["num_experts"]


# --- a folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_and_a_file_give_the_same_artefact_that_runs(tmp_path, name):
    source = folder_of(tmp_path, name)
    written = quantize(open_model(source), built_in("rtn-int8-g32"), tmp_path / "a")
    other = quantize(open_model(file_of(tmp_path, name)), built_in("rtn-int8-g32"), tmp_path / "b")
    assert digests(written) == digests(other)
    ours, theirs = logits_of(tmp_path / "a"), logits_of(source, "reference")
    # A row whose choice of experts flips differs by more; logits have a deviation of 1.
    assert 0 < np.median(np.abs(ours - theirs)) < 0.05
    assert np.array_equal(logits_of(tmp_path / "b"), ours)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_expert_has_an_entry_and_routers_are_kept(tmp_path, name):
    manifest = quantize(
        open_model(file_of(tmp_path, name)), built_in("rtn-int4-g32"), tmp_path / "out"
    )
    layers, experts = CONFIGS[name]["num_hidden_layers"], experts_of(name)
    of_experts = [e for e in manifest.tensors if expert_of(e.slot) is not None]
    assert len(of_experts) == 3 * layers * experts
    assert {e.status for e in of_experts} == {"quantized"}
    assert len({e.stored for e in of_experts}) == len(of_experts)
    assert Counter(e.source for e in of_experts) == {e.source: experts for e in of_experts}
    routers = [e for e in manifest.tensors if e.slot.endswith("router.weight")]
    assert [(e.status, e.reason, e.format) for e in routers] == [
        ("kept", "a router is kept", "f32")
    ] * layers
    assert read_manifest(tmp_path / "out") == manifest


def test_experts_may_differ_in_format_in_a_folder(tmp_path):
    rules = (
        Rule(match="layers.*.experts.[01].*", format="int8-g32"),
        Rule(match="layers.*.experts.*", format="int4-g32"),
    )
    recipe = Recipe(name="mine", method="rtn", rules=rules)
    quantize(open_model(folder_of(tmp_path, "mixtral")), recipe, tmp_path / "out")
    with open_model(tmp_path / "out") as written:
        formats = [written.info(f"layers.1.experts.{e}.down.weight").format.name for e in range(4)]
    assert formats == ["int8-g32", "int8-g32", "int4-g32", "int4-g32"]
    assert np.isfinite(logits_of(tmp_path / "out")).all()


# --- what `transformers` has in memory ----------------------------------------------------------


def fused(name: str) -> dict[str, np.ndarray]:
    """Return the weights with the experts of a layer in two arrays, as transformers 5 has them."""
    weights = random_weights(CONFIGS[name])
    gate, up, down = (
        ("w1", "w3", "w2") if name == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    )
    found = {
        n.replace("block_sparse_moe", "mlp"): w for n, w in weights.items() if ".experts." not in n
    }
    for layer in range(CONFIGS[name]["num_hidden_layers"]):
        block = "block_sparse_moe" if name == "mixtral" else "mlp"
        stem = f"model.layers.{layer}.{block}.experts."
        both = [
            np.concatenate([weights[f"{stem}{e}.{part}.weight"] for part in (gate, up)])
            for e in range(experts_of(name))
        ]
        downs = [weights[f"{stem}{e}.{down}.weight"] for e in range(experts_of(name))]
        found[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = np.stack(both)
        found[f"model.layers.{layer}.mlp.experts.down_proj"] = np.stack(downs)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_fused_experts_are_quantized_one_by_one(tmp_path, name):
    source = write_huggingface(tmp_path / "fused", CONFIGS[name], fused(name))
    single = folder_of(tmp_path, name)
    assert np.array_equal(logits_of(source), logits_of(single))
    ours = quantize(open_model(source), built_in("rtn-int4-g32"), tmp_path / "a")
    theirs = quantize(open_model(single), built_in("rtn-int4-g32"), tmp_path / "b")
    assert digests(ours) == digests(theirs)
    assert {e.stored for e in ours.tensors} == {e.stored for e in theirs.tensors}


def test_fused_experts_in_another_layout_are_refused(tmp_path):
    weights = fused("qwen3-moe")
    name = "model.layers.1.mlp.experts.down_proj"
    weights[name] = np.ascontiguousarray(weights[name].swapaxes(1, 2))
    source = write_huggingface(tmp_path / "fused", CONFIGS["qwen3-moe"], weights)
    with pytest.raises(BadFileError, match=r"down_proj' has shape \(8, 32, 64\)"):
        open_model(source)


# --- a GGUF file --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_keeps_its_tensors_of_three_dimensions(tmp_path, name):
    source, out = file_of(tmp_path, name), tmp_path / "out.gguf"
    recipe = Recipe(name="mine", method="rtn", rules=FOUR_BITS)
    manifest = quantize(open_model(source), recipe, out)
    before, after = open_checkpoint(source), open_checkpoint(out)
    assert {n: i.shape for n, i in after.tensors.items()} == {
        n: i.shape for n, i in before.tensors.items()
    }
    form = parse_format("q4_0")
    stored = "blk.0.ffn_down_exps.weight"
    assert after.tensors[stored].format == form
    assert len(after.tensors[stored].shape) == 3
    expected = encode(decode(before.read(stored)), form)
    assert np.array_equal(after.read(stored).codes, expected.codes)
    assert manifest.tensor_bytes == sum(i.nbytes for i in after.tensors.values())
    assert np.isfinite(logits_of(out)).all()
    assert np.abs(logits_of(out) - logits_of(out, "reference")).mean() < 1e-2


def test_a_file_whose_experts_would_differ_is_refused(tmp_path):
    rules = (Rule(match="layers.1.experts.2.up.weight", format="q8_0"), *FOUR_BITS)
    recipe = Recipe(name="mine", method="rtn", rules=rules)
    with pytest.raises(UsageError, match="one tensor of one type") as caught:
        quantize(open_model(file_of(tmp_path, "mixtral")), recipe, tmp_path / "out.gguf")
    assert "blk.1.ffn_up_exps.weight" in str(caught.value)
    assert not (tmp_path / "out.gguf").exists()


def test_experts_under_names_of_their_own_are_read(tmp_path):
    """As files of 2023 have them."""
    source = file_of(tmp_path, "mixtral")
    plain = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(tmp_path / "old.gguf", "llama")
    for key, field in plain.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in plain.tensors:
        if "_exps" not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        for number, part in enumerate(tensor.data):
            name = tensor.name.replace("_exps", f".{number}")
            writer.add_tensor(name, np.ascontiguousarray(part))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert np.array_equal(logits_of(tmp_path / "old.gguf"), logits_of(source))


# --- what is refused ----------------------------------------------------------------------------


def test_a_missing_expert_is_named(tmp_path):
    weights = random_weights(CONFIGS["mixtral"])
    del weights["model.layers.2.block_sparse_moe.experts.3.w2.weight"]
    source = write_huggingface(tmp_path / "m", CONFIGS["mixtral"], weights)
    with pytest.raises(MissingError, match=r"layers\.2\.block_sparse_moe\.experts\.3\.w2"):
        open_model(source)


def test_a_rounded_router_is_refused(tmp_path):
    """Experts are chosen in float32; nothing is decoded quietly."""
    rules = (Rule(role=Role.LINEAR, format="int8-g32"),)
    out = tmp_path / "out"
    recipe = Recipe(name="mine", method="rtn", rules=rules)
    quantize(open_model(folder_of(tmp_path, "mixtral")), recipe, out)
    source = open_model(out)
    form = parse_format("int8-g32")
    name = "model.layers.0.block_sparse_moe.gate.weight"

    def read(stored: str):
        tensor = source.checkpoint.read(stored)
        return encode(decode(tensor), form) if stored == name else tensor

    infos = [
        encoded_info(name, form, info.shape) if info.name == name else info
        for info in source.checkpoint.tensors.values()
    ]
    write_artefact(
        tmp_path / "bad",
        config=json.loads((out / "config.json").read_text()),
        sidecars={},
        tensors=infos,
        read=read,
        manifest=(out / "manifest.json").read_bytes,
    )
    with pytest.raises(UnsupportedError, match=r"router .* is in int8-g32"):
        open_model(tmp_path / "bad")


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"num_experts_per_tok": 5}, BadFileError, "pass through 5 of 4 experts"),
        ({"num_experts_per_tok": 0}, BadFileError, "num_experts_per_tok is 0"),
        ({"num_local_experts": "many"}, BadFileError, "num_local_experts is 'many'"),
        ({"num_local_experts": 4096, "num_hidden_layers": 4096}, UnsupportedError, "up to 65536"),
        ({"n_shared_experts": 1}, UnsupportedError, "n_shared_experts is 1"),
    ],
)
def test_impossible_mixtures_are_refused(tmp_path, changes, kind, text):
    config = {**CONFIGS["mixtral"], **changes}
    with pytest.raises(kind, match=text):
        open_model(write_huggingface(tmp_path / "m", config, random_weights(CONFIGS["mixtral"])))


def test_experts_do_not_make_up_for_earlier_errors_and_say_so(tmp_path):
    source = folder_of(tmp_path, "qwen3-moe")
    rules = (Rule(role=Role.LINEAR, format="int4-g32"),)
    recipe = Recipe(name="test", method="gptq", rules=rules, propagation=0.5)
    settings = QuantizeSettings(calibration=calibration(), threads=1)
    made = quantize(open_model(source), recipe, tmp_path / "out", settings)
    said = {t.slot for t in made.tensors if any("not made up for" in r for r in t.remarks)}
    solved = {t.slot for t in made.tensors if t.method == "gptq"}
    assert said == {slot for slot in solved if expert_of(slot) is not None}
    assert said < solved
