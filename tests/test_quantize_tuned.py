"""Tuning at the end of the path: what changes, and what the manifest says of it."""

import dataclasses

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from test_quantize_calibrated import folder
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.calibrate.calibration import calibration_set
from fewbit.formats.registry import F32, decode
from fewbit.model.weights import open_model
from fewbit.quantization import QuantizeSettings, plan, quantize
from fewbit.quantization.making import tune_settings
from fewbit.records.recipe import Recipe, Role, Rule
from fewbit.records.tuning import TuneRecord
from fewbit.tune import Precision, Tuned, TuneSettings

pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytestmark = pytest.mark.interop


def tuned(form: str, what: str = "scales", method: str = "rtn") -> Recipe:
    return Recipe(
        name="test", method=method, rules=(Rule(role=Role.LINEAR, format=form),), tune=what
    )


def settings(what: str = "scales") -> QuantizeSettings:
    random = np.random.default_rng(9)
    windows = [random.integers(0, 320, 32).astype(np.int32) for _ in range(16)]
    tuning = TuneSettings(
        what=Tuned(what), steps=6, batch=2, check=3, precision=Precision.F32, rate=1e-2
    )
    text = calibration_set(windows, (), window_tokens=32)
    return QuantizeSettings(calibration=text, tuning=tuning, threads=1)


@pytest.mark.parametrize(("method", "what"), [("rtn", "scales"), ("gptq", "rounding")])
def test_a_folder_holds_what_was_tuned(tmp_path, method, what):
    source = open_model(folder(tmp_path))
    manifest = quantize(source, tuned("int4-g32", what, method), tmp_path / "out", settings(what))
    record, change = manifest.tuned, manifest.tuning[0]
    assert record is not None
    assert record.after <= record.before
    assert change.name == f"tune {what}"
    assert set(change.tensors) <= {entry.stored for entry in manifest.tensors}
    written = open_model(tmp_path / "out")
    untuned = replace(tuned("int4-g32", what, method), tune=None)
    plain = quantize(source, untuned, tmp_path / "plain", settings(what))
    moved = {
        entry.stored
        for entry, other in zip(manifest.tensors, plain.tensors, strict=True)
        if entry.sha256 != other.sha256
    }
    assert moved == set(change.tensors)
    assert written.read("layers.0.attn_norm.weight").spec == F32


@pytest.mark.parametrize("hidden", [0.0, 1.0])
def test_a_transformed_model_learns_from_the_source(tmp_path, hidden):
    """Seven bits in a rotated stream are near to the source, wherever its states are taken."""
    recipe = replace(tuned("int8-g32"), transforms=("rotate-residual", "rotate-mlp"))
    given = settings()
    given = dataclasses.replace(given, tuning=dataclasses.replace(given.tuning, hidden=hidden))
    manifest = quantize(open_model(folder(tmp_path)), recipe, tmp_path / "out", given)
    assert manifest.tuned.after <= manifest.tuned.before < 1e-3


def test_the_manifest_has_every_setting_of_the_tuning(tmp_path):
    chosen = TuneSettings(
        what=Tuned.ROUNDING,
        steps=3,
        batch=3,
        rate=0.02,
        code_rate=0.25,
        warmup=0.5,
        hidden=2.0,
        check=5,
        patience=9,
        seed=11,
        precision=Precision.F32,
        round_activations=True,
    )
    names = {field.name for field in dataclasses.fields(chosen)} - {"recompute"}
    assert all(getattr(chosen, name) != getattr(TuneSettings(), name) for name in names)
    source = open_model(folder(tmp_path))
    given = dataclasses.replace(settings(), tuning=chosen)
    manifest = quantize(source, tuned("int4-g32", "rounding"), tmp_path / "out", given)
    assert tune_settings(manifest) == chosen


def test_a_record_of_before_means_the_settings_of_then():
    record = {field.name: field.default for field in msgspec.structs.fields(TuneRecord)}
    usual = TuneSettings()
    for name in ("warmup", "hidden", "check", "patience"):
        assert record[name] == getattr(usual, name)


def test_a_gguf_file_holds_what_was_tuned_in_its_own_conventions(tmp_path):
    config = CONFIGS["gemma3"]
    file = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    quantize(file, tuned("q4_0"), tmp_path / "out.gguf", settings())
    quantize(file, tuned("q4_0"), tmp_path / "out", settings())
    one, other = open_model(tmp_path / "out.gguf"), open_model(tmp_path / "out")
    for slot in one.slots:
        assert np.allclose(decode(one.read(slot)), decode(other.read(slot)), atol=1e-7), slot


def test_vectors_are_promised_in_float32_where_they_may_change(tmp_path):
    planned = plan(open_model(folder(tmp_path)), tuned("int4-g32"))
    assert all(t.format == F32 for t in planned.tensors if len(t.source.shape) < 2)
