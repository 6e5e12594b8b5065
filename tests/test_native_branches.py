"""Branches of a step: every row as if its way had been the whole sequence, and the store after."""

import numpy as np
import pytest
from bits import same_bits
from native_cases import GEMMA_LIKE, SMALL, bind_random

from fewbit.errors import UsageError
from fewbit.program import CacheType
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.reference import ReferenceExecutor
from fewbit.runtime.step import PAGE, Span, StepInput

CHAIN = 3
BRANCHES = ((0, 2), (0, 1), (1, 1), (3, 2))
"""(depth, tokens) of each: two at the beginning, one in the middle, one behind the chain."""
STORES = {"f16": CacheType.F16, "int8": CacheType.INT8, "int4": CacheType.INT4}


def ids(count, seed):
    return np.random.default_rng(seed).integers(0, 203, count).astype(np.int32)


def read(executor, tokens, pages, begin=0):
    """Run tokens in pieces and return the last row's logits."""
    for at in range(begin, len(tokens), 100):
        own = tokens[at : at + 100]
        span = Span(0, len(own), at, pages)
        step = StepInput(own, (span,), np.array([len(own) - 1], np.int32))
        logits = executor.step(step).copy()
    return logits[0]


class Tree:
    """A text with a last token to run, a chain behind it and branches, as spans of one step."""

    def __init__(self, length, *, beside=0):
        self.text = ids(length, 1)
        self.chain = ids(CHAIN, 2)
        self.pages = np.arange(20, 20 + -(-(length + CHAIN) // PAGE), dtype=np.int32)
        first, position = (length - 1) // PAGE, length - 1
        spans = [Span(0, 1 + CHAIN, position, self.pages)]
        rows = [self.text[-1:], self.chain]
        self.ways = [[*self.text, *self.chain[:j]] for j in range(CHAIN + 1)]
        free, start = 1, 1 + CHAIN
        self.tables = []
        for i, (depth, count) in enumerate(BRANCHES):
            own = ids(count, 10 + i)
            needed = -(-(length + depth + count) // PAGE) - first
            table = np.array([*self.pages[:first], *range(free, free + needed)], np.int32)
            free += needed
            spans.append(Span(start, count, length + depth, table, 0))
            self.tables.append(table)
            self.ways += [[*self.text, *self.chain[:depth], *own[: j + 1]] for j in range(count)]
            rows.append(own)
            start += count
        if beside:
            other = np.array([40, 41], np.int32)
            spans.append(Span(start, beside, 0, other))
            rows.append(ids(beside, 77))
        tokens = np.concatenate(rows)
        wanted = np.arange(len(self.ways), dtype=np.int32)
        self.step = StepInput(tokens, tuple(spans), wanted)

    def begin(self, executor):
        read(executor, self.text[:-1], self.pages)


LENGTHS = [2, 40, PAGE, PAGE + 1, 2 * PAGE - 2, 300]
"""Inside a page, at its ends, in the next block of 256 keys; branches that reach a next page."""


@pytest.mark.parametrize("config", [SMALL, GEMMA_LIKE], ids=["small", "gemma-like"])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("length", LENGTHS)
def test_each_row_has_the_bits_of_its_way_alone(config, store, length):
    if config is GEMMA_LIKE and store != "f16":
        store = "f32"
    binding = bind_random(config, ("int4-g32", "q8_0"), CacheType(store))
    tree = Tree(length, beside=70)
    executor = NativeExecutor(binding, pages=64, threads=2)
    tree.begin(executor)
    logits = executor.step(tree.step).copy()
    alone = NativeExecutor(binding, pages=8, threads=1)
    pages = np.arange(8, dtype=np.int32)
    for row, way in enumerate(tree.ways):
        assert same_bits(logits[row], read(alone, np.array(way, np.int32), pages)), row


@pytest.mark.parametrize("length", LENGTHS)
def test_a_branchs_pages_are_those_of_a_run_of_its_own(length):
    """Another row behind the branch reads all that it left."""
    binding = bind_random(SMALL, ("int4-g32", "q8_0"))
    tree = Tree(length)
    executor = NativeExecutor(binding, pages=64, threads=2)
    tree.begin(executor)
    executor.step(tree.step)
    alone = NativeExecutor(binding, pages=8, threads=1)
    pages = np.arange(8, dtype=np.int32)
    ends = np.cumsum([count for _, count in BRANCHES]) + CHAIN
    for table, end in zip(tree.tables, ends, strict=True):
        way = np.array([*tree.ways[end], 9], np.int32)
        grown = np.array([*table, 60], np.int32)
        after = read(executor, way, grown, begin=len(way) - 1)
        assert same_bits(after, read(alone, way, pages))


def test_the_reference_runs_them_too():
    binding = bind_random(SMALL, ("f32",), CacheType.F32)
    tree = Tree(70)
    native, reference = NativeExecutor(binding, pages=64, threads=1), ReferenceExecutor(binding, 64)
    found = []
    for executor in (native, reference):
        tree.begin(executor)
        found.append(executor.step(tree.step).copy())
    # float32 chains of 96 to 160 products against float64 ones, two layers deep
    np.testing.assert_allclose(*found, rtol=0, atol=2e-4)


def test_a_branch_that_is_taken_for_a_sequence_of_its_own_is_seen():
    """Planted: without its trunk the pages lack the rows that it continues."""
    binding = bind_random(SMALL, ("int4-g32",))
    tree = Tree(70)
    executor = NativeExecutor(binding, pages=64, threads=1)
    tree.begin(executor)
    right = executor.step(tree.step).copy()
    fresh = NativeExecutor(binding, pages=64, threads=1)
    tree.begin(fresh)
    spans = tuple(Span(s.start, s.count, s.position, s.pages) for s in tree.step.spans)
    wrong = fresh.step(tree.step._replace(spans=spans))
    assert same_bits(right[: 1 + CHAIN], wrong[: 1 + CHAIN])
    assert not any(same_bits(a, b) for a, b in zip(right[4:], wrong[4:], strict=True))


def two_spans(**second):
    """A chain of two rows at position 5, and a span that branches off it, but for what is given."""
    fields = {"count": 1, "position": 6, "pages": np.array([2], np.int32), "trunk": 0, **second}
    spans = (Span(0, 2, 5, np.array([1], np.int32)), Span(2, **fields))
    return StepInput(ids(2 + fields["count"], 3), spans, np.array([0], np.int32))


REFUSED = {
    "its trunk must come before": {"trunk": 1},
    "must come before it": {"trunk": -7},
    "it must follow a row of its trunk": {"position": 5},
    "which has positions 5 to 6": {"position": 8},
    "it needs its own": {"pages": np.array([1], np.int32)},
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_branch_that_cannot_be_is_refused(words):
    executor = NativeExecutor(bind_random(SMALL, ("int4-g32",)), pages=4, threads=1)
    executor.step(two_spans())
    with pytest.raises(UsageError, match=words):
        executor.step(two_spans(**REFUSED[words]))


def test_a_branch_of_a_branch_is_refused():
    executor = NativeExecutor(bind_random(SMALL, ("int4-g32",)), pages=4, threads=1)
    step = two_spans()
    third = Span(3, 1, 7, np.array([3], np.int32), 1)
    with pytest.raises(UsageError, match="is a branch itself"):
        executor.step(StepInput(ids(4, 3), (*step.spans, third), step.wanted))
