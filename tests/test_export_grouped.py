"""Exports to GPTQ and AWQ: value for value through their readers, and what config.json says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from packed_models import AWQ_NIBBLES, words
from test_export_compressed import (
    artefact,
    assert_equal_models,
    exported,
    layers_in,
    quantization,
)
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.checkpoint.open import open_checkpoint
from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.errors import UnsupportedError, UsageError
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.formats.affine import integers
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.records.kernels import Activations
from fewbit.records.manifest import read_manifest
from fewbit.records.recipe import KEEP, Recipe, Role, Rule

V = "gptq", "gptq_v2"
Q = "model.layers.0.self_attn.q_proj"


def stored(folder, *names):
    with SafetensorsFile(folder / "model.safetensors") as file:
        kinds = {"i32": np.int32, "f16": np.float16}
        for name in names:
            info = file.header.tensors[f"{Q}.{name}"].info
            array = np.ascontiguousarray(file.read(f"{Q}.{name}").codes)
            yield array.view(kinds[info.format.name]).reshape(info.shape).copy()


@pytest.mark.parametrize("to", ["gptq", "gptq_v2"])
@pytest.mark.parametrize(
    "form", ["int4-g32", "int4-row", "int8-g32", "int3-g32", "int2-g32", "q4_0", "q8_0", "int5-g32"]
)
def test_symmetric_layers_come_back_from_gptq(tmp_path, form, to):
    source = artefact(tmp_path, layers_in(form))
    assert exported(source, tmp_path / "out", to).changed == ()
    assert_equal_models(source, tmp_path / "out")
    stated = quantization(tmp_path / "out")
    assert stated["sym"] and stated["checkpoint_format"] == to and stated["dynamic"] is None


@pytest.mark.parametrize("form", ["int4-g32-asym", "int3-row-asym", "int8-g32-asym"])
def test_zero_points_come_back_from_version_2(tmp_path, form):
    source = artefact(tmp_path, layers_in(form))
    record = exported(source, tmp_path / "out", "gptq_v2")
    assert record.changed == () and not quantization(tmp_path / "out")["sym"]
    assert_equal_models(source, tmp_path / "out")
    assert any("without zero points" in sentence for sentence in record.refusals)


@pytest.mark.parametrize(("to", "offset"), [("gptq", 1), ("gptq_v2", 0)])
def test_what_gptq_stores_by_its_description(tmp_path, to, offset):
    source = artefact(tmp_path, layers_in("int3-g32-asym"))
    exported(source, tmp_path / "out", to)
    with open_model(source) as model:
        tensor = model.read("layers.0.q.weight")
    qweight, qzeros, scales, index = stored(
        tmp_path / "out", "qweight", "qzeros", "scales", "g_idx"
    )
    codes = integers(tensor)
    for column in (0, 17, 63):
        assert qweight[:, column].view(np.uint32).tolist() == words(codes[column], 3)
    for group in range(2):
        zeros = tensor.zeros[:, group].astype(int) - offset
        assert qzeros[group].view(np.uint32).tolist() == words(zeros, 3)
    assert np.array_equal(scales, tensor.scales.T)
    assert np.array_equal(index, np.arange(64) // 32)


def test_a_zero_point_of_nought_has_no_version_1(tmp_path):
    weights = random_weights(CONFIGS["llama"])
    weights[f"{Q}.weight"][3] = np.abs(weights[f"{Q}.weight"][3])
    source = write_huggingface(tmp_path / "in", CONFIGS["llama"], weights)
    with open_model(source) as model:
        quantize(model, layers_in("int4-g32-asym"), tmp_path / "artefact")
    with pytest.raises(UnsupportedError, match=r"2 zero points of 0.*gptq_v2"):
        exported(tmp_path / "artefact", tmp_path / "v1", "gptq")
    assert not (tmp_path / "v1").exists()
    with open_model(tmp_path / "artefact") as model:
        notes = {to: plan_export(model, find_target(to, ExportSettings())).record.notes for to in V}
    assert ["stops at one; gptq_v2 has it" in " ".join(notes[to]) for to in V] == [True, False]
    exported(tmp_path / "artefact", tmp_path / "v2", "gptq_v2")
    assert_equal_models(tmp_path / "artefact", tmp_path / "v2")


def test_mixed_layers_share_a_group_and_name_their_bits(tmp_path):
    rules = (
        Rule(match="layers.0.[qkv].weight", format="int8-row"),
        Rule(match="layers.1.o.weight", format=KEEP),
        Rule(role=Role.LINEAR, format="int4-g32"),
    )
    source = artefact(tmp_path, Recipe(name="t", method="rtn", rules=rules))
    record = exported(source, tmp_path / "out", "gptq")
    assert record.changed == ()
    assert_equal_models(source, tmp_path / "out")
    stated = quantization(tmp_path / "out")
    assert (stated["bits"], stated["group_size"]) == (4, 32)
    assert stated["dynamic"][r"-:^model\.layers\.1\.self_attn\.o_proj$"] == {}
    for name in ("q_proj", "k_proj", "v_proj", "qkv_proj"):
        assert stated["dynamic"][rf"+:^model\.layers\.0\.self_attn\.{name}$"] == {"bits": 8}
    assert record.refusals == ()


def test_symmetric_layers_beside_others_get_zero_points(tmp_path):
    recipe = layers_in("int4-g32", layers_0_down_weight="int4-g32-asym")
    source = artefact(tmp_path, recipe)
    assert exported(source, tmp_path / "out", "gptq_v2").changed == ()
    assert_equal_models(source, tmp_path / "out")
    with open_model(tmp_path / "out") as model:
        assert model.info("layers.0.q.weight").format.name == "int4-g32-asym"


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_comes_back_from_both(tmp_path, name):
    source = artefact(tmp_path, layers_in("int4-g32"), name)
    for to in ("gptq", "awq"):
        assert exported(source, tmp_path / to, to).changed == ()
        assert_equal_models(source, tmp_path / to)


@pytest.mark.parametrize("form", ["int4-g32-asym", "int4-row-asym", "int4-g32", "int3-g32", "q4_0"])
def test_layers_come_back_from_awq(tmp_path, form):
    source = artefact(tmp_path, layers_in(form))
    record = exported(source, tmp_path / "out", "awq")
    assert record.changed == () and record.refusals == ()
    assert_equal_models(source, tmp_path / "out")
    stated = quantization(tmp_path / "out")
    assert stated["group_size"] == (-1 if "row" in form else 32)
    assert stated["modules_to_not_convert"] == ["lm_head"]
    runner = runner_of(open_model(tmp_path / "out"), RunSettings(threads=1))
    assert np.isfinite(np.concatenate(list(runner.score(np.arange(5))))).all()


def test_what_awq_stores_by_its_description(tmp_path):
    source = artefact(tmp_path, layers_in("int4-g32-asym"))
    exported(source, tmp_path / "out", "awq")
    with open_model(source) as model:
        tensor = model.read("layers.0.q.weight")
    qweight, qzeros, scales = stored(tmp_path / "out", "qweight", "qzeros", "scales")
    codes = integers(tensor)
    for row in (0, 40):
        for word in (0, 7):
            run = codes[8 * word : 8 * word + 8, row][list(AWQ_NIBBLES)]
            assert qweight[row, word].view(np.uint32) == words(run, 4)[0]
    run = tensor.zeros[:8, 1][list(AWQ_NIBBLES)]
    assert qzeros[1, 0].view(np.uint32) == words(run, 4)[0]
    assert np.array_equal(scales, tensor.scales.T)


def test_layers_of_more_bits_stay_floats_in_awq_and_that_is_said(tmp_path):
    source = artefact(tmp_path, layers_in("int4-g32", layers_0_q_weight="int8-g32"))
    record = exported(source, tmp_path / "out", "awq")
    assert [(t.slot, t.format) for t in record.changed] == [("layers.0.q.weight", "bf16")]
    assert Q in quantization(tmp_path / "out")["modules_to_not_convert"]
    assert "refuse members of different formats: 1 such" in record.refusals[0]


@pytest.mark.parametrize(("to", "shape"), [("gptq", (40, 64)), ("awq", (40, 64))])
def test_inputs_that_fill_no_word_stay_floats(tmp_path, to, shape):
    config = {**CONFIGS["llama"], "intermediate_size": shape[0]}
    source = write_huggingface(tmp_path / "in", config, random_weights(config))
    rules = (
        Rule(match="layers.*.down.weight", format="int4-row"),
        Rule(role=Role.LINEAR, format="int4-g32"),
    )
    with open_model(source) as model:
        quantize(model, Recipe(name="t", method="rtn", rules=rules), tmp_path / "artefact")
    record = exported(tmp_path / "artefact", tmp_path / "out", to)
    assert {t.slot.split(".")[2] for t in record.changed} == {"down"}
    assert_close = open_checkpoint(tmp_path / "out")
    assert assert_close.tensors["model.layers.0.mlp.down_proj.weight"].format.name == "bf16"
    assert ("outputs in multiples of 32" in " ".join(record.refusals)) == (to == "gptq")


@pytest.mark.parametrize("to", ["compressed-tensors", "gptq", "gptq_v2", "awq"])
def test_settings_of_other_targets_are_refused(to):
    with pytest.raises(UsageError, match="--split-size"):
        find_target(to, ExportSettings(split_bytes=1 << 30))


@pytest.mark.parametrize("to", ["compressed-tensors", "gptq", "gptq_v2", "awq"])
def test_the_plan_promises_the_bytes_of_the_file(tmp_path, to):
    # A converter that silently left most weights in bf16 would break the promise.
    source = artefact(tmp_path, layers_in("int4-g32"))
    record = exported(source, tmp_path / "out", to)
    file = tmp_path / "out" / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert file.stat().st_size - header == record.bytes
    assert read_manifest(tmp_path / "out").tensor_bytes == record.bytes


@pytest.mark.parametrize("to", ["compressed-tensors", "gptq", "gptq_v2", "awq"])
def test_extra_heads_are_declared_absent(tmp_path, to):
    weights = random_weights(CONFIGS["llama"])
    weights["model.layers.3.mtp.weight"] = np.ones((64, 64), np.float32)
    source = write_huggingface(tmp_path / "in", CONFIGS["llama"], weights)
    record = exported(source, tmp_path / "out", to)
    assert [tensor.source for tensor in record.absent] == ["model.layers.3.mtp.weight"]
    with open_checkpoint(tmp_path / "out") as checkpoint:
        stored = {tensor.stored for tensor in record.tensors}
        assert set(checkpoint.tensors) == stored == weights.keys() - {"model.layers.3.mtp.weight"}


@pytest.mark.parametrize("to", ["gptq", "awq"])
def test_a_tied_table_is_stored_once(tmp_path, to):
    source = artefact(tmp_path, layers_in("int4-g32"), "llama-tied")
    exported(source, tmp_path / "out", to)
    with open_checkpoint(tmp_path / "out") as checkpoint:
        tables = [name for name in checkpoint.tensors if "lm_head" in name or "embed" in name]
    assert tables == ["model.embed_tokens.weight"]
    assert_equal_models(source, tmp_path / "out")


@pytest.mark.parametrize("to", [*V, "awq"])
def test_gemma_runs_in_bfloat16(tmp_path, to):
    """vLLM refuses Gemma 3 in float16, which its activations exceed."""
    record = exported(artefact(tmp_path, layers_in("int4-g32"), "gemma3"), tmp_path / "out", to)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert any("activations of Gemma exceed float16" in note for note in record.notes)


@pytest.mark.parametrize("to", [*V, "awq"])
@pytest.mark.parametrize(
    ("activations", "said"),
    [
        (Activations.INT8, "21 layers round their inputs to int8 per 32 here"),
        (Activations.TOKEN, "21 layers round their inputs to int8 per token here"),
        (Activations.BF16, ""),
    ],
)
def test_roundings_of_inputs_that_are_lost_are_said(tmp_path, to, activations, said):
    source = artefact(tmp_path, layers_in("int4-g32", activations))
    with open_model(source) as model:
        notes = plan_export(model, find_target(to, ExportSettings())).record.notes
    lost = [note for note in notes if "weight-only" in note]
    assert [said in note for note in lost] == ([True] if said else [])
