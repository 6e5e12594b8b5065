"""Tuning a tiny quantized model against its source, from settings to the record."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_tuning_matrix import equal
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.errors import MissingError, RequestError, UsageError
from fewbit.formats.grid import fit, join, nearest, split
from fewbit.formats.registry import F32, decode, encode, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.decoder import build_program
from fewbit.model.weights import open_model
from fewbit.records.base import from_json, to_json
from fewbit.records.tuning import TuneRecord
from fewbit.runtime.memory import Available
from fewbit.runtime.torch_executor import DecodedWeights, TorchExecutor
from fewbit.tune import (
    Job,
    Precision,
    Tuned,
    TuneSettings,
    TuneText,
    checkpoint,
    distill,
    distillation,
)
from fewbit.tune.checkpoint import Standing
from fewbit.tune.codes import LatentCodes
from fewbit.tune.distillation import lesson_of
from fewbit.tune.divergence import Outputs, row_divergences
from fewbit.tune.latent import as_bfloat16, as_float32, latent
from fewbit.tune.matrix import GridMatrix
from fewbit.tune.pace import SLOWED

pytestmark = pytest.mark.interop

SETTINGS = TuneSettings(steps=8, batch=4, check=4, rate=1e-2, precision=Precision.F32)


@pytest.fixture(scope="module", name="source")
def fixture_source(tmp_path_factory):
    config = CONFIGS["llama-tied"]
    folder = tmp_path_factory.mktemp("model") / "tiny"
    with open_model(write_huggingface(folder, config, random_weights(config))) as source:
        yield source


def quantized(source, name="q4_0"):
    form = parse_format(name)
    start = {}
    for slot in source.slots:
        values = decode(source.read(slot))
        if is_vector(slot):
            start[slot] = QuantTensor(F32, values.shape, values.view(np.uint8))
        else:
            grid = fit(values, form)
            start[slot] = join(nearest(values, grid), grid)
    return start


def text(seed=0, windows=16, length=24):
    """Return windows of random tokens, the first four held out too: noise teaches nothing else."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 320, (windows, length)).astype(np.int32)
    return TuneText(list(tokens), held_out=list(tokens[:4]))


def measured(source, tensors, windows):
    """The mean divergence of two plain models on windows, by the torch executor in float32."""
    program = build_program(source.config)
    sides = []
    tokens = torch.from_numpy(np.stack(windows).astype(np.int64))
    for side in ({slot: source.read(slot) for slot in source.slots}, tensors):
        weights = DecodedWeights(side, torch.float32)
        executor = TorchExecutor(program, weights)
        states = executor.states(tokens).flatten(0, 1)
        sides.append(Outputs(states, weights.matrix(executor.head.slot), executor.head.cap))
    return float(row_divergences(*sides).mean())


def same(one, other):
    return all(equal(one[slot], other[slot]) for slot in one)


@pytest.mark.parametrize("what", Tuned)
def test_the_result_is_what_was_measured_and_better_than_the_start(source, what):
    start = quantized(source)
    result = distill(source, start, text(), replace(SETTINGS, what=what))
    record = result.record
    assert record.after < 0.97 * record.before
    held_out = text().held_out
    # The same float32 arithmetic on the same values, in other batches.
    assert measured(source, start, held_out) == pytest.approx(record.before, rel=1e-4)
    assert measured(source, result.tensors, held_out) == pytest.approx(record.after, rel=1e-4)
    assert {slot: t.spec for slot, t in result.tensors.items()} == {
        slot: t.spec for slot, t in start.items()
    }
    moved = [s for s in start if not equal(start[s], result.tensors[s])]
    assert "layers.0.attn_norm.weight" in moved
    assert record.what == what.value
    assert from_json(TuneRecord, to_json(record), name="record") == record


def test_windows_beyond_the_context_are_refused_before_the_source_runs(source):
    long = TuneText([np.zeros(source.config.context + 1, np.int32)] * 16)
    with pytest.raises(UsageError, match="and the model was made for"):
        distill(source, quantized(source), long, SETTINGS)


def test_a_checkpoint_keeps_the_order_of_columns(tmp_path):
    random = np.random.default_rng(2)
    plain = encode(random.standard_normal((8, 64)).astype(np.float32), parse_format("int4-g32"))
    spec = replace(plain.spec, ordered=True)
    tensor = replace(plain, spec=spec, order=random.permutation(64).astype(np.int32))
    checkpoint.write(tmp_path / "kept", "key", Standing(1, 1, 0, ()), {}, {"w": tensor})
    _, best = checkpoint.read(tmp_path / "kept", "key", {}, {"w": tensor})
    assert np.array_equal(best["w"].order, tensor.order)


