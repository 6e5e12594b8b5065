"""The whole path on tiny models: statistics, solving layer by layer, resume, what is recorded."""

import dataclasses
import json
import math

import numpy as np
import pytest
from msgspec import structs
from quantize_cases import tree_hash
from test_walk import calibration
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.calibrate.importance import Importance, ImportanceMatrix, write_importance
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import NumericalError, StoppedError, UsageError
from fewbit.formats.registry import decode, parse_format
from fewbit.methods.solvers import METHODS
from fewbit.methods.statistics import InputStatistics
from fewbit.model.decoder import build_program
from fewbit.model.families import gguf_name
from fewbit.model.weights import open_model
from fewbit.program import Linear, RmsNorm
from fewbit.quantization import QuantizeSettings, pipeline, quantize
from fewbit.quantization import calibrated as calibrated_module
from fewbit.quantization.bound import BoundModel
from fewbit.quantization.importance import given_importance
from fewbit.quantization.job import Resume, work_folder
from fewbit.recipes import built_in
from fewbit.records.recipe import Recipe, Role, Rule
from fewbit.runtime.native import thread_pool

SETTINGS = QuantizeSettings(calibration=calibration(), threads=1)


def folder(tmp_path, name="llama", weights=None):
    config = CONFIGS[name]
    return write_huggingface(tmp_path / "in", config, weights or random_weights(config))


def linear(method: str, form: str = "int4-g32") -> Recipe:
    return Recipe(name="test", method=method, rules=(Rule(role=Role.LINEAR, format=form),))


@pytest.mark.parametrize("needs_no_text", [True, False])
def test_each_rule_solves_by_its_method(tmp_path, needs_no_text):
    """On the source's own inputs a matrix's bits depend on its own method alone."""
    other = "mse" if needs_no_text else "imatrix"
    mixed = Recipe(
        name="mixed",
        method="gptq",
        rules=(
            Rule(match="layers.*.down.weight", format="int4-g32", method=other),
            Rule(match="layers.*.q.weight", format="int4-g32", method="rtn"),
            Rule(role=Role.LINEAR, format="int4-g32"),
        ),
    )
    settings = dataclasses.replace(SETTINGS, inputs="source")
    source = open_model(folder(tmp_path))
    found = quantize(source, mixed, tmp_path / "mixed", settings)
    bits = {
        method: {
            t.slot: t.sha256
            for t in quantize(source, linear(method), tmp_path / method, settings).tensors
        }
        for method in ("gptq", "rtn", other)
    }
    for tensor in found.tensors:
        if tensor.status == "quantized":
            site = tensor.slot.split(".")[2]
            method = {"down": other, "q": "rtn"}.get(site, "gptq")
            assert tensor.method == method
            assert tensor.sha256 == bits[method][tensor.slot]
    assert len({method["layers.0.down.weight"] for method in bits.values()}) == 3


class Killed(Exception):
    """Stands for the end of the process."""


def killed_after(cuts: int):
    def progress(what: str, done: int, _all: int) -> None:
        if what.startswith("solving") and done == cuts:
            raise Killed

    return progress


def test_case_23_solving_changes_weights_and_lowers_the_error_of_outputs(tmp_path, monkeypatch):
    source, taken = open_model(folder(tmp_path)), {}
    true = calibrated_module.solve_with

    def spy(planned, tensor, statistics):
        taken[tensor.slot] = statistics
        return true(planned, tensor, statistics)

    monkeypatch.setattr(calibrated_module, "solve_with", spy)
    quantize(source, linear("gptq", "int3-g32"), tmp_path / "gptq", SETTINGS)
    quantize(source, linear("rtn", "int3-g32"), tmp_path / "rtn")
    errors = {}
    for name in ("gptq", "rtn"):
        found = open_model(tmp_path / name)
        errors[name] = {
            slot: output_error(decode(source.read(slot)), decode(found.read(slot)), statistics)
            for slot, statistics in taken.items()
        }
    assert len(taken) == 3 * 7
    lower = [errors["gptq"][slot] < errors["rtn"][slot] for slot in taken]
    assert all(lower)
    assert sum(errors["gptq"].values()) < 0.8 * sum(errors["rtn"].values())


def output_error(weight, found, statistics: InputStatistics) -> float:
    difference = (weight - found).astype(np.float64)
    return float(np.einsum("ri,ij,rj->", difference, statistics.gram, difference))


