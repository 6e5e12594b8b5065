"""Every type of KV store in the native executor: bits, bytes, and the reference's values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bits import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import SMALL, bind_random, run_alone, run_step, track
from test_native_ops import Inputs, U, check

from fewbit import _native
from fewbit.errors import UsageError
from fewbit.model.config import ModelConfig
from fewbit.program import Attention, CacheType, Hadamard
from fewbit.runtime import kv
from fewbit.runtime.executor import Binding
from fewbit.runtime.kv import page_bytes, rounded_rows
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.reference import ReferenceExecutor

FORMATS = ("int4-g32", "f32")
LENGTH = 330
"""More than one block of 256 keys, and no multiple of a page."""
PAGES = (3, 1, 0, 5, 7, 2)
STORES = {
    "f32": (CacheType.F32, False),
    "bf16": (CacheType.BF16, False),
    "int8": (CacheType.INT8, False),
    "int4": (CacheType.INT4, False),
    "int4-rotated": (CacheType.INT4, True),
    "f16-rotated": (CacheType.F16, True),
}
GROUPED = replace(SMALL, head_dim=64, windows=(None, 200))
WIDE = replace(SMALL, heads=8, kv_heads=1, head_dim=128, attention_softcap=20.0)

ONE_LAYER = replace(SMALL, layers=1, windows=(None,))


def bound(store: str, config: ModelConfig = GROUPED, seed: int = 0) -> Binding:
    cache, rotate = STORES[store]
    return bind_random(config, FORMATS, cache, seed, rotate_keys=rotate)


# --- row invariance -----------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_chunks_threads_and_instruction_sets_change_no_bit(store: str):
    binding = bound(store)
    expected = run_alone(
        NativeExecutor(binding, pages=8, threads=2), track(LENGTH, PAGES, seed=1), LENGTH
    )
    for threads, isa in enumerate(_native.available_isas(), start=1):
        executor = NativeExecutor(binding, pages=8, threads=threads, isa=isa)
        item = track(LENGTH, PAGES[::-1], seed=1)
        parts = [run_step(executor, [(item, count)])[0] for count in (100, 1, 5, 163, 1, 17, 43)]
        assert same_bits(np.concatenate(parts), expected), isa


@pytest.mark.parametrize("store", ["int8", "int4", "bf16"])
def test_a_batch_changes_no_bit(store: str):
    executor = NativeExecutor(bound(store), pages=16, threads=2)
    lengths, pages = (70, 300, 1), (range(2), range(2, 7), range(7, 8))
    cases = list(zip(lengths, pages, strict=True))
    expected = [run_alone(executor, track(n, p, seed=n), n) for n, p in cases]
    batch = [track(n, p, seed=n) for n, p in cases]
    first = run_step(executor, [(batch[1], 280)])[0]
    second = run_step(executor, [(batch[0], 69), (batch[1], 3), (batch[2], 1)])
    third = run_step(executor, [(batch[1], 17), (batch[0], 1)])
    assert same_bits(np.concatenate([second[0], third[1]]), expected[0])
    assert same_bits(np.concatenate([first, second[1], third[0]]), expected[1])
    assert same_bits(second[2], expected[2])


@pytest.mark.parametrize("store", ["int8", "int4-rotated"])
def test_blocks_shared_by_threads_are_merged_in_their_order(store: str):
    """Four blocks of keys: few rows' blocks are dealt to several threads, many rows' are not."""
    executor = NativeExecutor(bound(store, ONE_LAYER), pages=16, threads=3)
    expected = run_alone(executor, track(900, range(16), seed=1), 900)
    item = track(900, range(15, -1, -1), seed=1)
    parts = [run_step(executor, [(item, count)])[0] for count in (870, 1, 2, 1, 3, 1, 20, 2)]
    assert same_bits(np.concatenate(parts), expected)


@settings(max_examples=25, deadline=None)
@given(
    store=st.sampled_from(sorted(STORES)),
    head_dim=st.sampled_from([32, 64, 128, 256]),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    window=st.sampled_from([None, 1, 33, 100]),
    length=st.integers(1, 120),
    cut=st.integers(1, 60),
    isas=st.permutations(_native.available_isas()),
)
def test_any_shape_of_head_keeps_the_bits(  # noqa: PLR0917
    store: str,
    head_dim: int,
    kv_heads: int,
    group: int,
    window: int | None,
    length: int,
    cut: int,
    isas: list[str],
):
    config = replace(
        SMALL,
        layers=1,
        hidden=32,
        intermediate=32,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        windows=(window,),
    )
    binding = bound(store, config, seed=length)
    whole = NativeExecutor(binding, pages=2, threads=2, isa=isas[0])
    expected = run_alone(whole, track(length, (1, 0), seed=cut), length)
    pieces = NativeExecutor(binding, pages=2, threads=1, isa=isas[-1])
    assert same_bits(run_alone(pieces, track(length, (0, 1), seed=cut), cut), expected)


# --- against the reference ----------------------------------------------------------------------


@pytest.mark.parametrize("config", [GROUPED, WIDE], ids=["grouped", "wide"])
@pytest.mark.parametrize("store", ["bf16", "int8", "int4", "int4-rotated"])
def test_attention_is_the_references_within_its_roundings(store: str, config: ModelConfig):
    at = Inputs(bound(store, config), None)
    ops = [op for op in at.binding.program.ops if isinstance(op, Attention | Hadamard)]
    assert len(ops) == config.layers * (3 if store == "int4-rotated" else 1)
    for op in ops:
        check(op, at)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("isa", _native.available_isas())
def test_a_value_is_stored_with_the_references_bits(store: str, isa: str):
    """The first position attends to itself alone, with a weight of exactly one."""
    binding = bound(store)
    ops = [op for op in binding.program.ops if isinstance(op, Attention)]
    taps = frozenset((op.layer, site) for op in ops for site in ("v", "attention"))
    executor = NativeExecutor(binding, pages=1, threads=1, isa=isa, taps=taps)
    for seed in range(20):
        run_alone(executor, track(1, (0,), seed=seed), 1)
        for op in ops:
            want = rounded_rows(executor.tap(op.layer, "v"), STORES[store][0])
            shared = want.reshape(1, op.kv_heads, 1, op.head_dim)
            shared = shared.repeat(op.heads // op.kv_heads, 2).reshape(1, -1)
            np.testing.assert_array_equal(executor.tap(op.layer, "attention"), shared)


@pytest.mark.parametrize(("store", "fault"), [("int8", "127"), ("int4", "-8")])
def test_another_scale_is_seen(store: str, fault: str, monkeypatch: pytest.MonkeyPatch):
    """Negative control: scales of absmax / 126, or of the wrong sign, fail the comparison."""
    at = Inputs(bound(store), None)
    (op,) = (op for op in at.binding.program.ops if (op.layer, op.site) == (1, "attention"))
    check(op, at)
    true_codes = kv.kv_codes

    def wrong_codes(x: np.ndarray, cache: CacheType) -> tuple[np.ndarray, np.ndarray]:
        codes, scales = true_codes(x, cache)
        return codes, -scales if fault == "-8" else scales * np.float32(127 / 126)

    monkeypatch.setattr(kv, "kv_codes", wrong_codes)
    with pytest.raises(AssertionError, match="attention of layer 1"):
        check(op, at)


@pytest.mark.parametrize("store", ["f16-rotated", "f32"])
def test_float_logits_are_the_references(store: str):
    binding = bind_random(GROUPED, ("f32",), CacheType.F32, rotate_keys=STORES[store][1])
    got = run_alone(NativeExecutor(binding, pages=8, threads=2), track(150, PAGES, seed=2), 150)
    want = run_alone(ReferenceExecutor(binding, 8), track(150, PAGES, seed=2), 150)
    # A few hundred roundings of relative 2^-24 on the way to logits of size 5.
    assert np.abs(got - want).max() < 300 * U * 5


def test_rotation_leaves_what_is_not_rounded_as_it_is():
    plain, rotated = (
        run_alone(
            ReferenceExecutor(bind_random(SMALL, ("f32",), CacheType.F32, rotate_keys=rotate), 1),
            track(40, (0,), seed=2),
            40,
        )
        for rotate in (False, True)
    )
    np.testing.assert_allclose(rotated, plain, rtol=0, atol=300 * U * 5)


# --- bytes and what is out of range -------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("config", [SMALL, GROUPED, WIDE], ids=["small", "grouped", "wide"])
def test_the_store_takes_the_bytes_that_were_planned(store: str, config: ModelConfig):
    binding = bound(store, config)
    executor = NativeExecutor(binding, pages=5, threads=1)
    assert executor.store_bytes == 5 * page_bytes(binding.program)


@pytest.mark.parametrize("store", ["f16-rotated", "bf16", "int8", "int4"])
@pytest.mark.parametrize("slot", ["k", "v"])
def test_a_value_out_of_range_is_not_hidden_by_the_rounding(store: str, slot: str):
    binding = bind_random(replace(ONE_LAYER, qkv_bias=True), ("f32",), STORES[store][0])
    bias = binding.tensors[f"layers.0.{slot}.bias"]
    bias.codes.view(np.float32)[0, 3] = np.nan
    logits = run_alone(NativeExecutor(binding, pages=1, threads=1), track(3, (0,), seed=1), 3)
    assert np.isnan(logits).all()


# --- reading the store --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["native", "reference"])
def test_a_page_is_told_by_its_tokens_and_positions_alone(kind: str):
    binding = bound("int8")
    executor = (
        NativeExecutor(binding, pages=8, threads=1)
        if kind == "native"
        else ReferenceExecutor(binding, 8)
    )
    run_alone(executor, track(130, PAGES, seed=1), 130)
    found = [executor.page(page) for page in PAGES[:2]]
    run_alone(executor, track(130, PAGES[3:], seed=1), 7)
    assert [executor.page(page) for page in PAGES[3:5]] == found
    assert found[0] != found[1]
    run_alone(executor, track(130, PAGES[3:], seed=2), 130)
    assert executor.page(PAGES[3]) != found[0]


def test_a_page_beyond_the_store_is_refused():
    executor = NativeExecutor(bound("bf16"), pages=2, threads=1)
    with pytest.raises(UsageError, match="page is 2"):
        executor.page(2)
