"""Every native op against the reference's, on the inputs that the native executor gave it.

Tolerances come from the arithmetic: u = 2^-24 is the largest relative error of one float32
rounding, and the reference rounds its float64 result once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import numpy as np
import pytest
from native_cases import GEMMA_LIKE, SMALL, bind_random, run_alone, track

from fewbit import _native
from fewbit.formats.registry import decode
from fewbit.program import (
    Activation,
    Add,
    Attention,
    CacheType,
    Embed,
    GatedActivation,
    Hadamard,
    Linear,
    Op,
    RmsNorm,
    Rope,
    RopeTable,
    SelectRows,
    Softcap,
)
from fewbit.records.kernels import Activations
from fewbit.runtime import reference
from fewbit.runtime.executor import Binding
from fewbit.runtime.kv import rounded_queries, rounded_rows
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.reference_attention import attention

U = 2.0**-24
LENGTH = 300
PAGES = (3, 1, 0, 5, 7)
CASES = {
    "small-f16": (SMALL, CacheType.F16),
    "gemma-like-f32": (GEMMA_LIKE, CacheType.F32),
    "gemma-like-f16": (GEMMA_LIKE, CacheType.F16),
    "gelu": (replace(SMALL, activation=Activation.GELU_TANH), CacheType.F32),
    "head-64": (replace(SMALL, head_dim=64, heads=2, kv_heads=2), CacheType.F16),
    "head-80": (replace(SMALL, head_dim=80, heads=2, kv_heads=1), CacheType.F16),
    "head-96": (replace(SMALL, head_dim=96, heads=1, kv_heads=1), CacheType.F32),
    "head-128": (replace(SMALL, head_dim=128, heads=14, kv_heads=2), CacheType.F16),
    "head-256": (replace(SMALL, head_dim=256, heads=4, kv_heads=1), CacheType.F16),
    "head-40": (replace(SMALL, head_dim=40, heads=4, kv_heads=4), CacheType.F16),
    "one-key-head-for-64": (replace(SMALL, head_dim=16, heads=64, kv_heads=1), CacheType.F16),
    "mlp-32": (replace(SMALL, mlp_rotation=32), CacheType.F16),
    "mlp-512": (replace(SMALL, intermediate=1536, mlp_rotation=512), CacheType.F16),
    "mlp-8": (replace(SMALL, mlp_rotation=8), CacheType.F16),
    "window-1": (replace(SMALL, windows=(1, 300)), CacheType.F16),
}


class Inputs:
    """The tapped buffers of one run, by name, and what the ops read besides."""

    def __init__(self, binding: Binding, isa: str | None) -> None:
        program = binding.program
        self.binding = binding
        self.item = track(LENGTH, PAGES, seed=3)
        taps = frozenset((op.layer, op.site) for op in program.ops)
        executor = NativeExecutor(binding, pages=8, threads=2, isa=isa, taps=taps)
        run_alone(executor, self.item, LENGTH)
        self.buffers = {op.out: executor.tap(op.layer, op.site) for op in program.ops}

    def weight(self, slot: str) -> np.ndarray:
        return decode(self.binding.tensors[slot])


@singledispatch
def check(op: Op, at: Inputs) -> None:
    raise AssertionError(f"no check for {type(op).__name__}")


def near(got: np.ndarray, want: np.ndarray, tolerance: np.ndarray | float, op: Op) -> None:
    excess = np.abs(got.astype(np.float64) - want) - tolerance
    where = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[where] <= 0, (
        f"{op.site} of layer {op.layer} at {where}: {got[where]} {want[where]}"
    )


@check.register
def _(op: Embed, at: Inputs) -> None:
    want = at.weight(op.weight)[at.item.tokens] * np.float32(op.scale)
    np.testing.assert_array_equal(at.buffers[op.out], want)


@check.register
def _(op: RopeTable, at: Inputs) -> None:
    want = reference.rope_table(np.arange(LENGTH), op.frequencies, op.factor)
    near(at.buffers[op.out], want, np.spacing(np.abs(want)), op)


@check.register
def _(op: RmsNorm, at: Inputs) -> None:
    """A sum of `width` squares in 16 chains (no cancellation) and a tree of 4, its root halves the
    error; then mean, eps, root, reciprocal and two products."""
    weight = at.weight(op.weight)[0]
    want = reference.rms_norm(at.buffers[op.x], weight, op.width, op.eps, op.offset)
    roundings = (op.width / 16 + 5 + 2) / 2 + 4 + 1
    near(at.buffers[op.out], want, roundings * U * np.abs(want) + 2.0**-126, op)


@check.register
def _(op: Linear, at: Inputs) -> None:
    """A chain of fma over the inputs, and one product of scales a group; bias and result round."""
    weight = at.weight(op.weight)
    bias = None if op.bias is None else at.weight(op.bias)[0]
    activations = at.binding.kernels[op.weight].activations
    x = at.buffers[op.x]
    want = reference.linear(x, weight, bias, activations)
    size = np.abs(x) @ np.abs(weight).T * 1.01 + (0 if bias is None else np.abs(bias))
    near(at.buffers[op.out], want, (weight.shape[1] + 4) * U * size, op)


@check.register
def _(op: Rope, at: Inputs) -> None:
    x, table = at.buffers[op.x], at.buffers[op.table]
    half = op.head_dim // 2
    heads = np.abs(x.reshape(LENGTH, -1, 2, half))
    size = np.broadcast_to(heads.sum(2, keepdims=True), heads.shape).reshape(x.shape)
    near(at.buffers[op.out], reference.rope(x, table, op.head_dim), 3 * U * size, op)


@check.register
def _(op: Hadamard, at: Inputs) -> None:
    """log2(size) additions, each of values that are partial sums of magnitudes; the factor and
    its product."""
    x = at.buffers[op.x]
    runs = np.abs(x.reshape(LENGTH, -1, op.size)).sum(-1) / np.sqrt(op.size)
    near_size = runs.repeat(op.size, -1)
    want = reference.hadamard(x, op.size)
    near(at.buffers[op.out], want, (np.log2(op.size) + 2) * U * near_size, op)


@check.register
def _(op: Attention, at: Inputs) -> None:
    """Scores err by their chain and the scale (and 5 ulp of tanh); a run of integers by its sum's
    conversion, its scale and its addition, which is less than a chain of 32. A weight's relative
    error is twice the largest of them (itself and the sum), plus exp (2 ulp), sums and merges; the
    values' chain errs by its length."""
    q, k, v = (at.buffers[name] for name in (op.q, op.k, op.v))
    cache = at.binding.program.cache_type
    q, k, v = rounded_queries(q, cache), rounded_rows(k, cache), rounded_rows(v, cache)
    want = attention(q, k, v, 0, op)
    share = op.heads // op.kv_heads
    keys = np.abs(k.reshape(LENGTH, op.kv_heads, op.head_dim)).max((0, 2)).repeat(share)
    values = np.abs(v.reshape(LENGTH, op.kv_heads, op.head_dim)).max((0, 2)).repeat(share)
    queries = np.abs(q.reshape(LENGTH, op.heads, op.head_dim)).sum(-1)
    score = (op.head_dim + 2) * U * op.scale * queries * keys
    if op.softcap is not None:
        score += 12 * U * op.softcap
    merges = 3 * (LENGTH / 256 + 1)
    relative = 2 * score + (8 + 20 + merges + min(LENGTH, 256) + 2) * U
    tolerance = (relative * values)[..., None].repeat(op.head_dim, -1).reshape(want.shape)
    near(at.buffers[op.out], want, tolerance, op)