@pytest.mark.parametrize("method", ["imatrix", "gptq"])
def test_a_layer_is_solved_with_what_quantized_layers_give_it(tmp_path, method):
    source = open_model(folder(tmp_path))
    quantized = quantize(source, linear(method), tmp_path / "a", SETTINGS)
    plain = dataclasses.replace(SETTINGS, inputs="source")
    other = quantize(source, linear(method), tmp_path / "b", plain)
    same = {
        one.slot: one.sha256 == two.sha256
        for one, two in zip(quantized.tensors, other.tensors, strict=True)
    }
    assert all(same[f"layers.0.{site}.weight"] for site in "qkv")  # nothing is before them
    assert not all(same.values())
    assert (quantized.inputs, other.inputs) == ("quantized", "source")
    assert quantized.calibration == SETTINGS.calibration.facts


def propagating(part: float, form: str = "int3-g32") -> Recipe:
    return structs.replace(linear("gptq", form), propagation=part)


def test_layers_make_up_for_the_errors_of_those_before_them(tmp_path):
    """The last layer's outputs come nearer to the source's; the first cut has nothing to undo."""
    source = open_model(folder(tmp_path))
    made = {
        part: quantize(source, propagating(part), tmp_path / str(part), SETTINGS)
        for part in (0.0, 0.5, 1.0)
    }
    bits = {part: {t.slot: t.sha256 for t in found.tensors} for part, found in made.items()}
    for site in "qkv":
        slot = f"layers.0.{site}.weight"
        assert bits[0.0][slot] == bits[0.5][slot] == bits[1.0][slot]
    assert len({found["layers.2.down.weight"] for found in bits.values()}) == 3
    exact = streams(source)
    away = {
        part: np.square(streams(open_model(tmp_path / str(part))) - exact).sum() for part in bits
    }
    assert away[1.0] < 0.95 * away[0.0]
    assert away[0.5] < away[0.0]
    assert made[0.5].recipe.propagation == 0.5


def streams(source) -> np.ndarray:
    """Return what the final norm reads of every calibration token."""
    program = build_program(source.config)
    ops = range(len(program.ops))
    norm = next(op for op in reversed(program.ops) if isinstance(op, RmsNorm))
    model = BoundModel(source, program, thread_pool(1))
    tokens = np.concatenate(calibration().windows)
    return model(ops, calibration().lengths, {}, [norm.x], tokens)[norm.x].astype(np.float64)


def test_a_sources_inputs_have_no_errors_to_make_up_for(tmp_path):
    settings = dataclasses.replace(SETTINGS, inputs="source")
    with pytest.raises(UsageError, match="--inputs source there are none"):
        quantize(open_model(folder(tmp_path)), propagating(0.5), tmp_path / "out", settings)


@pytest.mark.parametrize("propagation", [0.0, 0.5])
@pytest.mark.parametrize("cuts", [0, 1, 5, 12])
def test_case_25_a_killed_job_goes_on_to_the_same_bits(tmp_path, cuts, propagation, monkeypatch):
    source = open_model(folder(tmp_path))
    recipe = structs.replace(built_in("gptq-int4-g32"), propagation=propagation)
    quantize(source, recipe, tmp_path / "whole", SETTINGS)
    out = tmp_path / "out"
    with pytest.raises(Killed):
        quantize(source, recipe, out, SETTINGS, killed_after(cuts))
    assert not out.exists()
    assert len(list(work_folder(out).glob("*.safetensors"))) == cuts
    solved = []
    true = calibrated_module.solve_with
    monkeypatch.setattr(
        calibrated_module, "solve_with", lambda *a: solved.append(a[1].slot) or true(*a)
    )
    quantize(source, recipe, out, SETTINGS)
    assert tree_hash(out) == tree_hash(tmp_path / "whole")
    assert not work_folder(out).exists()
    matrices = 3 * 7 + 1
    done = {0: 0, 1: 3, 5: 10, 12: 21}[cuts]
    assert len(solved) == matrices - done  # only what was left


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_stop_from_outside_is_resumable_once_something_is_solved(tmp_path, kind):
    source, out = open_model(folder(tmp_path)), tmp_path / "out"

    def stop(at: int):
        def progress(what: str, done: int, _all: int) -> None:
            if what.startswith("solving") and done == at:
                raise kind

        return progress

    with pytest.raises(kind):
        quantize(source, linear("gptq"), out, SETTINGS, stop(0))
    assert not work_folder(out).exists()
    with pytest.raises(StoppedError, match="the same job goes on there") as stopped:
        quantize(source, linear("gptq"), out, SETTINGS, stop(3))
    assert stopped.value.exit_code == 75
    assert work_folder(out).exists()


