"""The rotation inside the MLP: the function stays in all executors, and artefacts say it.

Logits of the rotated model may differ from the source's by the roundings of float32, measured as in
`test_transformed`.
"""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from test_quantize_transformed import deviation, recipe, settings
from test_transformed import DENSE, logits, opened_sources
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.errors import BadFileError, UnsupportedError
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.methods.rotation import block_size, hadamard, signs, sylvester
from fewbit.model.binding import bind
from fewbit.model.decoder import build_program
from fewbit.model.sites import SiteKind, rescale_sites
from fewbit.model.transformed import transformed
from fewbit.model.transforms import RotateMlp
from fewbit.model.weights import open_model
from fewbit.program import CacheType, Hadamard
from fewbit.quantization import calibrated, plan, quantize
from fewbit.quantization.planned import Container
from fewbit.quantization.transforming import apply_transforms, outline
from fewbit.runtime.chooser import choose
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.reference import choose_reference
from fewbit.runtime.reference import hadamard as hadamard_of_rows
from fewbit.runtime.segment import ReferenceSegment
from fewbit.runtime.step import Span, StepInput

OUTLIER = 7
"""A channel of up that trained models would have large."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    with opened_sources(tmp_path_factory.mktemp("models")) as found:
        yield found


def rotated(source):
    return apply_transforms(source, ("rotate-mlp",), {}, None)[0]


def in_native(source):
    """Run what `test_transformed.logits` runs in the native executor."""
    program = build_program(source.config, CacheType.F32)
    executor = NativeExecutor(bind(source, program, choose), pages=1, threads=1)
    tokens = np.random.default_rng(5).integers(0, source.config.vocabulary, 24, np.int32)
    span = Span(0, len(tokens), 0, np.zeros(1, np.int32))
    return executor.step(StepInput(tokens, (span,), np.arange(len(tokens), dtype=np.int32))).copy()


def in_torch(source):
    torch = pytest.importorskip("torch")
    executors = importlib.import_module("fewbit.runtime.torch_executor")
    program = build_program(source.config, CacheType.F32)
    tensors = {slot: source.read(slot) for slot in program.slots()}
    weights = executors.DecodedWeights(tensors, torch.float32)
    executor = executors.TorchExecutor(program, weights)
    tokens = np.random.default_rng(5).integers(0, source.config.vocabulary, 24, np.int32)
    states = executor.states(torch.from_numpy(tokens[None].astype(np.int64)))
    return executor.logits(states)[0].numpy()


@pytest.mark.parametrize("name", DENSE)
def test_logits_stay_in_the_reference_and_in_the_native_executor(sources, name):
    source, plain, tolerance = sources(name)
    changed = rotated(source)
    assert changed.config.mlp_rotation == 32
    ops = [op for op in build_program(changed.config).ops if isinstance(op, Hadamard)]
    assert [op.size for op in ops] == [32] * source.config.layers
    found = logits(changed)
    np.testing.assert_allclose(found, plain, rtol=0, atol=tolerance)
    assert (found != plain).any(), "nothing was changed"
    np.testing.assert_allclose(in_native(changed), plain, rtol=0, atol=2 * tolerance)


@pytest.mark.interop
@pytest.mark.parametrize("name", ["llama-biased", "gemma3"])
def test_logits_stay_in_the_torch_executor(sources, name):
    source, plain, tolerance = sources(name)
    np.testing.assert_allclose(in_torch(rotated(source)), plain, rtol=0, atol=2 * tolerance)


def plant_columns_left(edits):
    return {slot: edit for slot, edit in edits.items() if ".down." not in slot}


def plant_bias_left(edits):
    return {slot: edit for slot, edit in edits.items() if not slot.endswith(".bias")}


def plant_signs_left(edits):
    return {slot: edit[-1:] if ".down." in slot else edit for slot, edit in edits.items()}


@pytest.mark.parametrize("plant", [plant_columns_left, plant_bias_left, plant_signs_left])
def test_planted_bugs_are_seen(sources, plant):
    source, plain, tolerance = sources("llama-biased")
    changed = rotated(source)
    object.__setattr__(changed, "edits", plant(changed.edits))
    assert np.abs(logits(changed) - plain).max() > 100 * tolerance


def test_an_op_in_other_blocks_than_the_columns_is_seen(sources):
    source, plain, tolerance = sources("llama")
    sites = tuple(s for s in rescale_sites(source.config) if s.kind is SiteKind.UP)
    changed = transformed(source, [RotateMlp(sites, 16, signs(96, 0))])
    np.testing.assert_allclose(logits(changed), plain, rtol=0, atol=tolerance)
    object.__setattr__(changed.config, "mlp_rotation", 32)
    assert np.abs(logits(changed) - plain).max() > 100 * tolerance


def test_an_outlier_is_spread_over_its_block():
    x = np.zeros((1, 96), np.float32)
    x[0, OUTLIER] = 64
    spread = hadamard_of_rows(x, 32)
    np.testing.assert_allclose(np.abs(spread[0, :32]), 64 / np.sqrt(32), rtol=1e-6)
    assert not spread[0, 32:].any()


def test_sizes_and_signs():
    assert [block_size(n) for n in (96, 1536, 4864, 8960, 2048, 7)] == [32, 512, 256, 256, 2048, 1]
    matrix = sylvester(64)
    np.testing.assert_allclose(matrix @ matrix, np.eye(64), atol=1e-14)
    np.testing.assert_allclose(matrix, hadamard(64), atol=1e-15)
    assert set(signs(64, 0)) == {1.0, -1.0}


@pytest.mark.parametrize("write", [write_huggingface, write_gguf])
def test_an_artefact_says_it_and_is_read_back(tmp_path, write):
    config = CONFIGS["llama-tied"]
    with open_model(write(tmp_path / "in.gguf", config, random_weights(config))) as source:
        manifest = quantize(source, recipe("rotate-mlp"), tmp_path / "out", settings())
        (change,) = manifest.transforms
        assert change.name == "rotate-mlp"
        assert "3 blocks of 32" in change.detail
        with open_model(tmp_path / "out") as found:
            assert found.config.mlp_rotation == 32
            assert deviation(found, source) < 0.1
            again = quantize(found, recipe(form="int4-g32"), tmp_path / "again")
            assert again.transforms == ()
        with open_model(tmp_path / "again") as second:
            assert second.config.mlp_rotation == 32
            assert deviation(second, source) < 0.5
    stated = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert stated == {"quant_method": "fewbit", "format_version": 1, "mlp_rotation": 32}


def test_an_artefact_without_what_its_configuration_says_is_another_model(tmp_path):
    """The control of the test before: the field decides, not the weights."""
    config = CONFIGS["llama-tied"]
    with open_model(write_huggingface(tmp_path / "in", config, random_weights(config))) as source:
        quantize(source, recipe("rotate-mlp"), tmp_path / "out", settings())
        rewrite(tmp_path / "out", lambda stated: stated.pop("mlp_rotation"))
        with open_model(tmp_path / "out") as found:
            assert deviation(found, source) > 0.5


def rewrite(folder, change):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"])
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (48, "no power of two that divides the width 96"),
        (64, "no power of two that divides the width 96"),
        (1, "no power of two"),
        (-32, "no power of two"),
        (1 << 62, "no power of two"),
        (32.5, "quantization_config cannot be used"),
        ("32", "quantization_config cannot be used"),
        (None, "quantization_config cannot be used"),
    ],
)
def test_damaged_sizes_are_refused(tmp_path, size, message):
    config = CONFIGS["llama-tied"]
    with open_model(write_huggingface(tmp_path / "in", config, random_weights(config))) as source:
        quantize(source, recipe("rotate-mlp"), tmp_path / "out", settings())
    rewrite(tmp_path / "out", lambda stated: stated.update(mlp_rotation=size))
    with pytest.raises(BadFileError, match=message):
        open_model(tmp_path / "out")


def test_what_has_no_place_for_it_refuses_it_in_the_plan(tmp_path, sources):
    config = CONFIGS["llama-tied"]
    with open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config))) as source:
        wanted = recipe("rotate-mlp", form="q8_0", head="q8_0")
        with pytest.raises(UnsupportedError, match=r"rotate-mlp.* GGUF file has no place"):
            plan(source, wanted, Container.GGUF)
    changed = rotated(sources("llama")[0])
    with pytest.raises(UnsupportedError, match=r"in blocks of 32, which hf has no place"):
        plan_export(changed, find_target("hf", ExportSettings()))
    with pytest.raises(UnsupportedError, match="mixtures of experts"):
        outline(sources("mixtral")[0], ("rotate-mlp",), {})
    with pytest.raises(UnsupportedError, match="rotated already"):
        outline(changed, ("rotate-mlp",), {})


def test_a_width_that_is_odd_is_refused(tmp_path):
    config = {**CONFIGS["llama"], "intermediate_size": 104}
    with (
        open_model(write_huggingface(tmp_path / "in", config, random_weights(config))) as source,
        pytest.raises(UnsupportedError, match="width 104 divides into blocks of 8"),
    ):
        outline(source, ("rotate-mlp",), {})


def test_what_is_behind_the_op_is_no_place_to_rescale(sources):
    source, *_ = sources("llama")
    kinds = {site.kind for site in rescale_sites(rotated(source).config)}
    assert kinds == {SiteKind.NORM, SiteKind.VALUES}


def test_a_solver_sees_the_rotated_inputs(sources, tmp_path, monkeypatch):
    """Against one run in NumPy; the control is the same without the op."""
    source, taken = sources("llama")[0], {}
    true = calibrated.solve_with

    def spy(planned, tensor, statistics):
        taken[tensor.slot] = statistics
        return true(planned, tensor, statistics)

    monkeypatch.setattr(calibrated, "solve_with", spy)
    solved = recipe("rotate-mlp", method="imatrix", form="int4-g32")
    quantize(source, solved, tmp_path / "out", replace(settings(), inputs="source"))
    inputs = traced(rotated(source), settings().calibration)
    for name, equal in (("mlp_rotate", True), ("activation", False)):
        found = {slot: op for slot, op in taken.items() if ".down." in slot}
        for slot, statistics in found.items():
            x = inputs[slot.replace("down.weight", name)].astype(np.float64)
            # Keys and values in f16 move inputs by some 2^-11 of themselves.
            squares = np.square(x).sum(axis=0)
            assert np.allclose(statistics.squares, squares, rtol=1e-2) == equal


def traced(source, calibration):
    program = build_program(source.config)
    binding = bind(source, program, choose_reference)
    wanted = [op.out for op in program.ops if op.site in ("mlp_rotate", "activation")]
    segment = ReferenceSegment(binding, range(len(program.ops)))
    return segment.run(calibration.lengths, {}, wanted, np.concatenate(calibration.windows))


def test_it_follows_other_transforms(sources):
    source, plain, tolerance = sources("llama-tied")
    names = ("rescale", "rotate-residual", "rotate-heads", "rotate-mlp")
    changed, applied = apply_transforms(source, names, {}, None)
    assert [one.name for one in applied] == list(names)
    np.testing.assert_allclose(logits(changed), plain, rtol=0, atol=2 * tolerance)
