"""Exports to compressed-tensors: value for value through its reader, and what config.json says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.checkpoint.compressed_config import Targets, read_config
from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.errors import UsageError
from fewbit.export.compressed_kept import kept_limits, kept_scheme, kept_tensors
from fewbit.export.compressed_scheme import Scheme, expert_limits, runtime_limits
from fewbit.export.job import export
from fewbit.export.layers import fusions, patterns
from fewbit.export.plan import plan_export, require_held
from fewbit.export.sglang import compressed_limits
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.formats.registry import decode, parse_format
from fewbit.model.binding import is_vector
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.kernels import Activations
from fewbit.records.kv import KvForm, KvScales
from fewbit.records.recipe import KEEP, Recipe, Role, Rule

SETTINGS = ExportSettings()


def artefact(path: Path, recipe: Recipe | str, name: str = "llama") -> Path:
    source = write_huggingface(path / name, CONFIGS[name], random_weights(CONFIGS[name]))
    made = find(recipe) if isinstance(recipe, str) else recipe
    with open_model(source) as model:
        quantize(model, made, path / "artefact")
    return path / "artefact"


def layers_in(form: str, activations: Activations = Activations.BF16, **other: str) -> Recipe:
    """The layers in one format, some slots in another; tables kept."""
    named = [Rule(match=m.replace("_", "."), format=f) for m, f in other.items()]
    rule = Rule(role=Role.LINEAR, format=form, activations=activations)
    return Recipe(name="test", method="rtn", rules=(*named, rule))


def exported(source: Path, out: Path, to: str = "compressed-tensors"):
    with open_model(source) as model:
        planned = plan_export(model, find_target(to, SETTINGS))
        export(planned, out, SETTINGS)
    return planned.record


def quantization(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def assert_equal_models(one: Path, other: Path) -> None:
    with open_model(one) as first, open_model(other) as second:
        assert first.slots.keys() == second.slots.keys()
        for slot in first.slots:
            np.testing.assert_array_equal(decode(first.read(slot)), decode(second.read(slot)))


@pytest.mark.parametrize(
    "form",
    [
        *("int4-g32", "int4-g32-asym", "int4-row", "int4-row-asym", "int8-g32", "int8-row-asym"),
        *("int2-g32", "int3-g32", "int3-g32-asym", "int5-row", "int6-g32-asym", "int7-g32"),
        *("fp8_e4m3-row", "fp8_e4m3-tensor", "q4_0", "q8_0", "q5_0", "mxfp4"),
    ],
)
def test_layers_come_back_value_for_value(tmp_path, form):
    source = artefact(tmp_path, layers_in(form))
    record = exported(source, tmp_path / "out")
    assert record.changed == ()
    assert_equal_models(source, tmp_path / "out")
    groups = quantization(tmp_path / "out")["config_groups"]
    assert [group["targets"] for group in groups.values()] == [["Linear"]]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family(tmp_path, name):
    source = artefact(tmp_path, layers_in("int4-g32-asym"), name)
    assert exported(source, tmp_path / "out").changed == ()
    assert_equal_models(source, tmp_path / "out")
    stated = quantization(tmp_path / "out")
    with open_model(source) as model:
        plain = {
            model.huggingface_name(slot).removesuffix(".weight")
            for slot in model.slots
            if not is_vector(slot)
            and slot != "embed.weight"
            and model.info(slot).format.name == "f32"
        }
    assert set(stated["ignore"]) >= {p for p in plain if not any(c.isdigit() for c in p)}
    assert "lm_head" in stated["ignore"]


@pytest.mark.parametrize(
    ("activations", "inputs"),
    [
        (Activations.TOKEN, ("token", True)),
        (Activations.INT8, None),
        (Activations.BF16, None),
    ],
)
def test_int8_weights_keep_the_rounding_of_their_inputs(tmp_path, activations, inputs):
    source = artefact(tmp_path, layers_in("int8-row", activations))
    record = exported(source, tmp_path / "out")
    group = quantization(tmp_path / "out")["config_groups"]["group_0"]
    dtype = json.loads((tmp_path / "out" / "config.json").read_text())["dtype"]
    assert dtype == ("bfloat16" if inputs else "float16")
    asked = group["input_activations"]
    assert (asked and (asked["strategy"], asked["dynamic"])) == inputs
    assert group["format"] == ("int-quantized" if inputs else "pack-quantized")
    said = any("have no name there" in n or "has no name there" in n for n in record.notes)
    assert said == (activations is Activations.INT8)
    assert_equal_models(source, tmp_path / "out")
    with open_model(tmp_path / "out") as model:
        expected = Activations.TOKEN if inputs else Activations.BF16
        assert model.activations("layers.0.q.weight") is expected


def test_static_inputs_keep_their_scale():
    scheme = Scheme(parse_format("int8-row"), Activations.STATIC, 0.5)
    assert scheme.described["input_activations"]["strategy"] == "tensor"
    assert not scheme.described["input_activations"]["dynamic"]
    assert scheme.shared == Scheme(parse_format("int8-row"), Activations.STATIC)
    assert list(runtime_limits(scheme)) == []


def test_mixed_formats_become_groups_that_the_reader_tells_apart(tmp_path):
    recipe = layers_in("int4-g32", layers_1_down_weight="int8-g32", layers_____o_weight="int8-row")
    named = Rule(match="layers.*.o.weight", format="int8-row", activations=Activations.TOKEN)
    recipe = Recipe(name="t", method="rtn", rules=(recipe.rules[0], named, recipe.rules[-1]))
    source = artefact(tmp_path, recipe)
    record = exported(source, tmp_path / "out")
    assert_equal_models(source, tmp_path / "out")
    stated = quantization(tmp_path / "out")
    assert stated["format"] == "mixed-precision"
    config = read_config(stated, "config.json")
    targets = Targets(config, "config.json")
    assert targets.of("model.layers.1.mlp.down_proj").weights.num_bits == 8
    assert targets.of("model.layers.0.mlp.down_proj").weights.num_bits == 4
    assert targets.of("model.layers.2.self_attn.o_proj").input_activations.scope == "token"
    everything = {t for group in config.config_groups.values() for t in group.targets}
    assert r"re:^model\.layers\.[0-9]+\.self_attn\.o_proj$" in everything
    assert not any("run q, k and v as one" in sentence for sentence in record.refusals)


def test_fused_layers_of_different_formats_are_said(tmp_path):
    recipe = Recipe(
        name="t",
        method="rtn",
        rules=(
            Rule(match="layers.0.k.weight", format="int8-g32"),
            Rule(match="layers.1.up.weight", format=KEEP),
            Rule(role=Role.LINEAR, format="int4-g32"),
        ),
    )
    record = exported(artefact(tmp_path, recipe), tmp_path / "out")
    said = next(s for s in record.refusals if "refuse members of different formats" in s)
    assert "2 such (layers.0.q.weight int4-g32, layers.0.k.weight int8-g32" in said


def test_tables_become_floats_only_when_asked(tmp_path):
    source = artefact(tmp_path, "rtn-int4-g32")
    with open_model(source) as model:
        planned = plan_export(model, find_target("compressed-tensors", SETTINGS))
        assert {t.slot for t in planned.record.changed} == {"embed.weight", "head.weight"}
        assert all("tables are floats here" in t.reason for t in planned.record.changed)
        with pytest.raises(UsageError, match="--requantize"):
            require_held(planned)


def test_a_gguf_file_becomes_4_bits_with_zero_points_where_it_has_minima(tmp_path):
    gguf = write_gguf(tmp_path / "in.gguf", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    rules = tuple(Rule(role=role, format="q4_1") for role in (Role.LINEAR,))
    with open_model(gguf) as model:
        quantize(model, Recipe(name="t", method="rtn", rules=rules), tmp_path / "q.gguf")
    record = exported(tmp_path / "q.gguf", tmp_path / "out")
    changed = {(t.source_format, t.format) for t in record.changed}
    assert changed == {("q4_1", "int4-g32-asym")}
    assert all(0 < t.expected_error < 0.1 for t in record.changed)
    runner = runner_of(open_model(tmp_path / "out"), RunSettings(threads=1))
    assert np.isfinite(np.concatenate(list(runner.score(np.arange(5))))).all()


def test_a_tied_table_is_stored_once(tmp_path):
    source = artefact(tmp_path, layers_in("int4-g32"), "llama-tied")
    exported(source, tmp_path / "out")
    with SafetensorsFile(tmp_path / "out" / "model.safetensors") as file:
        tables = [name for name in file.header.tensors if "lm_head" in name or "embed" in name]
    assert tables == ["model.embed_tokens.weight"]


def test_gemma_runs_in_bfloat16_and_says_what_that_costs(tmp_path):
    source = artefact(tmp_path, layers_in("int4-g32"), "gemma3")
    record = exported(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert "rounds the fp16 scales" in record.notes[0]


@pytest.mark.parametrize(
    ("form", "inputs", "said"),
    [
        ("int4-g32", Activations.BF16, ""),
        ("int4-row-asym", Activations.BF16, ""),
        ("int3-g32", Activations.BF16, "only on CUDA with the humming"),
        ("int8-g32", Activations.BF16, "its CPU kernel has 4 bits"),
        ("int4-g96", Activations.BF16, "groups of 32, 64 and 128, not 96"),
        ("int8-row", Activations.TOKEN, ""),
        ("int4-g32", Activations.TOKEN, "only on CUDA with the humming"),
        ("int4-g32", Activations.STATIC, "for int8-row weights only"),
        ("mxfp4", Activations.BF16, "not on a CPU"),
        ("fp8_e4m3-row", Activations.BF16, ""),
    ],
)
def test_what_vllm_does_not_run_is_said(form, inputs, said):
    sentences = " ".join(runtime_limits(Scheme(parse_format(form), inputs)))
    assert said in sentences and bool(said) == bool(sentences)


def test_patterns_stand_only_for_modules_that_are_all_chosen():
    everything = [f"model.layers.{n}.{s}" for n in range(3) for s in ("a.q", "a.k")]
    chosen = [n for n in everything if n.endswith("q")] + ["model.layers.1.a.k"]
    assert patterns(chosen, everything) == (
        r"re:^model\.layers\.[0-9]+\.a\.q$",
        "model.layers.1.a.k",
    )


def test_fused_layers_are_found_in_experts_too():
    slots = [f"layers.0.experts.{e}.{s}.weight" for e in range(2) for s in ("gate", "up", "down")]
    assert fusions([*slots, "layers.0.q.weight", "layers.0.q.bias"]) == (
        ("layers.0.experts.0.gate.weight", "layers.0.experts.0.up.weight"),
        ("layers.0.experts.1.gate.weight", "layers.0.experts.1.up.weight"),
    )


def test_stored_scales_of_keys_and_values_are_exported(tmp_path):
    scales = KvScales(
        form=KvForm.FP8,
        keys=((0.25, 0.5), (0.5, 0.5), (1.0, 0.75)),
        values=((2.0, 1.0), (0.5, 0.5), (1.0, 0.75)),
    )
    assert kept_scheme(scales)["type"] == "float" and list(kept_limits(scales)) == []
    tensors = kept_tensors(scales)
    assert tensors["model.layers.0.self_attn.k_scale"].tolist() == [0.5]
    assert tensors["model.layers.0.self_attn.v_scale"].tolist() == [2.0]
    integers = KvScales(form=KvForm.INT8, keys=scales.keys, values=scales.values)
    assert "not in int8" in next(iter(kept_limits(integers)))

    source = write_huggingface(tmp_path / "in", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    with open_model(source) as model:
        facts = replace(model.checkpoint.facts, kv_scales=scales)
        model.checkpoint._facts = facts
        target = find_target("compressed-tensors", SETTINGS)
        manifest = export(plan_export(model, target), tmp_path / "out", SETTINGS)
    file = tmp_path / "out" / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    assert file.stat().st_size - header == manifest.promised_bytes == manifest.tensor_bytes
    with open_model(tmp_path / "out") as model:
        kept = model.kv_scales
    assert kept.form is KvForm.FP8 and kept.keys[0] == (0.5, 0.5) and kept.values[0] == (2.0, 2.0)


@pytest.mark.parametrize(
    ("forms", "mixture", "said"),
    [
        (["int4-g32", "int8-g32"], False, ""),
        (["int4-g32-asym"], False, ""),
        (["int4-g32-asym"], True, "no zero points in a mixture"),
        (["int4-g32", "int8-g32"], True, "here they differ"),
        (["int3-g32"], False, "4 and 8 bits, not int3-g32"),
        (["int4-g32", "fp8_e4m3-row"], False, "beside float-quantized"),
        (["fp8_e4m3-row"], False, ""),
    ],
)
def test_what_sglang_would_refuse_is_said_and_labelled(forms, mixture, said):
    schemes = [Scheme(parse_format(form), Activations.BF16) for form in forms]
    sentences = list(compressed_limits(schemes, mixture=mixture))
    assert said in " ".join(sentences) and bool(said) == bool(sentences)
    assert all("as its source reads (not run there)" in sentence for sentence in sentences)


def test_what_sglang_asks_for_is_there(tmp_path):
    """The keys that its loaders take without a default (`get_from_keys`), one list a method."""
    source = artefact(tmp_path, layers_in("int4-g32"))
    wanted = {
        "compressed-tensors": ("format", "ignore", "config_groups"),
        "gptq": ("bits", "group_size", "desc_act", "sym", "lm_head", "dynamic"),
        "awq": ("bits", "group_size", "zero_point", "modules_to_not_convert"),
    }
    for to, keys in wanted.items():
        exported(source, tmp_path / to, to)
        stated = quantization(tmp_path / to)
        assert stated.keys() >= set(keys) and stated["quant_method"] == to
    groups = quantization(tmp_path / "compressed-tensors")["config_groups"].values()
    for group in groups:
        assert group["targets"] == ["Linear"] and group["weights"]["num_bits"] in (4, 8)
        assert group["weights"]["strategy"] in ("group", "channel")
        assert not group["weights"]["dynamic"] and group["input_activations"] is None


@pytest.mark.parametrize(
    ("form", "inputs", "said"),
    [
        ("int4-g32-asym", Activations.BF16, "with zero points; take a symmetric format"),
        ("int8-row", Activations.TOKEN, "take a weight-only format or fp8"),
        ("int8-g32", Activations.TOKEN, "as they are, unrounded"),
    ],
)
def test_what_transformers_does_not_load_of_experts(form, inputs, said):
    """test_interop_compressed.py shows that it is so."""
    scheme = Scheme(parse_format(form), inputs)
    assert said in " ".join(expert_limits([scheme]))
    plain = Scheme(parse_format("int4-g32"), Activations.BF16)
    assert list(expert_limits([plain, plain])) == [] and list(expert_limits([])) == []
    other = Scheme(parse_format("int8-g32"), Activations.BF16)
    assert "their formats differ" in " ".join(expert_limits([plain, other]))


@pytest.mark.parametrize("to", ["compressed-tensors", "gptq", "gptq_v2", "awq"])
@pytest.mark.parametrize("name", ["mixtral", "llama"])
def test_plans_of_mixtures_speak_of_transformers(tmp_path, name, to):
    source = artefact(tmp_path, layers_in("int4-g32-asym"), name)
    with open_model(source) as model:
        record = plan_export(model, find_target(to, SETTINGS)).record
    assert any("transformers" in s for s in record.refusals) == (name == "mixtral")


def test_float_weights_have_no_rounding_to_lose(tmp_path):
    source = artefact(tmp_path, layers_in("fp8_e4m3-row", Activations.INT8))
    with open_model(source) as model:
        notes = plan_export(model, find_target("compressed-tensors", SETTINGS)).record.notes
    assert not any("weight-only" in note for note in notes)


@pytest.mark.parametrize("to", ["compressed-tensors", "hf"])
def test_the_sources_older_name_of_the_type_says_the_same(tmp_path, to):
    config = {**CONFIGS["llama"], "torch_dtype": "float32"}
    source = write_huggingface(tmp_path / "m", config, random_weights(config))
    with open_model(source) as model:
        quantize(model, layers_in("int4-g32"), tmp_path / "small")
    with open_model(tmp_path / "small") as model:
        export(plan_export(model, find_target(to, SETTINGS)), tmp_path / "out", SETTINGS)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["torch_dtype"] == written["dtype"]