def test_work_of_another_recipe_is_refused_and_kept_unless_it_may_go(tmp_path):
    source, out = open_model(folder(tmp_path)), tmp_path / "out"
    with pytest.raises(Killed):
        quantize(source, built_in("gptq-int4-g32"), out, SETTINGS, killed_after(5))
    before = tree_hash(work_folder(out))
    with pytest.raises(UsageError, match=r"done with another recipe; .* --resume never"):
        quantize(source, built_in("gptq-int5-g32"), out, SETTINGS)
    assert tree_hash(work_folder(out)) == before
    anew = dataclasses.replace(SETTINGS, resume=Resume.NEVER)
    quantize(source, built_in("gptq-int5-g32"), out, anew)
    fresh = quantize(source, built_in("gptq-int5-g32"), tmp_path / "fresh", SETTINGS)
    assert tree_hash(out) == tree_hash(tmp_path / "fresh")
    assert {e.format for e in fresh.tensors if e.slot.endswith("q.weight")} == {"int5-g32"}


def test_work_on_another_source_or_text_is_refused(tmp_path):
    source, out = open_model(folder(tmp_path)), tmp_path / "out"
    recipe = built_in("gptq-int4-g32")
    with pytest.raises(Killed):
        quantize(source, recipe, out, SETTINGS, killed_after(5))
    weights = random_weights(CONFIGS["llama"])
    weights["model.norm.weight"][0] += 1
    other = open_model(write_huggingface(tmp_path / "other", CONFIGS["llama"], weights))
    with pytest.raises(UsageError, match="done with another source;"):
        quantize(other, recipe, out, SETTINGS)
    text = dataclasses.replace(SETTINGS, calibration=calibration((70, 5)), inputs="source")
    with pytest.raises(UsageError, match="done with another calibration and inputs;"):
        quantize(source, recipe, out, text)


def test_earlier_work_can_be_required(tmp_path):
    source, out = open_model(folder(tmp_path)), tmp_path / "out"
    required = dataclasses.replace(SETTINGS, resume=Resume.REQUIRED)
    with pytest.raises(UsageError, match=r"There is no work on .*out to go on with"):
        quantize(source, linear("gptq"), out, required)
    with pytest.raises(Killed):
        quantize(source, linear("gptq"), out, SETTINGS, killed_after(5))
    quantize(source, linear("gptq"), out, required)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize(("method", "seconds", "lost"), [("mse", 0, 0), ("hqq", math.inf, 2)])
def test_a_method_without_text_goes_on_from_the_last_layer(
    tmp_path, method, seconds, lost, monkeypatch
):
    """Killed after 9 matrices: those of the second layer wait for its end, or for some time."""
    monkeypatch.setattr(pipeline, "_UNSAVED_SECONDS", seconds)
    source, out, recipe = open_model(folder(tmp_path)), tmp_path / "out", linear(method)
    quantize(source, recipe, tmp_path / "whole")
    true, solved = pipeline.solve_alone, []

    def killed(planned, tensor):
        if len(solved) == 9:
            raise Killed
        solved.append(tensor.slot)
        return true(planned, tensor)

    monkeypatch.setattr(pipeline, "solve_alone", killed)
    with pytest.raises(Killed):
        quantize(source, recipe, out)
    again = []
    monkeypatch.setattr(pipeline, "solve_alone", lambda *a: again.append(a[1].slot) or true(*a))
    quantize(source, recipe, out)
    assert len(again) == 3 * 7 - 9 + lost
    assert tree_hash(out) == tree_hash(tmp_path / "whole")


def flipped(content: bytes) -> bytes:
    """Return a file with one bit of its last array changed, as a failing disk may."""
    return content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]


