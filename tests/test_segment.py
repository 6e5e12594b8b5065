"""Segments: a Program run piece by piece against the whole, and against NumPy."""

from dataclasses import replace

import numpy as np
import pytest
from native_cases import GEMMA_LIKE, SMALL, bind_random

from fewbit.errors import UsageError
from fewbit.formats.registry import decode
from fewbit.program import CacheType, Linear, SelectRows
from fewbit.records.kernels import Activations
from fewbit.runtime import segment
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.segment import ReferenceSegment, Segment, batches, slice_of, spans_of
from fewbit.runtime.step import StepInput

LENGTHS = [70, 1, 300, 64]
TOKENS = np.random.default_rng(4).integers(0, 203, sum(LENGTHS)).astype(np.int32)
FORMATS = {
    "float": ("f32", "bf16"),
    "integer": ("q8_0", "int4-g32", "f16", "int8-row-asym"),
}


def whole(binding):
    """Run the whole Program at once; return every buffer."""
    taps = frozenset((op.layer, op.site) for op in binding.program.ops)
    spans = spans_of(LENGTHS)
    pages = sum(len(span.pages) for span in spans)
    executor = NativeExecutor(binding, pages=pages, threads=2, taps=taps)
    executor.step(StepInput(TOKENS, spans, np.arange(len(TOKENS), dtype=np.int32)))
    return {op.out: executor.tap(op.layer, op.site) for op in binding.program.ops}


def cuts(program):
    """Return the Program's ops cut where a walk cuts them: behind each input of a linear."""
    ends = [i + 1 for i, op in enumerate(program.ops) if op.site.endswith(("norm", "activation"))]
    return [range(a, b) for a, b in zip([0, *ends], [*ends, len(program.ops)], strict=True)]


def chained(binding, run):
    """Run the Program piece by piece with `run`, as a walk does; return every buffer."""
    buffers = {}
    for ops in cuts(binding.program):
        wanted = slice_of(binding.program, ops).writes
        buffers |= run(binding, ops, LENGTHS, buffers, wanted, TOKENS)
    return buffers


def native(binding, ops, *work):
    return Segment(binding, ops, threads=2).run(*work)