@check.register
def _(op: GatedActivation, at: Inputs) -> None:
    """silu is within 5 ulp; gelu's sigmoid takes an argument that errs by 3 roundings, and the
    reference's 1 + tanh cancels to float64's 2^-53 for gates far below zero."""
    gate, up = at.buffers[op.gate].astype(np.float64), at.buffers[op.up].astype(np.float64)
    want = reference.gated_activation(at.buffers[op.gate], at.buffers[op.up], op.activation)
    relative, absolute = 12 * U + 0 * gate, 2.0**-126 + 0 * gate
    if op.activation is Activation.GELU_TANH:
        relative += 4 * U * 1.6 * np.abs(gate + 0.045 * gate**3)
        absolute += 2.0**-52 * np.abs(gate * up)
    near(at.buffers[op.out], want, relative * np.abs(want) + absolute, op)


@check.register
def _(op: Add, at: Inputs) -> None:
    np.testing.assert_array_equal(at.buffers[op.out], at.buffers[op.x] + at.buffers[op.y])


@check.register
def _(op: SelectRows, at: Inputs) -> None:
    np.testing.assert_array_equal(at.buffers[op.out], at.buffers[op.x])


@check.register
def _(op: Softcap, at: Inputs) -> None:
    """A quotient, tanh within 3 ulp of its own argument's, and a product."""
    want = reference.softcap(at.buffers[op.x], op.cap)
    near(at.buffers[op.out], want, 12 * U * np.abs(want) + 2.0**-126, op)