def without_codes(content: bytes) -> bytes:
    """Return a sound file that tells of another slot."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    records = header["__metadata__"]
    records["layers.9.q.weight"] = next(iter(records.values()))
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + content[end:]


def retyped(content: bytes) -> bytes:
    """Return a file whose codes are said to be of another type of as many bytes."""
    return content.replace(b'"U8"', b'"I8"')


@pytest.mark.parametrize("damage", [lambda content: content[:-40], flipped, without_codes, retyped])
def test_a_damaged_file_of_work_is_solved_again(tmp_path, damage):
    source, out = open_model(folder(tmp_path)), tmp_path / "out"
    with pytest.raises(Killed):
        quantize(source, built_in("gptq-int4-g32"), out, SETTINGS, killed_after(5))
    damaged = sorted(work_folder(out).glob("*.safetensors"))[2]
    damaged.write_bytes(damage(damaged.read_bytes()))
    quantize(source, built_in("gptq-int4-g32"), out, SETTINGS)
    quantize(source, built_in("gptq-int4-g32"), tmp_path / "whole", SETTINGS)
    assert tree_hash(out) == tree_hash(tmp_path / "whole")


def test_case_13_statistics_leave_the_source_as_it_is(tmp_path):
    path = folder(tmp_path)
    before = tree_hash(path)
    quantize(open_model(path), built_in("gptq-int4-g32"), tmp_path / "out", SETTINGS)
    assert tree_hash(path) == before


def test_case_7_nothing_is_left_when_a_state_is_not_finite(tmp_path):
    weights = random_weights(CONFIGS["llama"])
    weights["model.layers.1.input_layernorm.weight"][:] = 3e38
    source = open_model(folder(tmp_path, weights=weights))
    with pytest.raises(NumericalError, match=r"input of layers\.1\.\w+\.weight.*token .* window"):
        quantize(source, linear("gptq"), tmp_path / "out", SETTINGS)
    assert not (tmp_path / "out").exists()


def test_case_16_a_tied_table_is_solved_for_the_head_and_looked_up_by_the_embedding(tmp_path):
    source = open_model(folder(tmp_path, "llama-tied"))
    manifest = quantize(source, built_in("gptq-int4-g32"), tmp_path / "out", SETTINGS)
    tables = [e for e in manifest.tensors if e.slot == "embed.weight"]
    assert [(e.format, e.method) for e in tables] == [("int6-g32", "gptq")]
    written = open_model(tmp_path / "out")
    assert written.config.tied
    assert "lm_head.weight" not in written.checkpoint.tensors


def test_a_separate_input_table_is_solved_without_inputs_and_the_manifest_says_so(tmp_path):
    source = open_model(folder(tmp_path))
    manifest = quantize(source, built_in("gptq-int4-g32"), tmp_path / "out", SETTINGS)
    methods = {e.slot: e.method for e in manifest.tensors}
    assert methods["embed.weight"] == METHODS["gptq"].without_inputs
    assert methods["head.weight"] == methods["layers.2.down.weight"] == "gptq"


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_gguf_file_gets_the_codes_of_the_folder_in_its_own_order(tmp_path, name):
    config = CONFIGS[name]
    weights = random_weights(config)
    file = open_model(write_gguf(tmp_path / "in.gguf", config, weights))
    recipe = built_in("gptq-q4_0")
    quantize(file, recipe, tmp_path / "out.gguf", SETTINGS)
    quantize(file, recipe, tmp_path / "out", SETTINGS)
    one, other = open_model(tmp_path / "out.gguf"), open_model(tmp_path / "out")
    assert isinstance(open_checkpoint(tmp_path / "out.gguf").tensors, object)
    for slot in one.slots:
        assert np.array_equal(decode(one.read(slot)), decode(other.read(slot))), slot


@pytest.mark.parametrize("form", ["q4_1", "q5_0", "q8_0", "iq4_nl", "int4-g32-asym", "int8-row"])
def test_every_kind_of_format_is_solved_and_run(tmp_path, form):
    source = open_model(folder(tmp_path))
    manifest = quantize(source, linear("gptq", form), tmp_path / "out", SETTINGS)
    solved = [e for e in manifest.tensors if e.status == "quantized"]
    assert len(solved) == 21
    assert all(e.format == form and 0 < e.relative_error < 0.3 for e in solved)
    read = open_model(tmp_path / "out").read("layers.0.q.weight")
    assert read.spec == parse_format(form)


def test_a_method_that_looks_at_inputs_needs_text(tmp_path):
    with pytest.raises(UsageError, match="give a text with --calibration"):
        quantize(open_model(folder(tmp_path)), linear("gptq"), tmp_path / "out")


def test_an_importance_matrix_stands_for_text(tmp_path):
    source = open_model(folder(tmp_path))
    random = np.random.default_rng(2)
    slots = [s for s in source.slots if len(source.info(s).shape) > 1 and s != "layers.1.o.weight"]
    entries = {
        gguf_name(slot): Importance(
            random.random((1, source.info(slot).shape[1])).astype(np.float32) * 100,
            np.array([50], np.int64),
        )
        for slot in slots
    }
    write_importance(tmp_path / "m.gguf", ImportanceMatrix(entries, ("text",), 1, 50))
    given = given_importance(tmp_path / "m.gguf")
    settings = QuantizeSettings(importance=given)
    manifest = quantize(source, linear("imatrix"), tmp_path / "out", settings)
    methods = {e.slot: (e.method, e.remarks) for e in manifest.tensors if e.status == "quantized"}
    assert methods["layers.0.q.weight"] == ("imatrix", ())
    assert methods["layers.1.o.weight"][0] == "mse"
    assert "no values for blk.1.attn_output.weight" in methods["layers.1.o.weight"][1][0]
    assert manifest.importance == given.facts
    with pytest.raises(UsageError, match="how inputs go together"):
        quantize(source, linear("gptq"), tmp_path / "no", settings)


def test_cuts_are_where_layers_share_an_input(tmp_path):
    source = open_model(folder(tmp_path))
    manifest = quantize(source, linear("gptq"), tmp_path / "out", SETTINGS)
    program = calibrated_module.build_program(source.config)
    layers = {op.weight for op in program.ops if isinstance(op, Linear)}
    solved = {e.slot for e in manifest.tensors if e.status == "quantized"}
    assert solved == layers - {"head.weight"}