@pytest.mark.parametrize("formats", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("config", [SMALL, GEMMA_LIKE], ids=["small", "gemma"])
@pytest.mark.parametrize("batch", [4096, 100])
def test_pieces_give_the_bits_of_the_whole(config, formats, batch, monkeypatch):
    monkeypatch.setattr(segment, "_BATCH_ROWS", batch)
    binding = bind_random(config, formats)
    pieces, truth = chained(binding, native), whole(binding)
    assert pieces.keys() == truth.keys()
    for name, rows in truth.items():
        assert rows.tobytes() == pieces[name].tobytes(), name


@pytest.mark.parametrize("activations", [Activations.BF16, Activations.TOKEN, Activations.STATIC])
def test_layers_keep_their_rounding(activations):
    binding = bind_random(SMALL, ("int4-g32", "int8-row", "bf16"), activations=activations)
    pieces, truth = chained(binding, native), whole(binding)
    assert all(rows.tobytes() == pieces[name].tobytes() for name, rows in truth.items())


def test_a_sequence_that_starts_elsewhere_is_seen():
    """The comparison of bits catches rows that are cut into sequences at the wrong place."""
    binding = bind_random(SMALL, ("f32",))
    truth = whole(binding)
    name = "layers.0.attention"
    ops = range(len(binding.program.ops) - 1)
    wrong = Segment(binding, ops, threads=2).run([71, 300, 64], {}, [name], TOKENS)
    assert (wrong[name][:70] == truth[name][:70]).all()
    assert (wrong[name][70] != truth[name][70]).any()


@pytest.mark.parametrize("config", [SMALL, GEMMA_LIKE], ids=["small", "gemma"])
def test_each_piece_agrees_with_numpy(config):
    """Each piece on the inputs that the truth has: few ops, so the bound of test_native_model."""
    binding = bind_random(config, ("f32",), CacheType.F32)
    truth = chained(binding, lambda binding, ops, *work: ReferenceSegment(binding, ops).run(*work))
    for ops in cuts(binding.program):
        wanted = slice_of(binding.program, ops).writes
        for name, rows in native(binding, ops, LENGTHS, truth, wanted, TOKENS).items():
            np.testing.assert_allclose(rows, truth[name], rtol=0, atol=1e-4, err_msg=name)


def test_only_the_slots_of_the_slice_are_asked_for():
    binding = bind_random(SMALL, ("q8_0",))
    ops = range(
        next(i for i, op in enumerate(binding.program.ops) if op.out == "layers.1.attn_norm"),
        len(binding.program.ops),
    )
    part = slice_of(binding.program, ops)
    needed = {s for op in part.ops for s in (getattr(op, "weight", None),) if s}
    asked = []

    class Asked(dict):
        def __getitem__(self, slot):
            asked.append(slot)
            return binding.tensors[slot]

    piece = Segment(replace(binding, tensors=Asked()), ops, threads=1)
    assert set(asked) == needed
    asked.clear()
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    one = piece.run([5], {"layers.0.mlp_add": x}, ["layers.1.q"])["layers.1.q"]
    two = piece.run([2, 3], {"layers.0.mlp_add": x}, ["layers.1.q"])["layers.1.q"]
    assert (one == two).all()
    assert not any(slot.endswith(("q.weight", "down.weight")) for slot in asked)  # packed once


def test_a_slice_knows_what_it_reads_and_takes_its_rope_tables_along():
    program = bind_random(SMALL, ("f32",)).program
    at = {op.out: i for i, op in enumerate(program.ops)}
    piece = slice_of(program, slice(at["layers.1.q_rope"], at["layers.1.attn_add"]))
    assert piece.reads == ("layers.1.q", "layers.1.k", "layers.1.v")
    assert [op.out for op in piece.ops][:2] == ["rope", "layers.1.q_rope"]
    assert not piece.takes_tokens
    assert slice_of(program, range(2)).takes_tokens


def test_all_rows_are_selected_behind_select_rows():
    binding = bind_random(SMALL, ("f32",))
    ops = binding.program.ops
    start = next(i for i, op in enumerate(ops) if isinstance(op, SelectRows))
    x = np.random.default_rng(1).standard_normal((7, 96)).astype(np.float32)
    rows = Segment(binding, range(start, start + 1), threads=1).run(
        [3, 4], {ops[start].x: x}, ["select"]
    )
    assert (rows["select"] == x).all()


def test_no_rows_give_no_rows():
    binding = bind_random(SMALL, ("f32",))
    rows = Segment(binding, range(2, 4), threads=1).run(
        [], {"embed": np.empty((0, 96), np.float32)}, ["layers.0.q"]
    )
    assert rows["layers.0.q"].shape == (0, 192)


def test_batches_are_whole_sequences():
    assert list(batches([3, 4, 9, 1, 1], 8)) == [[3, 4], [9], [1, 1]]
    assert list(batches([], 8)) == []


X = np.zeros((4, 96), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"given": {}}, "reads buffer 'embed', which is not given"),
        ({"given": {"embed": X[:3]}}, "of shape \\(3, 96\\); it must be .* \\(4, 96\\)"),
        ({"given": {"embed": X.astype(np.float64)}}, "float64"),
        ({"given": {"embed": np.zeros((4, 192), np.float32)[:, ::2]}}, "contiguous"),
        ({"wanted": ["embed"]}, "does not write buffer 'embed'; it writes layers.0.attn_norm"),
        ({"lengths": [4, 0]}, "Sequence 1 has 0 rows; it must have 1 to 1024"),
    ],
)
def test_bad_arguments_are_named(change, message):
    binding = bind_random(SMALL, ("f32",))
    work = {"lengths": [4], "given": {"embed": X}, "wanted": ["layers.0.q"], **change}
    ops = range(2, 4)
    for piece in (Segment(binding, ops, threads=1), ReferenceSegment(binding, ops)):
        with pytest.raises(UsageError, match=message):
            piece.run(**work)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (None, "give the token id of every row"),
        (np.zeros(3, np.int32), "of shape \\(3,\\); they must be int32 of shape \\(2,\\)"),
        (np.zeros(2, np.int64), "int64"),
        (np.array([0, 203], np.int32), "Token 203 in row 1 is outside the vocabulary of 203"),
    ],
)
def test_bad_tokens_are_named(tokens, message):
    piece = Segment(bind_random(SMALL, ("f32",)), range(2), threads=1)
    with pytest.raises(UsageError, match=message):
        piece.run([2], {}, ["embed"], tokens)


@pytest.mark.parametrize("ops", [range(0), range(90, 99), range(3, 1, -1), slice(5, 5)], ids=str)
def test_ops_outside_the_program_are_refused(ops):
    with pytest.raises(UsageError, match="no slice of a program of 35 ops"):
        slice_of(bind_random(SMALL, ("f32",)).program, ops)


@pytest.mark.parametrize("activations", [Activations.TOKEN, Activations.STATIC])
@pytest.mark.parametrize("form", ["int8-row", "int4-g32-asym"])
def test_layers_with_shared_scales_agree_with_numpy(form, activations):
    """Every linear layer on the same inputs. Codes are the same bits on both sides, so what is left
    is the chain: 1.5 roundings of 2^-24 for each of at most 6 runs of 32 inputs, of the sum of
    magnitudes; with another rounding of activations the difference is a hundred times that."""
    config = replace(SMALL, intermediate=192)
    binding = bind_random(config, (form,), CacheType.F32, activations=activations)
    other = bind_random(config, (form,), CacheType.F32)
    rows = chained(binding, lambda binding, ops, *work: ReferenceSegment(binding, ops).run(*work))
    for i, op in enumerate(binding.program.ops):
        if isinstance(op, Linear):
            work = (LENGTHS, rows, [op.out])
            mine = Segment(binding, range(i, i + 1), threads=2).run(*work)[op.out]
            truth = ReferenceSegment(binding, range(i, i + 1)).run(*work)[op.out]
            weight = np.abs(decode(binding.tensors[op.weight]).astype(np.float64))
            bound = 10 * 2.0**-24 * (1.01 * np.abs(rows[op.x].astype(np.float64)) @ weight.T)
            assert (np.abs(mine - truth) <= bound).all()
            wrong = Segment(other, range(i, i + 1), threads=2).run(*work)[op.out]
            assert (np.abs(wrong - truth) > bound).mean() > 0.9