@pytest.mark.parametrize("what", Tuned)
def test_codes_move_only_where_asked_and_as_far_as_asked(source, what):
    start = quantized(source)
    settings = replace(SETTINGS, what=what, code_rate=0.05)
    tensors = distill(source, start, text(), settings).tensors
    far = max(
        int(np.abs(codes(tensors[s]) - codes(start[s])).max()) for s in start if not is_vector(s)
    )
    assert far == 0 if what is Tuned.SCALES else far > 0
    if what is Tuned.ROUNDING:
        assert far == 1


def codes(tensor):
    return split(tensor)[0].astype(int)


def test_a_rate_that_makes_it_worse_returns_the_start(source):
    start = quantized(source)
    result = distill(source, start, text(), replace(SETTINGS, rate=1.0, patience=1))
    assert result.record.kept == 0
    assert result.record.after == result.record.before
    assert same(result.tensors, start)


def test_looks_without_gain_slow_the_rates(source):
    settings = replace(SETTINGS, rate=0.3, steps=12, check=2, patience=9)
    record = distill(source, quantized(source), text(), settings).record
    found = [point.divergence for point in record.trajectory]
    worse = sum(value >= min(found[:i]) for i, value in enumerate(found) if i)
    assert worse
    assert record.slowed == SLOWED**worse
    # A last step of a third of a third moves little, of the first rate a lot.
    assert abs(found[-1] - found[-2]) < abs(found[1] - found[0]) / 3


def test_only_looks_that_found_no_less_than_all_before_are_setbacks():
    standing = Standing(0, 0, 0, ())
    assert standing.setbacks == 0
    for value, setbacks in ((3.0, 0), (2.0, 0), (2.5, 1), (2.2, 2), (1.0, 2), (1.0, 3)):
        standing = standing.after_look(value, better=True)
        assert standing.setbacks == setbacks


@pytest.mark.parametrize("what", Tuned)
def test_a_stopped_run_goes_on_to_the_same_bits(source, what, tmp_path):
    start, settings = quantized(source), replace(SETTINGS, what=what)
    whole = distill(source, start, text(), settings)

    class StoppedError(Exception):
        pass

    def stop(progress):
        if progress.stage == "tuning" and progress.done == 5:
            raise StoppedError

    with pytest.raises(StoppedError):
        distill(source, start, text(), settings, Job(tmp_path, "k", stop))
    seen = []
    resumed = distill(source, start, text(), settings, Job(tmp_path, "k", seen.append))
    assert next(p.done for p in seen if p.stage == "tuning") == 5
    assert same(resumed.tensors, whole.tensors)
    assert resumed.record.trajectory == whole.record.trajectory
    other = distill(source, start, text(), settings, Job(tmp_path, "another", seen.append))
    assert same(other.tensors, whole.tensors)


@pytest.mark.parametrize("damage", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}", b"x" * 100])
def test_a_damaged_checkpoint_is_begun_anew(source, damage, tmp_path):
    start = quantized(source)
    settings = replace(SETTINGS, steps=4)
    whole = distill(source, start, text(), settings, Job(tmp_path, "k"))
    (tmp_path / "checkpoint").write_bytes(damage)
    (tmp_path / "states.json").write_bytes(damage)
    again = distill(source, start, text(), settings, Job(tmp_path, "k"))
    assert same(again.tensors, whole.tensors)


def test_states_that_were_cut_are_made_again(source, tmp_path):
    start, settings = quantized(source), replace(SETTINGS, steps=4)
    whole = distill(source, start, text(), settings, Job(tmp_path, "k"))
    (tmp_path / "checkpoint").unlink()
    os.truncate(tmp_path / "states", 4096)
    again = distill(source, start, text(), settings, Job(tmp_path, "k"))
    assert same(again.tensors, whole.tensors)


def test_the_order_is_keyed_and_every_window_is_used_once_a_turn():
    settings = replace(SETTINGS, steps=8, batch=3)
    lesson = lesson_of(text(windows=12), settings)
    drawn = [i for step in lesson.steps for i in step]
    assert sorted(drawn[:12]) == list(range(12))
    assert sorted(drawn[12:24]) == list(range(12))
    assert drawn[:12] != drawn[12:24]
    assert lesson.steps == lesson_of(text(windows=12), settings).steps
    assert lesson.steps != lesson_of(text(windows=12), replace(settings, seed=1)).steps


def test_only_windows_that_a_step_sees_are_run_through_the_source():
    lesson = lesson_of(text(windows=40), replace(SETTINGS, steps=2, batch=3))
    assert len(lesson.text.windows) == 6 + 4


def test_every_eighth_window_is_held_out_where_none_are_given():
    own = text(windows=24).windows
    lesson = lesson_of(TuneText(own), SETTINGS)
    held = [lesson.text.windows[i] for look in lesson.held_out for i in look]
    assert [w.tolist() for w in held] == [own[i].tolist() for i in (7, 15, 23)]


