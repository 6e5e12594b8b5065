"""Calibration of mixtures: each expert on the rows that reach it, and what it is given without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.calibrate.calibration import CalibrationSet, calibration_set
from fewbit.calibrate.importance import Importance, ImportanceMatrix
from fewbit.errors import NumericalError, UsageError
from fewbit.methods.shrinkage import share_of_prior
from fewbit.methods.statistics import InputStatistics
from fewbit.model.binding import bind
from fewbit.model.decoder import build_program
from fewbit.model.families import expert_of
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import ModelSource, open_model
from fewbit.program import CacheType, Mixture
from fewbit.quantization import quantize
from fewbit.quantization.bound import BoundModel
from fewbit.quantization.experts import parts
from fewbit.quantization.importance import GivenImportance
from fewbit.quantization.pipeline import QuantizeSettings
from fewbit.quantization.walk import Cut, WalkOptions, cuts, stages, walk
from fewbit.recipes import built_in
from fewbit.records.calibration import ImportanceFacts
from fewbit.records.manifest import Manifest
from fewbit.records.recipe import Recipe, Role, Rule
from fewbit.runtime.mixture import route
from fewbit.runtime.native import thread_pool
from fewbit.runtime.reference import ReferenceExecutor, choose_reference
from fewbit.runtime.step import PAGE, Span, StepInput

CONFIG = {
    **CONFIGS["qwen3-moe"],
    "num_hidden_layers": 1,
    "num_experts": 5,
    "num_experts_per_tok": 2,
}
LENGTHS = (40, 64, 7)
BFLOAT = 2.0**-8
"""A Gram matrix's kernel may round its inputs to bf16: half a unit, 2^-9, in each factor."""


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)


def source_of(path: Path, weights: dict[str, np.ndarray] | None = None) -> ModelSource:
    weights = random_weights(CONFIG) if weights is None else weights
    return open_model(write_huggingface(path / "model", CONFIG, weights))


def calibration(lengths: tuple[int, ...] = LENGTHS, masked: int = 5) -> CalibrationSet:
    """Random windows; the first rows of each do not count."""
    random = np.random.default_rng(3)
    windows = [random.integers(0, 320, n).astype(np.int32) for n in lengths]
    masks = [np.arange(n) >= masked for n in lengths]
    return calibration_set(windows, (), window_tokens=max(lengths), masks=masks)


def visited(source: ModelSource, texts: CalibrationSet) -> dict[str, InputStatistics]:
    """Return the statistics of every cut's input by buffer, nothing being replaced."""
    program, pool = build_program(source.config), thread_pool(1)
    found: dict[str, InputStatistics] = {}

    def visit(cut: Cut, statistics: Callable[[], InputStatistics]) -> None:
        found[cut.x] = statistics()

    walk(program, texts, BoundModel(source, program, pool), visit, WalkOptions(pool))
    return found