@pytest.mark.parametrize("name", CASES)
def test_every_op_is_the_references_within_its_roundings(name: str):
    config, cache = CASES[name]
    at = Inputs(bind_random(config, ("int4-g32", "f32", "q8_0"), cache), None)
    for op in at.binding.program.ops:
        check(op, at)


@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_instruction_set_is_within_its_roundings(isa: str):
    at = Inputs(bind_random(GEMMA_LIKE, ("int4-g32", "f32"), CacheType.F16), isa)
    for op in at.binding.program.ops:
        check(op, at)


def test_layers_with_inputs_in_bf16_are_within_their_roundings():
    """A weight-only chain rounds once an input, as the chain of `Linear`'s tolerance does, and once
    more a run, which the scale's product took there."""
    formats = ("int4-g32", "q4_0", "int8-g32", "int4-g32-asym")
    binding = bind_random(SMALL, formats, activations=Activations.BF16)
    assert {record.activations for record in binding.kernels.values()} == {"bf16"}
    at = Inputs(binding, None)
    for op in binding.program.ops:
        check(op, at)


@pytest.mark.parametrize("site", ["attn_norm", "q", "q_rope", "attention", "activation"])
def test_a_planted_error_of_one_value_is_seen(site: str):
    """Negative control: one element moved by a thousandth of the row's size."""
    at = Inputs(bind_random(SMALL, ("int4-g32",), CacheType.F32), None)
    (op,) = (op for op in at.binding.program.ops if (op.layer, op.site) == (1, site))
    check(op, at)
    row = at.buffers[op.out][277]
    row[5] += 1e-3 * np.abs(row).max()
    with pytest.raises(AssertionError, match=site):
        check(op, at)


def test_angles_are_right_far_into_a_context():
    """Positions to 2^20 at the largest frequency: within one ulp."""
    config = replace(SMALL, context=1 << 20)
    binding = bind_random(config, ("f32",))
    (op,) = (op for op in binding.program.ops if isinstance(op, RopeTable))
    executor = NativeExecutor(binding, pages=1, threads=1, taps=frozenset({(op.layer, op.site)}))
    for position in (1, 1000, 65_535, 524_287, (1 << 20) - 8):
        item = track(position + 8, np.zeros(position // 64 + 2), seed=0)
        item.done = position
        run_alone(executor, item, 8)
        want = reference.rope_table(position + np.arange(8), op.frequencies, op.factor)
        near(executor.tap(op.layer, op.site), want, np.spacing(np.abs(want)), op)
