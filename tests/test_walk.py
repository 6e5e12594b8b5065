"""The walk against the whole model in NumPy, whatever is kept and however sequences are cut."""

from types import MappingProxyType

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.calibrate.calibration import calibration_set
from fewbit.errors import NumericalError, UsageError
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.model.decoder import build_program
from fewbit.model.weights import open_model
from fewbit.program import Add, Linear
from fewbit.quantization import walk as walk_module
from fewbit.quantization.bound import BoundModel
from fewbit.quantization.walk import WalkOptions, cuts, stages, walk
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import thread_pool
from fewbit.runtime.reference import choose_reference
from fewbit.runtime.segment import ReferenceSegment

POOL = thread_pool(2)
LENGTHS = (70, 5, 33, 64, 1)


def windows(vocabulary: int = 320, lengths=LENGTHS):
    random = np.random.default_rng(5)
    return [random.integers(0, vocabulary, n).astype(np.int32) for n in lengths]


def calibration(lengths=LENGTHS, masks=None):
    return calibration_set(windows(lengths=lengths), (), window_tokens=max(lengths), masks=masks)


@pytest.fixture(params=["llama", "llama-tied", "qwen2", "qwen3", "gemma3"])
def source(request, tmp_path):
    config = CONFIGS[request.param]
    return open_model(write_huggingface(tmp_path / "in", config, random_weights(config)))


@pytest.fixture
def llama(tmp_path):
    config = CONFIGS["llama"]
    return open_model(write_huggingface(tmp_path / "in", config, random_weights(config)))


def collected(source, calibrated, room=walk_module.ROOM):
    program = build_program(source.config)
    found = {}

    def visit(cut, statistics):
        found[cut.slots] = statistics()

    model = BoundModel(source, program, POOL)
    walk(program, calibrated, model, visit, WalkOptions(POOL, room=room))
    return found


def traced(source, calibrated, changed=MappingProxyType({})):
    """Return every layer's input from one run of all ops in NumPy, some tensors changed."""
    program = build_program(source.config)
    tensors = {slot: source.read(slot) for slot in source.slots} | dict(changed)
    kernels = {
        slot: choose_reference(slot, tensor)
        for slot, tensor in tensors.items()
        if tensor.shape[0] > 1
    }
    read = (op.x for op in program.ops if isinstance(op, Linear | Add))
    inputs = list(dict.fromkeys(read))
    ops = range(len(program.ops))
    tokens = np.concatenate(calibrated.windows)
    binding = Binding(program, tensors, kernels)
    return ReferenceSegment(binding, ops).run(calibrated.lengths, {}, inputs, tokens)


def same(one, other) -> bool:
    return one.count == other.count and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("squares", "largest", "absolute", "gram")
    )


def test_statistics_are_those_of_the_layers_inputs(source):
    calibrated = calibration()
    found = collected(source, calibrated)
    inputs = traced(source, calibrated)
    matrices = {slot for slot in source.slots if len(source.info(slot).shape) > 1}
    lookups = {"embed.weight"} if "head.weight" in matrices else set()
    assert {slot for slots in found for slot in slots} == matrices - lookups
    for cut in cuts(build_program(source.config)):
        x, statistics = inputs[cut.x].astype(np.float64), found[cut.slots]
        assert statistics.count == sum(LENGTHS)
        scale = np.square(x).sum(axis=0)
        # Keys and values are rounded to f16: where the float32 before falls on the other side of a
        # tie, an element differs by 2^-11 of itself, and what is computed from it by less.
        assert np.allclose(statistics.squares, scale, rtol=1e-3)
        assert np.allclose(statistics.absolute, np.abs(x).sum(axis=0), rtol=1e-3)
        assert np.allclose(statistics.largest, np.abs(x).max(axis=0), rtol=1e-3)
        # Products of inputs that AMX rounds to bf16: 2^-8 of the entry's natural size.
        natural = np.sqrt(scale[:, None] * scale[None, :])
        assert np.all(np.abs(statistics.gram - x.T @ x) <= 2.0**-7 * natural)


def test_what_is_kept_changes_no_bit(source):
    calibrated = calibration()
    program = build_program(source.config)
    rows = sum(calibrated.lengths)
    kept = [len([s for s in stages(program, rows, room) if s.kept]) for room in (1 << 30, 90_000)]
    assert kept[1] < kept[0]  # the wide input of `down` is passed by
    whole, passing = collected(source, calibrated), collected(source, calibrated, 90_000)
    assert all(same(whole[slots], passing[slots]) for slots in whole)


def test_case_22_padding_and_batching_change_no_bit(monkeypatch, llama):
    plain = collected(llama, calibration())
    monkeypatch.setattr(walk_module, "_PIECE_ROWS", 40)
    assert all(same(plain[k], one) for k, one in collected(llama, calibration()).items())
    padded = [np.concatenate([window, np.full(9, 7, np.int32)]) for window in windows()]
    masks = [np.arange(len(window)) < len(window) - 9 for window in padded]
    masked = calibration_set(padded, (), window_tokens=79, masks=masks)
    assert masked.facts.counted == sum(LENGTHS)
    assert all(same(plain[k], one) for k, one in collected(llama, masked).items())
    unmasked = collected(llama, calibration_set(padded, (), window_tokens=79))
    assert not any(same(plain[k], one) for k, one in unmasked.items())