def test_masked_positions_do_not_count(source):
    """Windows that differ only where they are masked, behind what counts, teach the same."""
    start, base = quantized(source), text()
    masks = [np.arange(24) < 12 for _ in base.windows]
    other = [
        np.where(mask, w, 1).astype(np.int32) for w, mask in zip(base.windows, masks, strict=True)
    ]
    results = [
        distill(source, start, TuneText(w, masks, base.held_out), SETTINGS)
        for w in (base.windows, other)
    ]
    assert results[0].record.after == pytest.approx(results[1].record.after, rel=1e-6)


def test_windows_of_several_lengths_share_a_batch(source):
    base = text()
    uneven = [w[: 10 + i] for i, w in enumerate(base.windows)]
    record = distill(
        source, quantized(source), TuneText(uneven, None, base.held_out), SETTINGS
    ).record
    assert record.after < record.before


def test_the_hidden_loss_brings_states_closer(source):
    record = distill(source, quantized(source), text(), replace(SETTINGS, hidden=0.5)).record
    assert record.after < record.before


def test_bf16_and_layers_computed_again(source):
    settings = replace(SETTINGS, precision=Precision.BF16, steps=4, check=2)
    results = [
        distill(source, quantized(source), text(), replace(settings, recompute=again))
        for again in (False, True)
    ]
    assert results[0].record.after < results[0].record.before
    assert same(results[0].tensors, results[1].tensors)


def test_rounded_activations_and_fixed_tensors(source):
    start = quantized(source)
    start["layers.1.up.weight"] = source.read("layers.1.up.weight")
    result = distill(source, start, text(), replace(SETTINGS, round_activations=True))
    assert [entry.slot for entry in result.record.fixed] == ["layers.1.up.weight"]
    assert "f32 has no scales" in result.record.fixed[0].reason
    assert equal(result.tensors["layers.1.up.weight"], start["layers.1.up.weight"])
    assert result.record.after < result.record.before


def test_refusals(source, monkeypatch):
    start = quantized(source)
    with pytest.raises(MissingError, match=r"'layers\.0\.q\.weight'"):
        distill(
            source, {s: t for s, t in start.items() if s != "layers.0.q.weight"}, text(), SETTINGS
        )
    with pytest.raises(UsageError, match="0 windows"):
        distill(source, start, TuneText([]), SETTINGS)
    wrong = [np.full(8, 320, np.int32)] * 16
    with pytest.raises(RequestError, match="320 is outside"):
        distill(source, start, TuneText(wrong), SETTINGS)
    monkeypatch.setattr(distillation, "available_memory", lambda: Available(10_000_000, "left"))
    with pytest.raises(UsageError, match=r"needs .* MB of memory .* 10\.0 MB is left; .*batch"):
        distill(source, start, text(), SETTINGS)


def test_the_states_file_says_what_it_holds(source, tmp_path):
    distill(source, quantized(source), text(), replace(SETTINGS, steps=4), Job(tmp_path, "k"))
    facts = json.loads((tmp_path / "states.json").read_bytes())
    assert facts["done"] == 16 + 4
    assert (tmp_path / "states").stat().st_size == facts["rows"] * 64 * 4


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "iq4_nl", "int3-g32-asym"])
def test_steps_move_latents_against_the_gradient_and_codes_follow(source, name):
    """Ten equal gradients: Adam's step is the rate, so latents move by ten of them, codes by that
    rounded; where the range ends or the reach does, they stop."""
    matrix = GridMatrix(quantized(source, name)["layers.0.up.weight"])
    table = torch.tensor(matrix.layout.levels)
    distance = float(table[-1] - table[0]) / (len(table) - 1)
    before = matrix.levels.float()
    for reach in (None, 1):
        matrix.levels = before.to(matrix.levels.dtype)
        codes = LatentCodes(matrix, reach=reach, gradients=torch.float32)
        for number in range(1, 11):
            codes.collect(torch.full(matrix.shape, 3.0))
            codes.step(number, 0.125)
        wanted = before - 1.25 * distance
        if matrix.layout.integer:
            wanted = wanted.round() if reach is None else before - 1
            torch.testing.assert_close(matrix.levels.float(), wanted.clamp(min=float(table[0])))
        places = torch.bucketize(before, table) - torch.bucketize(matrix.levels.float(), table)
        assert int(places.min()) >= 0
        assert int(places.max()) == (1 if reach else int(places.max()))


def test_what_was_exported_stays_when_the_latent_moves_on():
    """Float32 vectors are rounded by nothing, so that only a copy keeps the best of them."""
    for rounding in (as_float32, as_bfloat16):
        part = latent(torch.linspace(1, 2, 5), rounding, 0.1)
        kept = part.exported()
        before = kept.clone()
        part.move(torch.ones(5), 0.5)
        assert torch.equal(kept, before)
        assert not torch.equal(part.exported(), before)
