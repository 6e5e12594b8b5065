"""Two executors over one KV store: what a draft writes there is provisional and leaves no trace."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from beside_cases import BINDINGS, LENGTH, loaded, pages_of, rows_of, tokens_of, write_eight_bits
from bits import same_bits
from native_cases import SMALL, bind_random

from fewbit.errors import FaultError, UsageError
from fewbit.formats.registry import parse_format
from fewbit.model.beside import beside, early_exit, low_bit_copy, upper_halves
from fewbit.program import CacheType, Embed
from fewbit.runtime.memory import Available
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.pack import Layout, layout_of

FAMILIES = ("llama", "llama-tied", "gemma3", "qwen3-moe")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("eight-bits")


@pytest.fixture(scope="module", params=FAMILIES)
def path(request, folder):
    return write_eight_bits(folder, request.param)


@pytest.fixture(scope="module")
def runner(path):
    return loaded(path)


@pytest.fixture(scope="module")
def llama(folder):
    return loaded(write_eight_bits(folder))


# --- the store ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BINDINGS)
def test_verification_leaves_the_store_as_a_fresh_run_does(runner, kind):
    """Drafted keys at each position, some accepted and some not, then the target's over them."""
    tokens, pages = tokens_of(1), pages_of(0)
    fresh = loaded(runner.source.path).executor
    truth = rows_of(fresh, tokens, 0, pages)
    draft = beside(runner, BINDINGS[kind](runner))
    got = [rows_of(runner.executor, tokens[:60], 0, pages)]
    for at in range(60, LENGTH, 4):
        guessed = np.where(np.arange(4) < at % 4, tokens[at : at + 4], 7)
        for i, token in enumerate(guessed):
            rows_of(draft, np.array([token]), at + i, pages)
        got.append(rows_of(runner.executor, tokens[at : at + 4], at, pages))
    assert same_bits(np.concatenate(got), truth)
    assert runner.executor.page(0) == fresh.page(0)  # full, its last positions drafted first


@pytest.mark.parametrize("kind", BINDINGS)
def test_a_draft_that_is_not_verified_is_seen(llama, kind):
    """Planted: rows taken for verified that only a draft ran."""
    tokens, pages = tokens_of(2), pages_of(0)
    truth = rows_of(llama.executor, tokens, 0, pages_of(1))
    rows_of(llama.executor, tokens[::-1], 0, pages)  # what a layer that is skipped would leave
    draft = beside(llama, BINDINGS[kind](llama))
    rows_of(llama.executor, tokens[:60], 0, pages)
    rows_of(draft, tokens[60:64], 60, pages)
    assert not same_bits(rows_of(llama.executor, tokens[64:], 64, pages), truth[64:])


def test_the_draft_reads_what_the_target_wrote(llama):
    tokens, pages, other = tokens_of(3), pages_of(0), pages_of(1)
    draft = beside(llama, upper_halves(llama))
    for text, where in ((tokens, pages), (tokens[::-1], other)):
        rows_of(llama.executor, text[:60], 0, where)
    after = [rows_of(draft, tokens[60:61], 60, where) for where in (pages, other)]
    assert not same_bits(*after)


def test_both_have_one_store_and_one_pool(llama):
    draft = beside(llama, upper_halves(llama))
    assert isinstance(draft, NativeExecutor) and isinstance(llama.executor, NativeExecutor)
    assert draft.pages == llama.executor.pages
    assert draft.pool is llama.executor.pool
    assert draft.isa == llama.executor.isa


def test_a_draft_outlives_its_target(folder):
    runner = loaded(write_eight_bits(folder))
    draft = beside(runner, upper_halves(runner))
    before = rows_of(draft, tokens_of(4, 5), 0, pages_of(0))
    del runner
    assert same_bits(rows_of(draft, tokens_of(4, 5), 0, pages_of(0)), before)


def test_rows_beyond_the_few_that_it_is_made_for_have_the_same_bits(llama):
    draft = beside(llama, upper_halves(llama))
    tokens, pages = tokens_of(5, 90), pages_of(0)
    whole = rows_of(draft, tokens, 0, pages)
    parts = [rows_of(draft, tokens[at : at + 1], at, pages) for at in range(90)]
    assert same_bits(np.concatenate(parts), whole)


@pytest.mark.parametrize(
    "change",
    [{"kv_heads": 3}, {"head_dim": 16}, {"layers": 3, "windows": (None,) * 3}],
    ids=lambda change: next(iter(change)),
)
def test_another_layout_of_keys_is_refused(change):
    target = NativeExecutor(bind_random(SMALL, ["q8_0"]), pages=2, threads=1)
    other = bind_random(replace(SMALL, **change), ["q8_0"])
    with pytest.raises(FaultError, match="keeps keys and values otherwise"):
        NativeExecutor.beside(target, other)


def test_another_type_of_keys_is_refused():
    target = NativeExecutor(bind_random(SMALL, ["q8_0"]), pages=2, threads=1)
    with pytest.raises(FaultError, match="keeps keys and values otherwise"):
        NativeExecutor.beside(target, bind_random(SMALL, ["q8_0"], CacheType.F32))


# --- what each of the three runs ------------------------------------------------------------------


