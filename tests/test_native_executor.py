"""The native executor: row by row the same bits, op by op the reference's values."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from bits import same_bits
from float_state import rounding_up_and_flushing
from native_cases import (
    GEMMA_LIKE,
    MIXED,
    MIXTURE,
    SMALL,
    Track,
    bind_random,
    pages_for,
    run_alone,
    run_step,
    track,
)

from fewbit import _native
from fewbit.errors import UsageError
from fewbit.model.config import ModelConfig
from fewbit.program import Attention, CacheType, Rope, RopeTable
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import NativeExecutor, thread_pool
from fewbit.runtime.reference import ReferenceExecutor
from fewbit.runtime.step import PAGE, Span, StepInput

LENGTH = 330
"""More than one block of 256 keys, and no multiple of a page."""

PAGES = (3, 1, 0, 5, 7, 2)


@pytest.fixture(scope="module", params=["small", "gemma-like", "mixture"])
def binding(request: pytest.FixtureRequest) -> Binding:
    if request.param == "small":
        return bind_random(SMALL, MIXED, CacheType.F16)
    if request.param == "mixture":
        return bind_random(MIXTURE, (*MIXED, "mxfp4"), CacheType.F16)
    return bind_random(GEMMA_LIKE, ("q8_0", "int4-g32", "f32"), CacheType.F32)


@pytest.fixture(scope="module")
def alone(binding: Binding) -> np.ndarray:
    """Logits of every position: one piece, two threads, the best instruction set."""
    executor = NativeExecutor(binding, pages=8, threads=2)
    return run_alone(executor, track(LENGTH, PAGES, seed=1), LENGTH)


# --- row invariance -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_of_a_prompt_change_no_bit(binding: Binding, alone: np.ndarray, chunk: int):
    executor = NativeExecutor(binding, pages=8, threads=2)
    assert same_bits(run_alone(executor, track(LENGTH, PAGES, seed=1), chunk), alone)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads_change_no_bit(binding: Binding, alone: np.ndarray, threads: int):
    executor = NativeExecutor(binding, pages=8, threads=threads)
    assert same_bits(run_alone(executor, track(LENGTH, PAGES, seed=1), 100), alone)


@pytest.mark.parametrize("isa", _native.available_isas())
def test_instruction_sets_change_no_bit(binding: Binding, alone: np.ndarray, isa: str):
    executor = NativeExecutor(binding, pages=8, threads=2, isa=isa)
    assert executor.isa == isa
    item = track(LENGTH, PAGES, seed=1)
    parts = [run_step(executor, [(item, count)])[0] for count in (200, 1, 5, 17, 107)]
    assert same_bits(np.concatenate(parts), alone)


def test_the_place_of_pages_changes_no_bit(binding: Binding, alone: np.ndarray):
    executor = NativeExecutor(binding, pages=40, threads=2)
    item = track(LENGTH, (39, 0, 17, 16, 4, 30), seed=1)
    assert same_bits(run_alone(executor, item, LENGTH), alone)


def test_a_batch_of_sixteen_changes_no_bit(binding: Binding):
    lengths = [LENGTH, 1, 257, 64, 65, 100, 30, 256, 7, 16, 17, 200, 90, 128, 5, 63]
    random = np.random.default_rng(5)
    order = random.permutation(sum(map(pages_for, lengths)))
    cuts = np.cumsum([0, *map(pages_for, lengths)])

    def tracks() -> list[Track]:
        return [track(n, order[cuts[i] : cuts[i + 1]], seed=i) for i, n in enumerate(lengths)]

    executor = NativeExecutor(binding, pages=len(order), threads=2)
    expected = [run_alone(executor, item, len(item.tokens)) for item in tracks()]
    batch = tracks()
    parts: list[list[np.ndarray]] = [[] for _ in batch]
    while any(item.done < len(item.tokens) for item in batch):
        running = [i for i, item in enumerate(batch) if item.done < len(item.tokens)]
        counts = [
            min(int(random.choice([1, 3, 40, 150])), len(batch[i].tokens) - batch[i].done)
            for i in running
        ]
        pieces = [(batch[i], count) for i, count in zip(running, counts, strict=True)]
        for i, logits in zip(running, run_step(executor, pieces), strict=True):
            parts[i].append(logits)
    for got, want in zip(parts, expected, strict=True):
        assert same_bits(np.concatenate(got), want)


def test_a_prefix_in_the_store_serves_another_sequence(binding: Binding, alone: np.ndarray):
    executor = NativeExecutor(binding, pages=10, threads=2)
    first = track(LENGTH, PAGES, seed=1)
    run_alone(executor, first, LENGTH)
    shared = Track(first.tokens, np.array([*PAGES[:4], 8, 9], np.int32), done=4 * PAGE)
    assert same_bits(run_alone(executor, shared, 50), alone[4 * PAGE :])


@pytest.mark.parametrize("window", [None, 300])
def test_blocks_shared_by_threads_are_merged_in_their_order(window: int | None):
    """Four blocks of keys: few rows' blocks are dealt to several threads, many rows' are not."""
    config = replace(SMALL, windows=(window, None))
    executor = NativeExecutor(bind_random(config, MIXED), pages=16, threads=3)
    expected = run_alone(executor, track(900, range(16), seed=1), 900)
    item = track(900, range(15, -1, -1), seed=1)
    parts = [run_step(executor, [(item, count)])[0] for count in (870, 1, 2, 1, 3, 1, 20, 2)]
    assert same_bits(np.concatenate(parts), expected)


def test_wanted_rows_may_be_few_repeated_and_unordered(binding: Binding, alone: np.ndarray):
    executor = NativeExecutor(binding, pages=8, threads=2)
    item = track(LENGTH, PAGES, seed=1)
    wanted = np.array([329, 3, 3, 270, 0], np.int32)
    span = Span(0, LENGTH, 0, item.pages)
    assert same_bits(executor.step(StepInput(item.tokens, (span,), wanted)), alone[wanted])
    none = executor.step(StepInput(item.tokens, (span,), wanted[:0]))
    assert none.shape == (0, SMALL.vocabulary)


def test_the_comparison_sees_a_changed_order_of_keys():
    """Negative control: without positions, attention over swapped keys is equal in exact
    arithmetic, and only the order of the additions tells the two apart."""
    config = replace(SMALL, layers=1, windows=(None,))
    rotated = bind_random(config, ("f32",), CacheType.F32)
    executor = NativeExecutor(without_positions(rotated), pages=1, threads=1)
    item = track(40, (0,), seed=1)
    swapped = Track(item.tokens.copy(), item.pages)
    swapped.tokens[:39] = item.tokens[:39][::-1]
    last = run_alone(executor, item, 40)[-1]
    other = run_alone(executor, swapped, 40)[-1]
    assert np.allclose(last, other, rtol=0, atol=1e-5)
    assert not same_bits(last, other)


def without_positions(binding: Binding) -> Binding:
    """Leave out the rotations of a Program."""
    source = binding.program
    sources = {op.out: op.x for op in source.ops if isinstance(op, Rope)}
    ops = tuple(
        replace(op, q=sources[op.q], k=sources[op.k]) if isinstance(op, Attention) else op
        for op in source.ops
        if not isinstance(op, Rope | RopeTable)
    )
    widths = {op.out: source.widths[op.out] for op in ops}
    return replace(binding, program=replace(source, ops=ops, widths=widths))


# --- against the reference ----------------------------------------------------------------------


@pytest.mark.parametrize("config", [SMALL, GEMMA_LIKE, MIXTURE])
def test_float_logits_are_the_references(config: ModelConfig):
    """End to end for float weights and a float32 store only, where no rounding step can flip."""
    exact = bind_random(config, ("f32",), CacheType.F32)
    item = track(280, PAGES, seed=2)
    got = run_alone(NativeExecutor(exact, pages=8, threads=2), item, 280)
    want = run_alone(ReferenceExecutor(exact, 8), track(280, PAGES, seed=2), 280)
    # A few hundred roundings of relative 2^-24 on the way to logits of size 5.
    assert np.abs(got - want).max() < 300 * 2.0**-24 * 5


def test_all_taps_change_no_bit_of_the_logits(binding: Binding, alone: np.ndarray):
    taps = frozenset((op.layer, op.site) for op in binding.program.ops)
    executor = NativeExecutor(binding, pages=8, threads=2, taps=taps)
    assert same_bits(run_alone(executor, track(LENGTH, PAGES, seed=1), LENGTH), alone)
    for op in binding.program.ops:
        tapped = executor.tap(op.layer, op.site)
        assert tapped.shape == (LENGTH, binding.program.widths[op.out])


def test_a_buffer_that_is_not_tapped_is_refused(binding: Binding):
    executor = NativeExecutor(binding, pages=1, threads=1, taps=frozenset({(0, "attn_norm")}))
    with pytest.raises(UsageError, match="Layer 1, site 'attn_norm' is not tapped"):
        executor.tap(1, "attn_norm")
    with pytest.raises(UsageError, match="no op at layer 9, site 'q' to tap"):
        NativeExecutor(binding, pages=1, threads=1, taps=frozenset({(9, "q")}))


# --- the thread's floating-point state ----------------------------------------------------------


def test_the_callers_floating_point_state_plays_no_part(binding: Binding, alone: np.ndarray):
    with rounding_up_and_flushing():
        pool = thread_pool(2)  # its threads inherit the state
    executor = NativeExecutor(binding, pages=8, threads=pool)
    with rounding_up_and_flushing():
        assert np.float32(1e-38) * np.float32(0.1) == 0, "the state is not what this test needs"
        logits = run_alone(executor, track(LENGTH, PAGES, seed=1), LENGTH)
        still_flushing = np.float32(1e-38) * np.float32(0.1) == 0
    assert same_bits(logits, alone)
    assert still_flushing, "the caller's state was not restored"


# --- threads, memory, weights -------------------------------------------------------------------


def test_executors_share_a_pool_from_several_threads(binding: Binding, alone: np.ndarray):
    pool = thread_pool(2)
    results: list[np.ndarray] = []

    def work() -> None:
        executor = NativeExecutor(binding, pages=8, threads=pool)
        results.append(run_alone(executor, track(LENGTH, PAGES, seed=1), 20))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [same_bits(logits, alone) for logits in results] == [True] * 3


def test_slots_are_released_one_by_one_as_they_are_packed():
    source = bind_random(SMALL, MIXED)
    held: set[str] = set()
    most = 0

    class Tensors(dict):  # type: ignore[type-arg]
        def __getitem__(self, slot: str):
            nonlocal most
            held.add(slot)
            most = max(most, len(held))
            return super().__getitem__(slot)

    lazy = Binding(source.program, Tensors(source.tensors), source.kernels, held.discard)
    NativeExecutor(lazy, pages=1, threads=1)
    assert most == 1
    assert not held


def test_the_workspace_does_not_grow_with_layers_or_prompts():
    few, many = (
        NativeExecutor(
            bind_random(replace(SMALL, layers=layers, windows=(None,) * layers), ("int4-g32",)),
            pages=8,
            threads=1,
        )
        for layers in (4, 12)
    )
    assert few._native.workspace_bytes == many._native.workspace_bytes
    before = many._native.workspace_bytes
    run_alone(many, track(LENGTH, PAGES, seed=1), LENGTH)
    assert many._native.workspace_bytes == before


def test_the_store_is_as_large_as_its_pages():
    for cache, size in ((CacheType.F16, 2), (CacheType.F32, 4)):
        executor = NativeExecutor(bind_random(SMALL, MIXED, cache), pages=5, threads=1)
        heads = SMALL.layers * SMALL.kv_heads * SMALL.head_dim
        assert executor.store_bytes == 5 * PAGE * heads * 2 * size
        assert executor.pages == 5
