"""Steps and settings that the native executor refuses, by name, and goes on after."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bits import same_bits
from native_cases import (
    MIXED,
    SMALL,
    bind_random,
    pages_for,
)

from fewbit.errors import KernelError, UsageError
from fewbit.runtime.native import NativeExecutor, available_cores, threads_of
from fewbit.runtime.step import Span, StepInput


@pytest.fixture(scope="module")
def small() -> NativeExecutor:
    return NativeExecutor(bind_random(SMALL, MIXED), pages=6, threads=2)


def step_with(**changes: object) -> StepInput:
    """Return a step of five rows in two spans, with one thing about it changed."""
    pages = np.array([4, 2], np.int32)
    spans = changes.pop("spans", None) or (Span(0, 2, 70, pages), Span(2, 3, 0, pages[1:]))
    tokens = changes.pop("tokens", np.arange(5, dtype=np.int32))
    wanted = changes.pop("wanted", np.array([4], np.int32))
    return StepInput(tokens, spans, wanted)  # type: ignore[arg-type]


PAGE_0 = np.zeros(1, np.int32)

REFUSED = {
    "token 203 in row 1 is outside the vocabulary of 203": {
        "tokens": np.array([0, 203, 0, 0, 0], np.int32)
    },
    "token -1 in row 0": {"tokens": np.array([-1, 0, 0, 0, 0], np.int32)},
    "tokens is int64 of shape": {"tokens": np.arange(5)},
    "wanted row 5 is outside the step's 5 rows": {"wanted": np.array([0, 5], np.int32)},
    "wanted is float32": {"wanted": np.zeros(1, np.float32)},
    "the spans cover 2 rows of 5": {"spans": (Span(0, 2, 0, PAGE_0),)},
    "span 1 covers rows 3 to 4": {"spans": (Span(0, 2, 0, PAGE_0), Span(3, 2, 0, PAGE_0))},
    "span 0 covers rows 0 to 8": {"spans": (Span(0, 9, 0, PAGE_0),)},
    "span 0 covers rows 0 to -1": {"spans": (Span(0, 0, 0, PAGE_0), Span(0, 5, 0, PAGE_0))},
    "span 0 ends at position 1028, outside the model's context of 1024": {
        "spans": (Span(0, 5, 1024, np.zeros(17, np.int32)),)
    },
    "span 0 ends at position -3": {"spans": (Span(0, 5, -7, PAGE_0),)},
    "span 0 ends at position 66 but has 1 pages; it needs 2": {"spans": (Span(0, 5, 62, PAGE_0),)},
    "page 6 of span 0 is outside the store": {"spans": (Span(0, 5, 0, PAGE_0 + 6),)},
    "page -1 of span 0": {"spans": (Span(0, 5, 0, PAGE_0 - 1),)},
    "start, count, position and trunk of span 0 must be integers of 64 bits": {
        "spans": (Span(0, 5, 2**70, PAGE_0),)
    },
    "pages of span 0 is int64": {"spans": (Span(0, 5, 0, np.zeros(1, np.int64)),)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_bad_step_is_refused_by_name(small: NativeExecutor, message: str):
    with pytest.raises(UsageError, match=message):
        small.step(step_with(**REFUSED[message]))
    assert small.step(step_with()).shape == (1, SMALL.vocabulary)


@pytest.mark.parametrize(
    "rows",
    [np.zeros((5, 4)), np.zeros((5, 8), np.float32)[:, ::2], np.zeros(5, np.float32), "rows"],
    ids=["float64", "strided", "one row", "a string"],
)
def test_rows_that_would_have_to_be_copied_are_refused(small: NativeExecutor, rows: object):
    """A copy would be gone before the step had read it."""
    buffer = next(iter(small._buffers))
    with pytest.raises(UsageError, match="bound to buffer 0 is no contiguous float32 array"):
        small.step(step_with(), {buffer: rows})  # type: ignore[dict-item]
    assert small.step(step_with()).shape == (1, SMALL.vocabulary)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pages": 0, "threads": 1}, "pages is 0"),
        ({"pages": 1, "threads": 0}, "threads is 0"),
        ({"pages": 2**60, "threads": 1}, "no memory for a KV store of 1152921504606846976 pages"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str):
    with pytest.raises(UsageError, match=message):
        NativeExecutor(bind_random(SMALL, MIXED), **settings)


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(KernelError, match="No instruction set 'mmx'"):
        NativeExecutor(bind_random(SMALL, MIXED), pages=1, threads=1, isa="mmx")


def test_random_steps_run_or_are_refused(small: NativeExecutor):
    """Never a crash, and never a changed result for the good steps in between."""
    good = step_with(spans=(Span(0, 5, 0, PAGE_0 + 3),))
    expected = small.step(good).copy()
    random = np.random.default_rng(11)
    outcomes = {"run": 0, "refused": 0}
    for _ in range(3000):
        try:
            small.step(random_step(random))
            outcomes["run"] += 1
        except UsageError:
            outcomes["refused"] += 1
    assert outcomes["run"] > 100
    assert outcomes["refused"] > 100
    assert same_bits(small.step(good), expected)


def random_step(random: np.random.Generator) -> StepInput:
    wild = [-(2**31), -1, 0, 1, 2, 5, 6, 63, 64, 65, 203, 1023, 1024, 2**31 - 1]
    rows = int(random.integers(0, 6))
    spans, start = [], 0
    while start < rows:
        count = int(random.integers(1, rows - start + 1))
        position = int(random.choice([0, 1, 60, 64, 200]))
        pages = random.integers(0, 6, pages_for(position + count)).astype(np.int32)
        spans.append(Span(start, count, position, pages))
        start += count
    tokens = random.integers(0, 203, rows).astype(np.int32)
    wanted = random.integers(0, max(rows, 1), int(random.integers(0, 3))).astype(np.int32)
    for _ in range(int(random.integers(0, 3))):
        value = int(random.choice(wild))
        target = random.integers(0, 6)
        if target == 0 and rows:
            tokens[random.integers(0, rows)] = value
        elif target == 1 and len(wanted):
            wanted[random.integers(0, len(wanted))] = value
        elif spans:
            i = int(random.integers(0, len(spans)))
            spans[i] = wild_span(random, spans[i], int(target), value)
    return StepInput(tokens, tuple(spans), wanted)


def wild_span(random: np.random.Generator, span: Span, target: int, value: int) -> Span:
    match target:
        case 2:
            return replace(span, start=value)
        case 3:
            return replace(span, count=value)
        case 4:
            return replace(span, position=value)
    pages = span.pages.copy()
    if len(pages) and random.integers(0, 2):
        pages[random.integers(0, len(pages))] = value
        return replace(span, pages=pages)
    return replace(span, pages=pages[:-1])


@pytest.mark.parametrize("asked", [0, -2])
def test_fewer_than_one_thread_is_refused(asked: int):
    with pytest.raises(UsageError, match=f"threads is {asked}; it must be"):
        threads_of(asked)
    assert threads_of(3) == 3
    assert threads_of(None) == available_cores()