def test_the_upper_halves_take_no_memory_of_their_own(runner):
    target = runner.executor
    draft = beside(runner, upper_halves(runner))
    for slot, matrix in draft.matrices.items():
        own = "embed.weight" if slot == "head.weight" and runner.config.tied else slot
        nested = layout_of(runner.binding.kernels[own].kernel) is Layout.NESTED
        assert nested == (own != slot or not slot.endswith("router.weight"))
        embeds = [op.weight for op in runner.program.ops if isinstance(op, Embed)]
        whole = slot in embeds or not nested
        size = target.matrices[own].nbytes
        assert matrix.nbytes == size if whole else matrix.nbytes < 0.55 * size
        assert matrix.bytes(0, 64) == target.matrices[own].bytes(0, 64)


@pytest.mark.parametrize("kind", BINDINGS)
def test_the_reference_executor_runs_the_same(path, runner, kind):
    """Its upper halves have the exact middle, which the kernel rounds to a unit of 16 scales a run,
    and rounded activations flip; so logits are close, and what they rank is the same."""
    reference = loaded(path, executor="reference")
    tokens, pages = tokens_of(6, 20), pages_of(0)
    found = []
    for one in (runner, reference):
        draft = beside(one, BINDINGS[kind](one))
        rows_of(one.executor, tokens[:12], 0, pages)
        found.append(rows_of(draft, tokens[12:], 12, pages))
    native, truth = found
    off = np.linalg.norm(native - truth, axis=1) / np.linalg.norm(truth, axis=1)
    assert (off < 0.05).all()
    target = rows_of(runner.executor, tokens[12:], 12, pages)
    apart = np.linalg.norm(native - target, axis=1) / np.linalg.norm(target, axis=1)
    assert (apart > 2 * off).all()  # a draft that ran the target's own weights would be seen


def test_an_exit_after_all_but_the_last_layer_differs_by_that_layer(llama):
    """The exit's logits are those of the target with the skipped layers' residuals at zero."""
    exit_ = early_exit(llama, llama.config.layers - 1)
    layers = {op.layer for op in exit_.program.ops}
    assert layers == {-1, *range(llama.config.layers - 1)}
    assert exit_.program.layers == llama.config.layers
    assert set(exit_.program.slots()) < set(llama.program.slots())


@pytest.mark.parametrize("layers", [0, -1, 3, 9])
def test_an_exit_that_skips_nothing_or_all_is_refused(llama, layers):
    with pytest.raises(UsageError, match=r"choose from 1 to 2"):
        early_exit(llama, layers)


def test_rotated_and_integer_keys(folder):
    path = write_eight_bits(folder, "gemma3")
    runner = loaded(path, cache_type=CacheType.INT8, rotate_keys=True)
    draft = beside(runner, early_exit(runner, 2))
    rows_of(draft, tokens_of(7, 3), 0, pages_of(0))


def test_weights_that_do_not_lie_nested_are_refused(folder):
    plain = loaded(write_eight_bits(folder), nested=False)
    with pytest.raises(UsageError, match="nested draft needs weights in int8"):
        upper_halves(plain)


def test_a_low_bit_copy_in_a_format_that_does_not_divide_is_refused(llama):
    with pytest.raises(Exception, match="256"):
        beside(llama, low_bit_copy(llama, parse_format("q4_k")))


def test_nested_weights_are_not_kept_in_a_file(folder):
    with pytest.raises(UsageError, match="keep_packed cannot be had with nested"):
        loaded(write_eight_bits(folder), keep_packed=True)


def test_a_head_of_the_first_ids_gives_their_logits(path, runner):
    tokens, pages = tokens_of(8, 9), pages_of(0)
    for one in (runner, loaded(path, executor="reference")):
        whole = rows_of(beside(one, upper_halves(one)), tokens, 0, pages)
        first = rows_of(beside(one, upper_halves(one, head_rows=100)), tokens, 0, pages)
        assert first.shape == (9, 100)
        assert same_bits(first, np.ascontiguousarray(whole[:, :100]))


# --- threads, and files of packed weights ---------------------------------------------------------


def test_steps_of_both_from_several_threads_take_turns(llama):
    """Each thread has pages of its own; the store, the pool and the workspaces are shared."""
    draft = beside(llama, upper_halves(llama))
    work = [
        (one, tokens_of(20 + i, 50), pages_of(i)) for i, one in enumerate([llama.executor, draft])
    ]
    alone = [rows_of(one, tokens, 0, pages) for one, tokens, pages in work]
    wrong = []

    def run(i: int) -> None:
        one, tokens, pages = work[i]
        for _ in range(20):
            if not same_bits(rows_of(one, tokens, 0, pages), alone[i]):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_kept_weights_are_not_used_for_a_nested_draft_and_it_is_said(tmp_path):
    path = write_eight_bits(tmp_path)
    kept = loaded(path, nested=False, keep_packed=True)
    assert kept.loading.kept
    assert loaded(path, nested=False).loading.packed
    nested = loaded(path)
    assert not nested.loading.packed
    assert any("its weights do not lie nested" in note for note in nested.loading.notes)
    tokens, pages = tokens_of(9, 30), pages_of(0)
    assert same_bits(*(rows_of(one.executor, tokens, 0, pages) for one in (kept, nested)))


def test_a_copy_that_memory_has_no_room_for_is_refused(llama, monkeypatch):
    """What the model has loaded and not touched yet is none of the room."""
    monkeypatch.setattr(
        "fewbit.model.beside.available_memory", lambda: Available(left, "available")
    )
    left = llama.loading.memory.store + llama.loading.memory.workspace
    with pytest.raises(UsageError, match=r"A copy in int4-g32 needs .* beside the model"):
        low_bit_copy(llama, parse_format("int4-g32"))
