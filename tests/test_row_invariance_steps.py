"""Law 1 over whole steps: however requests are cut, batched, preempted and served from a shared
prefix, with any store, threads and instruction set, each position's logits have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_cases import CHAINS, random_matrix
from native_cases import SMALL, Track, pages_for, run_step

from fewbit import _native
from fewbit.formats.registry import F32, encode
from fewbit.model.binding import is_vector
from fewbit.model.decoder import build_program, slot_shapes
from fewbit.program import CacheType
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import NativeExecutor, thread_pool
from fewbit.runtime.step import PAGE

ISAS = _native.available_isas()
THREADS = (1, 2, 3, 8)
CONFIG = replace(
    SMALL, hidden=256, heads=8, intermediate=256, layers=1, vocabulary=67, windows=(None,)
)
"""One layer whose widths suit blocks of 256."""
MATRICES = 7
"""Matrices of the layer; the vocabulary's is the eighth."""
SETS = -(-len(CHAINS) // MATRICES)
"""Models needed until every kernel has been in one."""
PAGES = 64

SEARCH = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Model:
    """Which kernels run a model, and over which store."""

    kernels: int
    cache: CacheType
    rotated: bool = False
    """Whether keys, and inputs of the down projection, pass a Hadamard transform."""


@dataclass(frozen=True)
class Case:
    """Requests served together, and how."""

    model: Model
    isa: str
    threads: int
    seed: int
    lengths: tuple[int, ...]
    """Of each request; all begin alike, so that one may start from another's pages."""
    rows: int
    """The most rows of one request in a step."""
    preemptions: int

    @property
    def text(self) -> int:
        """One of four texts, so that a stale page of the store seldom holds the right keys."""
        return self.seed % 4


def isas_of(kernels: int) -> tuple[str, ...]:
    """The instruction sets that run all matrices of a model's layer."""
    used = [CHAINS[name] for name in names_of(kernels)]
    return tuple(isa for isa in ISAS if all(isa in kernel.isas for kernel in used))


def names_of(kernels: int) -> list[str]:
    """The kernels of a model's layer: the next ones of the list in turn."""
    return [[*CHAINS][(MATRICES * kernels + i) % len(CHAINS)] for i in range(MATRICES + 1)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kernels = draw(st.integers(0, SETS - 1))
    isa = draw(st.sampled_from(isas_of(kernels)))
    long = st.sampled_from((65, 130, 257, 330)) if isa != "portable" else st.just(66)
    lengths = draw(st.lists(st.integers(1, 70) | long, min_size=1, max_size=4))
    return Case(
        Model(kernels, draw(st.sampled_from(CacheType)), draw(st.booleans())),
        isa=isa,
        threads=draw(st.sampled_from(THREADS)),
        seed=draw(st.integers(0, 2**32)),
        lengths=tuple(lengths),
        rows=draw(st.sampled_from((16, 40, 100, 330))),
        preemptions=draw(st.integers(0, 2)),
    )


@cache
def binding_of(model: Model) -> Binding:
    rng = np.random.default_rng(model.kernels)
    choices = [CHAINS[name] for name in names_of(model.kernels)]
    tensors, kernels = {}, {}
    for slot, shape in slot_shapes(CONFIG).items():
        if is_vector(slot):
            ones = np.ones(shape, np.float32) + rng.standard_normal(shape, np.float32) / 8
            tensors[slot] = encode(ones, F32)
            continue
        kernel = choices[len(kernels)]
        tensors[slot] = random_matrix(kernel.form, *shape, rng)
        kernels[slot] = kernel.record(slot, tensors[slot])
    config = replace(CONFIG, mlp_rotation=CONFIG.intermediate if model.rotated else 0)
    program = build_program(config, model.cache, rotate_keys=model.rotated)
    return Binding(program, tensors, kernels)


pool_of = cache(thread_pool)


@cache
def executor_of(model: Model, isa: str, threads: int) -> NativeExecutor:
    return NativeExecutor(binding_of(model), pages=PAGES, threads=pool_of(threads), isa=isa)


@cache
def tokens_of(text: int) -> np.ndarray:
    return np.random.default_rng(text).integers(0, CONFIG.vocabulary, 330).astype(np.int32)


@cache
def truth(model: Model, text: int) -> np.ndarray:
    """The logits of all positions: one request, one piece, one thread."""
    executor = executor_of(model, ISAS[0], 1)
    item = Track(tokens_of(text), np.arange(6, dtype=np.int32))
    return run_step(executor, [(item, len(item.tokens))])[0]


class Requests:
    """Requests on their way through one store, driven by a random schedule."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.random = np.random.default_rng(case.seed)
        self.free = self.random.permutation(PAGES).astype(np.int32)
        text = tokens_of(case.text)
        self.tracks = [Track(text[:n], self.take(n)) for n in case.lengths]
        self.logits = [np.full((n, CONFIG.vocabulary), np.nan, np.float32) for n in case.lengths]
        self.preemptions = case.preemptions

    def take(self, length: int) -> np.ndarray:
        taken, self.free = np.split(self.free, [pages_for(length)])
        return taken

    @property
    def running(self) -> list[int]:
        return [i for i, item in enumerate(self.tracks) if item.done < len(item.tokens)]

    def serve(self, executor: NativeExecutor) -> None:
        while self.running:
            self.preempt()
            self.share()
            chosen = [i for i in self.running if self.random.integers(4)] or self.running[:1]
            counts = [self.rows_of(self.tracks[i]) for i in chosen]
            starts = [self.tracks[i].done for i in chosen]
            pieces = [(self.tracks[i], n) for i, n in zip(chosen, counts, strict=True)]
            for i, start, rows in zip(chosen, starts, run_step(executor, pieces), strict=True):
                self.logits[i][start : start + len(rows)] = rows

    def rows_of(self, item: Track) -> int:
        most = min(len(item.tokens) - item.done, self.case.rows)
        return int(self.random.integers(1, most + 1))

    def preempt(self) -> None:
        """Now and then a request loses its pages and is computed again, elsewhere."""
        if self.preemptions and self.random.integers(2):
            self.preemptions -= 1
            item = self.tracks[self.random.choice(self.running)]
            item.pages, item.done = self.take(len(item.tokens)), self.kept_after_preemption()

    def kept_after_preemption(self) -> int:
        return 0

    def share(self) -> None:
        """Now and then a request that has not begun takes whole pages of one further on."""
        for item in self.tracks:
            donor = max(self.tracks, key=lambda other: other.done)
            whole = min(donor.done, len(item.tokens) - 1) // PAGE
            if item.done == 0 and whole and self.random.integers(2):
                item.pages = np.concatenate([donor.pages[:whole], item.pages[whole:]])
                item.done = self.shared_positions(whole)

    def shared_positions(self, whole: int) -> int:
        return whole * PAGE


def require_invariance(case: Case, kind: Callable[[Case], Requests]) -> None:
    requests = kind(case)
    requests.serve(executor_of(case.model, case.isa, case.threads))
    expected = truth(case.model, case.text)
    assert np.isfinite(expected).all()
    for item, logits in zip(requests.tracks, requests.logits, strict=True):
        computed = ~np.isnan(logits).all(axis=1)  # not those that a shared prefix left out
        assert computed[-1]
        want = expected[: len(item.tokens)][computed]
        assert np.array_equal(logits[computed].view(np.uint32), want.view(np.uint32))


# --- the law ------------------------------------------------------------------------------------


@SEARCH
@given(cases())
def test_any_schedule_gives_each_position_the_same_bits(case: Case):
    require_invariance(case, Requests)


@pytest.mark.parametrize(
    ("kernels", "isa"), [(kernels, isa) for kernels in range(SETS) for isa in isas_of(kernels)]
)
def test_every_kernel_on_every_instruction_set(kernels: int, isa: str):
    case = Case(Model(kernels, CacheType.F16), isa, 2, 1, (70, 66, 3), rows=40, preemptions=1)
    require_invariance(case, Requests)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("cache_type", CacheType)
def test_every_store_on_every_instruction_set(cache_type: CacheType, rotated: bool, isa: str):
    model = Model(0, cache_type, rotated)
    case = Case(model, isa, 3, 2, (70, 66, 3), rows=40, preemptions=1)
    require_invariance(case, Requests)


def test_every_kernel_is_in_a_model():
    records = [binding_of(Model(i, CacheType.F32)).kernels.values() for i in range(SETS)]
    found = {record.kernel.rsplit("/", 1)[0] for model in records for record in model}
    assert found == set(CHAINS)


# --- planted bugs: the search must see each of them ----------------------------------------------


class KeepsOnePosition(Requests):
    """After a preemption the first position is not computed again."""

    def kept_after_preemption(self) -> int:
        return 1


class SharesOnePositionTooMany(Requests):
    """A shared prefix counts one position of the page that is not shared."""

    def shared_positions(self, whole: int) -> int:
        return whole * PAGE + 1


@pytest.mark.parametrize("planted", [KeepsOnePosition, SharesOnePositionTooMany])
def test_the_search_sees_a_planted_bug(planted: Callable[[Case], Requests]):
    @settings(SEARCH, phases=(Phase.generate,), report_multiple_bugs=False)
    @given(cases())
    def search(case: Case) -> None:
        require_invariance(case, planted)

    with pytest.raises(AssertionError):
        search()