def test_case_24_states_are_planned_before_anything_runs(llama):
    program = build_program(llama.config)
    with pytest.raises(UsageError, match=r"1000000 calibration tokens take 512\.0 MB at least"):
        stages(program, 1_000_000, 1 << 20)
    # One residual and one input of 64 floats a token is what a layer cannot do without.
    planned = stages(program, 1000, 1000 * 2 * 64 * 4)
    assert [bool(stage.kept) for stage in planned][:4] == [True, True, True, False]
    longest = max(len(stage.ops) for stage in planned)
    assert longest < len(program.ops) / 2  # nothing is run again from the start


def test_case_7_the_first_value_that_is_not_finite_is_named(tmp_path):
    config = CONFIGS["llama"]
    weights = random_weights(config)
    token = int(windows()[3][11])
    weights["model.embed_tokens.weight"][token, 9] = np.inf
    source = open_model(write_huggingface(tmp_path / "bad", config, weights))
    places = [(n, list(w).index(token)) for n, w in enumerate(windows()) if token in w]
    with pytest.raises(
        NumericalError,
        match=rf"input of layers\.0\.q\.weight.*token {places[0][1]} in calibration window "
        rf"{places[0][0]}",
    ):
        collected(source, calibration())


def test_a_layer_reads_what_the_tensors_bound_before_it_give(llama):
    program = build_program(llama.config)
    plain = collected(llama, calibration())
    found = {}
    model = BoundModel(llama, program, POOL)

    def visit(cut, statistics):
        found[cut.slots] = statistics()
        for slot in cut.slots:  # the source again: the same numbers must come out behind it
            model.replace(slot, llama.read(slot))
        if cut.slots == ("layers.1.o.weight",):
            model.replace("layers.1.o.weight", llama.read("layers.0.o.weight"))

    walk(program, calibration(), model, visit, WalkOptions(POOL))
    changed = [slots[0] for slots in found if not same(found[slots], plain[slots])]
    assert changed[0] == "layers.1.gate.weight"
    assert changed[-1] == "head.weight"
    assert len(changed) == 2 + 4 + 1


STREAMS = {"o": "attn_add", "down": "mlp_add"}
"""Where the outputs of a site are added to the residual stream."""


def walked_beside(source, calibrated, room=walk_module.ROOM, propagation=1.0):
    """Walk while every matrix is halved behind its cut, beside the source; return statistics."""
    program, found = build_program(source.config), {}
    model = BoundModel(source, program, POOL)

    def visit(cut, statistics):
        found[cut.slots] = statistics()
        for slot in cut.slots:
            model.replace(slot, halved(source, slot))

    beside = BoundModel(source, program, POOL)
    options = WalkOptions(POOL, room=room, source=beside, propagation=propagation)
    walk(program, calibrated, model, visit, options)
    return found


def halved(source, slot):
    weight = decode(source.read(slot))
    return encode(weight * np.float32(0.5), parse_format("f32"))


def test_drift_is_what_the_sources_layers_read_beyond_the_walked_models(llama):
    calibrated = calibration()
    program = build_program(llama.config)
    found = walked_beside(llama, calibrated)
    source = traced(llama, calibrated)
    for cut in cuts(program):
        # What is before a cut is halved by then; what is behind it has no say.
        before = {op.weight for op in program.ops[: cut.index] if isinstance(op, Linear)}
        changed = {slot: halved(llama, slot) for slot in before}
        changed_run = traced(llama, calibrated, changed)
        x = changed_run[cut.x].astype(np.float64)
        d = source[cut.x] - x
        natural = np.sqrt(np.outer((d**2).sum(axis=0), (x**2).sum(axis=0))) + 1e-9
        # bf16 products of AMX, and keys and values in f16, as in the test of the Gram matrix.
        assert np.all(np.abs(found[cut.slots].drift - d.T @ x) <= 2.0**-5 * natural)
        stream = STREAMS.get(cut.layers[0].site)
        assert (found[cut.slots].lag is None) == (stream is None)
        if stream is None:
            continue
        name = next(
            op.x for op in program.ops if op.site == stream and op.layer == cut.layers[0].layer
        )
        r = source[name] - changed_run[name]
        natural = np.sqrt(np.outer((r**2).sum(axis=0), (x**2).sum(axis=0))) + 1e-9
        assert np.all(np.abs(found[cut.slots].lag - r.T @ x) <= 2.0**-5 * natural)
    assert not found[cuts(program)[0].slots].drift.any()
    assert not found[("layers.0.o.weight",)].lag.any()  # the input table is the source's
    assert found[("layers.0.down.weight",)].lag.any()
    assert found[cuts(program)[1].slots].drift.any()


def test_what_is_kept_changes_no_bit_of_drift(llama):
    whole = walked_beside(llama, calibration())
    passing = walked_beside(llama, calibration(), 180_000)  # the room is shared by two walks
    for slots, statistics in whole.items():
        for name in ("drift", "lag"):
            assert np.array_equal(getattr(statistics, name), getattr(passing[slots], name))


def test_propagation_takes_a_part_of_the_drift(llama):
    whole = walked_beside(llama, calibration())
    half = walked_beside(llama, calibration(), propagation=0.5)
    for slots, statistics in whole.items():
        assert np.array_equal(statistics.drift * np.float32(0.5), half[slots].drift)
        if statistics.lag is not None:
            assert np.array_equal(statistics.lag * np.float32(0.5), half[slots].lag)


def test_a_walk_alone_has_no_drift(llama):
    assert all(s.drift is None for s in collected(llama, calibration()).values())
