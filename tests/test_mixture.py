"""Mixtures of experts: routing, and the native op against the reference's on given logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_cases import MIXTURE, bind_random

from fewbit import _native
from fewbit.program import Mixture
from fewbit.records.kernels import Activations
from fewbit.runtime.executor import Binding
from fewbit.runtime.mixture import mixed, route, rows_of_expert
from fewbit.runtime.segment import ReferenceSegment, Segment

ISAS = _native.available_isas()
ROWS = 300
"""More than a chunk of 256."""


def mixture_of(binding: Binding) -> tuple[int, Mixture]:
    ops = binding.program.ops
    return next((i, op) for i, op in enumerate(ops) if isinstance(op, Mixture))


OP = mixture_of(bind_random(MIXTURE, ("f32",)))[1]


def inputs(op: Mixture, rows: int = ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of different sizes; logits on a grid of quarters, so that many are equal."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, MIXTURE.hidden)) * 4.0 ** random.integers(-2, 3, (rows, 1))
    logits = np.round(random.standard_normal((rows, len(op.experts))) * 4) / 4
    return {op.x: x.astype(np.float32), op.router: logits.astype(np.float32)}


def run(segment: Segment | ReferenceSegment, given: dict[str, np.ndarray], out: str) -> np.ndarray:
    return segment.run([len(next(iter(given.values())))], given, [out])[out]


# --- routing ------------------------------------------------------------------------------------


def test_equal_logits_go_to_the_lower_ids_in_order():
    logits = np.array([[1, 3, 2, 3, 3, 0, 2]], np.float32)
    chosen, weights = route(logits, OP)
    assert chosen.tolist() == [[1, 3, 4]]
    total = 3 * np.exp(3) + 2 * np.exp(2) + np.exp(1) + 1
    assert np.allclose(weights, np.exp(3) / total, rtol=1e-6)


def test_normalized_weights_are_the_softmax_over_all_divided_by_the_sum_of_the_chosen():
    logits = np.random.default_rng(3).standard_normal((50, 7)).astype(np.float32)
    _, plain = route(logits, OP)
    _, normalized = route(logits, replace(OP, normalized=True))
    assert np.allclose(plain / plain.sum(axis=1, keepdims=True), normalized, rtol=1e-6)
    assert (plain.sum(axis=1) < 1).all()


def test_logits_beyond_the_range_of_exp_keep_their_order():
    chosen, weights = route(np.array([[-9e4, 9e4, 8e4, -3e38, 0, 1, 2]], np.float32), OP)
    assert chosen.tolist() == [[1, 2, 6]]
    assert weights.tolist() == [[1, 0, 0]]


def test_the_rows_of_all_experts_are_every_choice_once():
    chosen, _ = route(inputs(OP)[OP.router], OP)
    found = [rows_of_expert(chosen, expert) for expert in range(7)]
    pairs = {(r, k) for rows, ranks in found for r, k in zip(rows, ranks, strict=True)}
    assert pairs == {(r, k) for r in range(ROWS) for k in range(3)}
    assert all((np.diff(rows) > 0).all() for rows, _ in found)


def test_outputs_are_summed_with_their_weights():
    outputs = np.array([[[1, 2], [10, 20]]], np.float32)
    assert mixed(outputs, np.array([[0.5, 0.25]], np.float32)).tolist() == [[3, 6]]


# --- the native op ------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("isa", ISAS)
def test_the_native_op_is_the_references(isa: str, normalized: bool):
    """Ties included. Weights: exp within 2 ulp, a sum and a quotient: 8 roundings at most; matrices
    and their products: chains of 96 and 64 terms, so 300 roundings of what is summed bound all."""
    binding = bind_random(MIXTURE, ("f32", "bf16"))
    at, op = mixture_of(binding)
    ops = list(binding.program.ops)
    ops[at] = op = replace(op, normalized=normalized)
    binding = replace(binding, program=replace(binding.program, ops=tuple(ops)))
    given = inputs(op)
    want = run(ReferenceSegment(binding, range(at, at + 1)), given, op.out)
    got = run(Segment(binding, range(at, at + 1), threads=2, isa=isa), given, op.out)
    size = np.abs(want).max(axis=1, keepdims=True)
    assert (np.abs(got - want) < 300 * 2.0**-24 * size).all()


@pytest.mark.parametrize("activations", list(Activations))
def test_rounded_inputs_are_the_references(activations: Activations):
    """One flipped code of 127 in a row of 64 moves an output by a hundredth of its size at most;
    a lost or doubled choice moves it by a third."""
    binding = bind_random(MIXTURE, ("int8-g32", "q4_0", "f32"), activations=activations)
    at, op = mixture_of(binding)
    given = inputs(op)
    want = run(ReferenceSegment(binding, range(at, at + 1)), given, op.out)
    got = run(Segment(binding, range(at, at + 1), threads=2), given, op.out)
    size = np.abs(want).max(axis=1, keepdims=True)
    assert (np.abs(got - want) < 0.02 * size).all()
    assert np.median(np.abs(got - want) / size) < 1e-5


@pytest.mark.parametrize("formats", [("f32",), ("int4-g32", "q8_0"), ("bf16",)])
def test_a_row_alone_has_the_bits_it_has_in_company(formats: tuple[str, ...]):
    binding = bind_random(MIXTURE, formats)
    at, op = mixture_of(binding)
    given = inputs(op)
    together = run(Segment(binding, range(at, at + 1), threads=2), given, op.out)
    segment = Segment(binding, range(at, at + 1), threads=1, isa=ISAS[-1])
    for row in (0, 7, 255, 256, 299):
        alone = {name: rows[row : row + 1].copy() for name, rows in given.items()}
        assert run(segment, alone, op.out)[0].tobytes() == together[row].tobytes()


def test_all_rows_may_choose_the_same_experts():
    binding = bind_random(MIXTURE, ("int4-g32",))
    at, op = mixture_of(binding)
    given = inputs(op)
    given[op.router] = np.tile(np.array([0, 0, 5, 0, 4, 0, 6], np.float32), (ROWS, 1))
    together = run(Segment(binding, range(at, at + 1), threads=3), given, op.out)
    one = {name: rows[ROWS - 1 :].copy() for name, rows in given.items()}
    alone = run(Segment(binding, range(at, at + 1), threads=1), one, op.out)
    assert together[-1].tobytes() == alone[0].tobytes()


def test_the_comparison_sees_ties_that_go_to_the_higher_id():
    """Negative control: with the experts in reverse, only rows with a tie at the last rank choose
    others, and those are far beyond the bound."""
    binding = bind_random(MIXTURE, ("f32",))
    at, op = mixture_of(binding)
    given = inputs(op)
    ops = list(binding.program.ops)
    ops[at] = replace(op, experts=op.experts[::-1])
    planted = replace(binding, program=replace(binding.program, ops=tuple(ops)))
    wrong = {**given, op.router: np.ascontiguousarray(given[op.router][:, ::-1])}
    want = run(ReferenceSegment(binding, range(at, at + 1)), given, op.out)
    got = run(Segment(planted, range(at, at + 1), threads=1), wrong, op.out)
    error = np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)
    ranked = np.sort(given[op.router], axis=1)[:, ::-1]
    tied = ranked[:, op.used - 1] == ranked[:, op.used]
    assert 20 < tied.sum() < ROWS - 20
    assert (error[tied] > 1e-2).all()
    assert (error[~tied] < 300 * 2.0**-24).all()


def test_routers_that_are_not_numbers_do_not_leave_the_experts():
    """No id outside the experts, whatever the logits; the rows of others keep their bits."""
    binding = bind_random(MIXTURE, ("f32",))
    at, op = mixture_of(binding)
    segment = Segment(binding, range(at, at + 1), threads=1)
    given = inputs(op, rows=5)
    right = run(segment, given, op.out)
    for value in (np.nan, np.inf, -np.inf):
        given[op.router][2] = value
        out = run(segment, given, op.out)
        assert np.array_equal(np.delete(out, 2, axis=0), np.delete(right, 2, axis=0))
