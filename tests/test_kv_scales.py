"""Scales of keys and values against what the reference executor stores; where they are kept."""

import json

import numpy as np
import pytest
from msgspec.structs import replace
from test_walk import LENGTHS, calibration, windows
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.calibrate.calibration import calibration_set
from fewbit.errors import BadFileError, NumericalError, UnsupportedError, UsageError
from fewbit.export.job import export
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.model.binding import bind
from fewbit.model.decoder import build_program
from fewbit.model.weights import open_model
from fewbit.program import Attention
from fewbit.quantization import QuantizeSettings, quantize
from fewbit.quantization.kv_scales import measure_kv
from fewbit.quantization.planned import Container
from fewbit.quantization.planning import plan
from fewbit.recipes import read_recipe
from fewbit.records.kv import KvForm, KvScales, LayerScales
from fewbit.records.manifest import read_manifest
from fewbit.records.recipe import Recipe, Role, Rule
from fewbit.runtime.native import thread_pool
from fewbit.runtime.reference import ReferenceExecutor, choose_reference
from fewbit.runtime.step import PAGE, Span, StepInput

RECIPE = Recipe(
    name="test",
    method="rtn",
    rules=(Rule(role=Role.EMBEDDING, format="int8-g32"), Rule(role=Role.HEAD, format="int8-g32")),
    kv=KvForm.INT8,
)
"""Layers stay in float32, so that nothing is rounded on the way to keys and values."""
SETTINGS = QuantizeSettings(calibration=calibration(), threads=1)
ROUNDING = 2.0**-11
"""Relative: layers agree to some 2^-20, but a key between two f16 numbers may be stored as either,
2^-11 apart, and moves what lies behind by a part of that."""


def opened(path, name="llama", weights=None):
    config = CONFIGS[name]
    return open_model(write_huggingface(path / "in", config, weights or random_weights(config)))


