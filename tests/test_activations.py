"""From a recipe's `activations` to the kernels that run, and the command line's word over it."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.calibrate.calibration import calibration_set
from fewbit.checkpoint.artefact import ArtefactCheckpoint, write_artefact
from fewbit.cli.app import run
from fewbit.errors import BadFileError, KernelError, UnsupportedError, UsageError
from fewbit.formats.registry import FLOATS
from fewbit.model.binding import bind
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.decoder import build_program
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.quantization.pipeline import QuantizeSettings
from fewbit.recipes import built_in, find
from fewbit.records.kernels import Activations
from fewbit.records.manifest import read_manifest
from fewbit.records.recipe import Recipe, Role, Rule
from fewbit.runtime.chooser import choose
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.step import Span, StepInput

TOKENS = np.array([1, 5, 3, 2, 8], np.int32)
ROUNDINGS = {
    Activations.INT8: "int8-g32",
    Activations.TOKEN: "int8-token",
    Activations.BF16: "bf16",
}
"""Those that need nothing but the model."""
MIXED = Recipe(
    name="mixed",
    method="rtn",
    rules=(
        Rule(match="layers.0.*", format="int4-g32", activations=Activations.BF16),
        Rule(role=Role.LINEAR, format="int4-g32"),
    ),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "model"
    return write_huggingface(folder, CONFIGS["llama"], random_weights(CONFIGS["llama"]))


@pytest.fixture(scope="module")
def artefact(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("artefact") / "small"
    quantize(open_model(source), MIXED, out)
    return out


def roundings(path, **settings) -> dict[str, str]:
    with open_model(path) as model:
        return {k.slot: k.activations for k in planned_kernels(model, RunSettings(**settings))}


def logits(path, **settings) -> np.ndarray:
    with open_model(path) as model:
        runner = runner_of(model, RunSettings(threads=1, context=64, **settings))
        return np.concatenate([block.copy() for block in runner.score(TOKENS)])


def test_a_rule_decides_for_the_layers_it_fits(artefact):
    found = roundings(artefact)
    first = {slot: rounding for slot, rounding in found.items() if slot.startswith("layers.0.")}
    others = {slot: rounding for slot, rounding in found.items() if slot.startswith("layers.1.")}
    assert set(first.values()) == {"bf16"}
    assert set(others.values()) == {"int8-g32"}
    assert found["head.weight"] == "f32"


def test_the_manifest_says_of_every_matrix_how_its_input_is_rounded(artefact):
    entries = {entry.slot: entry.activations for entry in read_manifest(artefact).tensors}
    assert entries["layers.0.q.weight"] is Activations.BF16
    assert entries["layers.1.q.weight"] is Activations.INT8
    assert entries["head.weight"] is None
    assert entries["layers.0.attn_norm.weight"] is None


def test_what_is_not_rounded_to_int8_stands_in_the_file(artefact):
    with ArtefactCheckpoint(artefact) as checkpoint:
        infos = {name: info.activations for name, info in checkpoint.tensors.items()}
    said = {name for name, kind in infos.items() if kind is Activations.BF16}
    assert said
    assert all(name.startswith("model.layers.0.") for name in said)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_the_settings_have_the_last_word(artefact, executor):
    for kind, rounding in ROUNDINGS.items():
        found = roundings(artefact, activations=kind, executor=executor)
        assert set(found.values()) == {rounding, "f32"}


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_static_activations_need_a_scale_that_was_calibrated(artefact, executor):
    with pytest.raises(KernelError, match="no calibrated scale for"):
        roundings(artefact, activations=Activations.STATIC, executor=executor)


def test_each_rounding_gives_its_own_logits_near_the_references(artefact):
    results = {kind: logits(artefact, activations=kind) for kind in (None, *ROUNDINGS)}
    assert len({result.tobytes() for result in results.values()}) == 4
    want = logits(artefact, activations=Activations.BF16, executor="reference")
    # A float32 sum near a tie may round to the other bf16 number, one 2^-8 away, and the two
    # executors then differ by a few such steps of one input among many.
    scale = np.abs(want).max()
    assert np.abs(results[Activations.BF16] - want).max() < 2.0**-8 * scale


@pytest.fixture(scope="module")
def static(artefact, tmp_path_factory):
    """Write the artefact again with static activations in layer 1, its inputs within 6."""
    out = tmp_path_factory.mktemp("static") / "model"
    with ArtefactCheckpoint(artefact) as small:
        write_artefact(
            out,
            config=small.facts.config,
            sidecars={},
            tensors=[
                replace(info, activations=Activations.STATIC, input_scale=6 / 127)
                if "layers.1." in name and info.format not in FLOATS
                else info
                for name, info in small.tensors.items()
            ],
            read=small.read,
            manifest=(artefact / "manifest.json").read_bytes,
        )
    return out


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_static_scales_come_with_the_artefact(static, executor):
    with open_model(static) as model:
        kernels = planned_kernels(model, RunSettings(executor=executor))
    found = {k.slot: (k.activations, k.input_scale) for k in kernels}
    assert found["layers.1.down.weight"] == ("int8-static", 6 / 127)
    assert found["layers.2.down.weight"] == ("int8-g32", None)
    found = roundings(static, activations=Activations.TOKEN, executor=executor)
    assert set(found.values()) == {"int8-token", "f32"}


STATIC = Recipe(
    name="static",
    method="rtn",
    rules=(
        Rule(role=Role.EMBEDDING, format="int8-row", activations=Activations.STATIC),
        Rule(role=Role.LINEAR, format="int8-row", activations=Activations.STATIC),
        Rule(role=Role.HEAD, format="int8-row", activations=Activations.TOKEN),
    ),
)


def test_static_scales_are_calibrated_where_a_recipe_asks_for_them(source, tmp_path):
    random = np.random.default_rng(6)
    windows = [random.integers(0, 320, 40).astype(np.int32) for _ in range(3)]
    calibration = calibration_set(windows, (), window_tokens=40)
    manifest = quantize(
        open_model(source), STATIC, tmp_path / "out", QuantizeSettings(calibration=calibration)
    )
    scales = {e.slot: e.input_scale for e in manifest.tensors if e.input_scale is not None}
    with open_model(tmp_path / "out") as model:
        assert {s: model.input_scale(s) for s in scales} == scales
        kernels = {k.slot: k for k in planned_kernels(model, RunSettings())}
    assert {s for s, k in kernels.items() if k.activations == "int8-static"} == set(scales)
    assert kernels["head.weight"].activations == "int8-token"
    # The first layer reads normed embeddings, which rows of int8 hardly move.
    with open_model(source) as model:
        binding = bind(model, build_program(model.config), choose)
        taps = frozenset({(0, "attn_norm")})
        executor = NativeExecutor(binding, pages=3, threads=1, taps=taps)
        pages = np.arange(3, dtype=np.int32)
        spans = tuple(Span(40 * i, 40, 0, pages[i : i + 1]) for i in range(3))
        executor.step(StepInput(np.concatenate(windows), spans, np.zeros(1, np.int32)))
        largest = np.abs(executor.tap(0, "attn_norm")).max()
    assert scales["layers.0.q.weight"] == pytest.approx(largest / 127, rel=0.02)
    assert scales["layers.0.q.weight"] == scales["layers.0.v.weight"]


def test_static_activations_without_calibration_are_refused(source, tmp_path):
    with pytest.raises(UsageError, match="'static' looks at what layers read; give a text"):
        quantize(open_model(source), STATIC, tmp_path / "out")


def test_static_activations_run_as_the_reference_says(static, artefact):
    """Codes that flip between the executors are few; the scales of another model are not."""
    want = logits(static, executor="reference")
    near = np.abs(logits(static) - want).max()
    assert near < np.abs(logits(artefact) - want).max() / 4


def test_a_forced_kernel_decides_for_its_layers(artefact):
    found = roundings(artefact, kernel="w4.sym.g32/abf16/portable")
    assert set(found.values()) == {"bf16", "f32"}
    with pytest.raises(KernelError, match="takes activations in bf16, and int8-g32 was asked"):
        roundings(artefact, kernel="w4.sym.g32/abf16/portable", activations=Activations.INT8)


def test_the_kernel_record_names_the_path(artefact):
    with open_model(artefact) as model:
        kernels = {k.slot: k for k in planned_kernels(model, RunSettings(isa="portable"))}
    assert kernels["layers.0.q.weight"].kernel == "w4.sym.g32/abf16/portable"
    assert kernels["layers.1.q.weight"].kernel == "w4.sym.g32/a8.g32/portable"
    reasons = {r.kernel: r.reason for r in kernels["layers.0.q.weight"].rejected}
    assert reasons["w4.sym.g32/a8.g32/portable"] == "activations in bf16 were asked for"
    reasons = {r.kernel: r.reason for r in kernels["layers.1.q.weight"].rejected}
    assert reasons["w4.sym.g32/abf16/portable"] == "activations in int8-g32 are the default"


def test_weight_only_recipes_are_built_in(source, tmp_path):
    recipe = built_in("rtn-int4-g32-wo")
    assert {rule.activations for rule in recipe.rules} == {Activations.BF16}
    quantize(open_model(source), recipe, tmp_path / "out")
    assert set(roundings(tmp_path / "out").values()) == {"bf16"}


def test_a_recipe_of_ones_own_says_it_rule_by_rule(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nmethod = "rtn"\n'
        '[[rules]]\nrole = "linear"\nformat = "int4-g32"\nactivations = "bf16"\n'
        '[[rules]]\nrole = "head"\nformat = "int8-g32"\n'
    )
    assert [r.activations for r in find(str(path)).rules] == [Activations.BF16, Activations.INT8]
    path.write_text(path.read_text().replace("bf16", "fp8"))
    with pytest.raises(BadFileError, match="activations"):
        find(str(path))


def test_a_gguf_file_has_no_place_for_it(tmp_path):
    config = CONFIGS["llama"]
    file = write_gguf(tmp_path / "model.gguf", config, random_weights(config))
    rules = (Rule(role=Role.LINEAR, format="q8_0", activations=Activations.BF16),)
    wanted = Recipe(name="wo", method="rtn", rules=rules)
    with pytest.raises(UnsupportedError, match="bf16, which a GGUF file has no place for"):
        quantize(open_model(file), wanted, tmp_path / "out.gguf")


def test_an_unknown_rounding_in_an_artefact_is_refused(artefact, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for part in artefact.iterdir():
        content = part.read_bytes()
        damaged.joinpath(part.name).write_bytes(content.replace(b'\\"bf16\\"', b'\\"fp16\\"'))
    with pytest.raises(
        BadFileError, match="has activations 'fp16', not int8, int8-token, int8-static or bf16"
    ):
        open_model(damaged)


def test_the_command_line_overrides_the_model(artefact, capsys):
    arguments = ["inspect", str(artefact), "--kernels", "--activations", "bf16", "--json", "-"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert '"activations": "bf16"' in shown
    assert '"activations": "int8-g32"' not in shown