def traced(source: ModelSource, texts: CalibrationSet) -> list[dict[str, np.ndarray]]:
    """Return every buffer of every window, by the reference executor."""
    program = build_program(source.config)
    binding = bind(source, program, choose_reference)
    found = []
    for window in texts.windows:
        pages = np.arange(-(-len(window) // PAGE), dtype=np.int32)
        span = Span(0, len(window), 0, pages)
        step = StepInput(window, (span,), np.arange(len(window), dtype=np.int32))
        found.append(dict(ReferenceExecutor(binding, len(pages)).trace(step)))
    return found


def never_reached() -> dict[str, np.ndarray]:
    """Return weights whose router gives equal logits, so that only the first experts are chosen."""
    weights = random_weights(CONFIG)
    weights["model.layers.0.mlp.gate.weight"][:] = 0
    return weights


# --- cuts ---------------------------------------------------------------------------------------


def test_every_matrix_but_the_table_is_in_one_cut(tmp_path):
    program = build_program(source_of(tmp_path).config)
    slots = [slot for cut in cuts(program) for slot in cut.slots]
    matrices = [s for s in program.slots() if "norm" not in s and s != "embed.weight"]
    assert sorted(slots) == sorted(matrices)
    places = [cut.index for cut in cuts(program)]
    assert places == sorted(places)


def test_an_experts_down_comes_behind_its_gate_and_up(tmp_path):
    program = build_program(source_of(tmp_path).config)
    mixture = next(op for op in program.ops if isinstance(op, Mixture))
    slots = [[op.weight for op in part.layers] for part in parts(mixture)]
    stem = "layers.0.experts"
    assert slots[:2] == [
        [f"{stem}.0.gate.weight", f"{stem}.0.up.weight"],
        [f"{stem}.0.down.weight"],
    ]
    assert len(slots) == 10


def test_a_mixtures_input_must_fit_in_memory(tmp_path):
    program = build_program(source_of(tmp_path).config)
    with pytest.raises(UsageError, match="calibrate on fewer or shorter windows"):
        stages(program, rows=1000, room=4 * 1000 * 64)
    assert all(stage.kept for stage in stages(program, rows=1000) if stage.cut.part)


# --- statistics ---------------------------------------------------------------------------------


def visited_and_routed(tmp_path):
    """Return statistics by slot's input, the rows counted in them, float64, and who got each."""
    source, texts = source_of(tmp_path), calibration()
    buffers, counted = traced(source, texts), np.concatenate(texts.masks)
    op = next(op for op in build_program(source.config).ops if isinstance(op, Mixture))
    x, routed = (np.concatenate([b[name] for b in buffers])[counted] for name in (op.x, op.router))
    return visited(source, texts), x.astype(np.float64), route(routed, op)[0]


def test_statistics_are_those_of_the_rows_that_are_routed_to_the_expert(tmp_path):
    """Against the reference's buffers: its own rows, and k average rows of all."""
    found, x, chosen = visited_and_routed(tmp_path)
    for number in range(CONFIG["num_experts"]):
        rows = x[(chosen == number).any(axis=1)]
        mean = x.T @ x / len(x)
        prior = int(np.ceil(np.trace(mean) ** 2 / np.square(mean).sum())) + 1
        statistics = found[f"layers.0.experts.{number}.input"]
        assert statistics.count == len(rows) + prior
        expected = rows.T @ rows + prior * mean
        assert np.abs(statistics.gram - expected).max() < BFLOAT * np.abs(expected).max()
        assert f"{len(rows)} calibration tokens reached" in statistics.remarks[0]


def test_downs_inputs_are_what_gate_and_up_make_of_the_rows(tmp_path):
    found, x, chosen = visited_and_routed(tmp_path)
    weights = random_weights(CONFIG)
    stem = "model.layers.0.mlp.experts.2"
    gate = x @ weights[f"{stem}.gate_proj.weight"].T
    inner = gate / (1 + np.exp(-gate)) * (x @ weights[f"{stem}.up_proj.weight"].T)
    rows = inner[(chosen == 2).any(axis=1)]
    mean = inner.T @ inner / len(inner)
    statistics = found["layers.0.experts.2.activation"]
    expected = rows.T @ rows + (statistics.count - len(rows)) * mean
    assert np.abs(statistics.gram - expected).max() < BFLOAT * np.abs(expected).max()


def test_statistics_do_not_depend_on_the_batch(tmp_path, monkeypatch):
    source, texts = source_of(tmp_path), calibration()
    together = visited(source, texts)
    monkeypatch.setattr("fewbit.quantization.walk._PIECE_ROWS", 1)
    one_by_one = visited(source, texts)
    for buffer, statistics in together.items():
        assert statistics.count == one_by_one[buffer].count
        assert np.array_equal(statistics.gram, one_by_one[buffer].gram)
        assert np.array_equal(statistics.squares, one_by_one[buffer].squares)


def test_an_expert_that_nothing_reached_gets_what_all_tokens_read(tmp_path):
    """Cases 1 and 5: nothing is NaN, and no other expert is touched by it."""
    source, texts = source_of(tmp_path, never_reached()), calibration()
    found = visited(source, texts)
    idle, busy = found["layers.0.experts.4.input"], found["layers.0.experts.0.input"]
    total = texts.facts.counted
    assert idle.remarks == (
        "No calibration token reached this expert; its statistics are those of all tokens.",
    )
    assert np.allclose(idle.gram / idle.count, busy.gram / busy.count, rtol=1e-4, atol=1e-6)
    assert busy.remarks[0].startswith(f"{total} calibration tokens")
    inner = found["layers.0.experts.4.activation"]
    inner.require_finite()
    assert inner.squares.min() > 0
    assert share_of_prior(0, idle) == 1


def test_a_value_that_is_not_finite_is_named_with_expert_and_token(tmp_path):
    weights = random_weights(CONFIG)
    for part in ("gate_proj", "up_proj"):
        weights[f"model.layers.0.mlp.experts.0.{part}.weight"][3] = 1e30
    source, texts = source_of(tmp_path, weights), calibration()
    with pytest.raises(NumericalError, match=r"experts\.0\.down\.weight: element 3 of token"):
        visited(source, texts)


# --- quantizing ---------------------------------------------------------------------------------


def logits_of(path: Path, tokens: np.ndarray) -> np.ndarray:
    settings = RunSettings(executor="native", cache_type=CacheType.F32, context=128)
    with open_model(path) as source:
        return np.concatenate([rows.copy() for rows in runner_of(source, settings).score(tokens)])


def quantized(source: ModelSource, name: str, out: Path, **settings) -> Manifest:
    texts = calibration((120,) * 12, masked=0)
    chosen = QuantizeSettings(calibration=texts, threads=1, **settings)
    return quantize(source, built_in(name), out, chosen)


@pytest.mark.parametrize("inputs", ["quantized", "source"])
def test_experts_are_solved_on_their_own_inputs_and_err_less(tmp_path, inputs):
    """GPTQ minimizes what reaches the output, so with the same formats the logits err less; both
    are far from the source, so that neither is a copy (case 23)."""
    source = source_of(tmp_path)
    tokens = np.random.default_rng(9).integers(0, 320, 100).astype(np.int32)
    expected = logits_of(source.path, tokens)
    plain = quantized(source, "rtn-int3-g32", tmp_path / "rtn")
    solved = quantized(source, "gptq-int3-g32", tmp_path / "gptq", inputs=inputs)
    errors = [np.square(logits_of(tmp_path / n, tokens) - expected).mean() for n in ("rtn", "gptq")]
    assert errors[1] < 0.8 * errors[0]
    of_experts = [e for e in solved.tensors if expert_of(e.slot) is not None]
    assert {e.method for e in of_experts} == {"gptq"}
    assert all("calibration tokens reached this expert" in e.remarks[0] for e in of_experts)
    changed = {e.slot for e in plain.tensors if expert_of(e.slot) is not None}
    codes = {e.slot: e.sha256 for e in plain.tensors}
    assert all(codes[e.slot] != e.sha256 for e in of_experts)
    assert len(changed) == len(of_experts) == 5 * 3


def test_an_idle_expert_is_solved_with_the_prior_and_recorded(tmp_path):
    manifest = quantized(source_of(tmp_path, never_reached()), "gptq-int4-g32", tmp_path / "out")
    entries = {e.slot: e for e in manifest.tensors}
    for part in ("gate", "up", "down"):
        entry = entries[f"layers.0.experts.4.{part}.weight"]
        assert entry.method == "gptq"
        assert entry.remarks[0].startswith("No calibration token reached this expert")
        assert 0 < entry.relative_error < 0.3
    tokens = np.arange(60, dtype=np.int32)
    assert np.isfinite(logits_of(tmp_path / "out", tokens)).all()


def test_a_file_of_shared_tensors_gets_each_experts_own_codes(tmp_path):
    path = write_gguf(tmp_path / "in.gguf", CONFIG, random_weights(CONFIG))
    rules = (Rule(role=Role.LINEAR, format="q4_0"),)
    recipe = Recipe(name="mine", method="gptq", rules=rules)
    texts = calibration((120,) * 4, masked=0)
    settings = QuantizeSettings(calibration=texts, threads=1)
    file = quantize(open_model(path), recipe, tmp_path / "out.gguf", settings)
    folder = quantize(open_model(path), recipe, tmp_path / "out", settings)
    ours, theirs = ({e.slot: e.sha256 for e in m.tensors} for m in (file, folder))
    experts = [slot for slot in ours if expert_of(slot) is not None]
    assert {s: ours[s] for s in experts} == {s: theirs[s] for s in experts}
    tokens = np.arange(60, dtype=np.int32)
    assert np.array_equal(
        logits_of(tmp_path / "out.gguf", tokens), logits_of(tmp_path / "out", tokens)
    )


def importance(idle: int | None) -> GivenImportance:
    """Return an importance matrix of the experts; nothing reached expert `idle`."""
    random = np.random.default_rng(4)
    entries = {}
    for name, width in (("gate", 64), ("up", 64), ("down", 32)):
        sums = (random.gamma(0.3, 9, (5, width)) * 1000).astype(np.float32)
        counts = np.full(5, 1000)
        if idle is not None:
            sums[idle], counts[idle] = 0, 0
        entries[f"blk.0.ffn_{name}_exps.weight"] = Importance(sums, counts)
    facts = ImportanceFacts(name="planted", sha256="", tensors=3)
    return GivenImportance(ImportanceMatrix(entries), facts)


def test_an_idle_expert_of_an_importance_matrix_leaves_the_others_alone(tmp_path):
    """Case 5: one expert without data is solved with the mean of all; no matrix is dropped."""
    source = source_of(tmp_path)
    rules = (Rule(match="layers.*.experts.*", format="int3-g32"),)
    recipe = Recipe(name="mine", method="imatrix", rules=rules)
    entries = {}
    for label, given in (("all", importance(None)), ("idle", importance(2))):
        settings = QuantizeSettings(importance=given)
        manifest = quantize(source, recipe, tmp_path / label, settings)
        entries[label] = {e.slot: e for e in manifest.tensors if expert_of(e.slot) is not None}
    for slot, entry in entries["idle"].items():
        assert entry.method == "imatrix"
        reached = "No calibration token" if expert_of(slot) == 2 else "1000 calibration tokens"
        assert f"{reached} reached this expert" in entry.remarks[0]
    with open_model(tmp_path / "all") as ours, open_model(tmp_path / "idle") as theirs:
        same = {s: (ours.read(s).codes == theirs.read(s).codes).mean() for s in entries["idle"]}
    others = [share for slot, share in same.items() if expert_of(slot) != 2]
    idle = [share for slot, share in same.items() if expert_of(slot) == 2]
    assert min(others) > 0.9  # some twenty average rows beside a thousand of their own
    assert max(idle) < min(others)
    assert all(e.relative_error < 0.4 for e in entries["idle"].values())