def stored_in_numpy(source, tokens):
    """Return keys and values of every layer, float32 [rows, width] each."""
    program = build_program(source.config)
    executor = ReferenceExecutor(bind(source, program, choose_reference), 2)
    pages = np.arange(-(-len(tokens) // PAGE), dtype=np.int32)
    step = StepInput(tokens, (Span(0, len(tokens), 0, pages),), np.zeros(1, np.int32))
    buffers = executor.trace(step)
    return [(buffers[op.k], buffers[op.v]) for op in program.ops if isinstance(op, Attention)]


def heads_of(x, source):
    return np.abs(x).reshape(len(x), source.config.kv_heads, -1).max(axis=(0, 2))


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("form", KvForm)
def test_scales_are_the_largest_magnitudes_that_are_stored(tmp_path, name, form):
    source = opened(tmp_path, name)
    manifest = quantize(source, replace(RECIPE, kv=form), tmp_path / "out", SETTINGS)
    found = open_model(tmp_path / "out")
    runs = [stored_in_numpy(found, tokens) for tokens in windows()]
    layers = range(source.config.layers)
    for side, scales in enumerate((manifest.kv_scales.keys, manifest.kv_scales.values)):
        largest = [
            np.max([heads_of(run[layer][side], source) for run in runs], axis=0) for layer in layers
        ]
        np.testing.assert_allclose(scales, np.array(largest) / form.largest, rtol=ROUNDING)
    assert found.kv_scales == manifest.kv_scales == read_manifest(tmp_path / "out").kv_scales
    assert manifest.calibration is not None


def measured(source, taken):
    planned = plan(source, RECIPE, Container.FEWBIT)
    return measure_kv(planned, {}, KvForm.INT8, taken, thread_pool(1))


def test_padding_is_left_out_and_rows_that_do_not_count_are_stored(tmp_path):
    source = opened(tmp_path)
    masks = [np.ones(n, bool) for n in LENGTHS]
    masks[0][40:] = False
    masks[3][:20] = False
    shorter = windows()
    shorter[0] = shorter[0][:40]
    expected = measured(source, calibration_set(shorter, (), window_tokens=64))
    assert measured(source, calibration(masks=masks)) == expected
    assert measured(source, calibration()) != expected


def test_what_was_made_is_measured_not_the_source(tmp_path):
    source = opened(tmp_path)
    rules = (Rule(role=Role.LINEAR, format="int2-g32"),)
    layers = replace(RECIPE, name="coarse", rules=rules)
    coarse = quantize(source, layers, tmp_path / "out", SETTINGS).kv_scales
    again = measured(open_model(tmp_path / "out"), calibration())
    assert coarse.keys == again.keys and coarse.values == again.values
    assert coarse != measured(source, calibration())


def test_a_scale_per_tensor_is_that_of_the_largest_head():
    scales = KvScales(form=KvForm.FP8, keys=((1.0, 2.0), (4.0, 3.0)), values=((5.0, 6.0),) * 2)
    assert scales.of_tensors() == (LayerScales(2.0, 6.0), LayerScales(4.0, 6.0))
    assert scales.fits(2, 2)
    assert not scales.fits(3, 2) and not scales.fits(2, 1)


def test_heads_of_zeros_have_a_scale_to_divide_by(tmp_path):
    weights = random_weights(CONFIGS["llama"])
    weights["model.layers.1.self_attn.v_proj.weight"][:] = 0
    scales = measured(opened(tmp_path, weights=weights), calibration())
    assert scales.values[1] == (1.0, 1.0)
    assert scales.fits(3, 2)


def test_values_out_of_range_are_named(tmp_path):
    weights = random_weights(CONFIGS["llama"])
    weights["model.layers.1.self_attn.v_proj.weight"][0, 0] = np.inf
    with pytest.raises(NumericalError, match=r"layer 1 stores at 'v' is not finite .* window 0"):
        measured(opened(tmp_path, weights=weights), calibration())


def test_they_need_text_and_a_place(tmp_path):
    source = opened(tmp_path)
    with pytest.raises(UsageError, match="give a text with --calibration"):
        quantize(source, RECIPE, tmp_path / "out")
    config = CONFIGS["llama"]
    file = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    with pytest.raises(UnsupportedError, match=r"int8-static.* GGUF file has no place"):
        quantize(file, RECIPE, tmp_path / "out.gguf", SETTINGS)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ({"form": "int8-static", "keys": [[1.0]], "values": [[1.0]]}, "one positive number"),
        ({"form": "int8-static", "keys": [[1.0, -1.0]] * 3, "values": [[1.0] * 2] * 3}, "positive"),
        ({"form": "int8-static", "keys": [[]] * 3, "values": [[1.0] * 2] * 3}, "one positive"),
        ({"form": "int3", "keys": [], "values": []}, "quantization_config cannot be used"),
        ({"form": "int8-static", "keys": "x", "values": []}, "quantization_config cannot be used"),
        (7, "quantization_config cannot be used"),
    ],
)
def test_damaged_scales_are_refused(tmp_path, scales, message):
    quantize(opened(tmp_path), replace(RECIPE, kv=None), tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["kv_scales"] = scales
    path.write_text(json.dumps(config))
    with pytest.raises(BadFileError, match=message):
        open_model(tmp_path / "out")


def test_without_them_the_configuration_says_nothing(tmp_path):
    quantize(opened(tmp_path), replace(RECIPE, kv=None), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "fewbit", "format_version": 1}


def test_a_recipe_in_toml_names_them(tmp_path):
    path = tmp_path / "mine.toml"
    rule = '[[rules]]\nrole = "linear"\nformat = "int8-row"\n'
    path.write_text(f'name = "mine"\nmethod = "rtn"\nkv = "fp8-static"\n{rule}')
    assert read_recipe(path).kv is KvForm.FP8
    path.write_text(f'name = "mine"\nmethod = "rtn"\nkv = "fp9"\n{rule}')
    with pytest.raises(BadFileError, match="kv"):
        read_recipe(path)


@pytest.mark.parametrize("to", ["hf", "awq", "compressed-tensors"])
def test_an_export_without_a_place_for_scales_says_so(tmp_path, to):
    quantize(opened(tmp_path), RECIPE, tmp_path / "small", SETTINGS)
    settings = ExportSettings()
    with open_model(tmp_path / "small") as source:
        planned = plan_export(source, find_target(to, settings))
        manifest = export(planned, tmp_path / "out", settings)
        kept = to == "compressed-tensors"
        assert any("left out" in note for note in planned.record.notes) != kept
        assert manifest.kv_scales == (source.kv_scales if kept else None)
