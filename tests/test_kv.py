"""How the KV store rounds, and how many bytes it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import GEMMA_LIKE, SMALL

from fewbit.errors import UsageError
from fewbit.model.decoder import build_program
from fewbit.program import KV_GROUP, CacheType
from fewbit.runtime.kv import kv_codes, page_bytes, rounded_queries, rounded_rows
from fewbit.runtime.step import PAGE

INTEGERS = [CacheType.INT8, CacheType.INT4]


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 64)).astype(np.float32)


@pytest.mark.parametrize(
    ("cache", "bytes_of_a_head"),
    [
        (CacheType.F32, 4 * 64),
        (CacheType.F16, 2 * 64),
        (CacheType.BF16, 2 * 64),
        (CacheType.INT8, 64 + 2 * 2),
        (CacheType.INT4, 32 + 2 * 2),
    ],
)
def test_a_page_takes_its_elements_and_scales(cache: CacheType, bytes_of_a_head: int):
    program = build_program(replace(SMALL, head_dim=64), cache)
    heads = SMALL.layers * SMALL.kv_heads
    assert page_bytes(program) == PAGE * heads * 2 * bytes_of_a_head


def test_rows_of_values_are_padded_to_the_width_of_the_kernels():
    program = build_program(replace(GEMMA_LIKE, head_dim=40), CacheType.F16)
    assert page_bytes(program) == PAGE * GEMMA_LIKE.layers * (40 + 48) * 2


def codes_by_hand(run: np.ndarray, steps: int) -> tuple[list[int], float]:
    """One run, number by number: the truth of the vectorized form."""
    extreme = max((float(x) for x in run), key=lambda x: (abs(x), x))
    divisor = np.float32(127 if steps == 127 else -8)
    scale = np.float32(np.float16((abs(extreme) if steps == 127 else extreme) / divisor))
    low, high = (-127, 127) if steps == 127 else (-8, 7)
    if scale == 0:
        return [0] * len(run), 0.0
    return [min(max(round(float(x / scale)), low), high) for x in run], float(scale)


@pytest.mark.parametrize("cache", INTEGERS)
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(-30, 12))
def test_codes_are_those_of_the_rule(cache: CacheType, seed: int, exponent: int):
    x = (rows(1, seed) * np.float32(2.0**exponent)).astype(np.float32)
    codes, scales = kv_codes(x, cache)
    for i in range(2):
        run = slice(i * KV_GROUP, (i + 1) * KV_GROUP)
        want, scale = codes_by_hand(x[0, run], 127 if cache is CacheType.INT8 else 8)
        assert scales[0, i] == scale
        assert codes[0, run].tolist() == want


@pytest.mark.parametrize(("cache", "step"), [(CacheType.INT8, 1 / 127), (CacheType.INT4, 1 / 8)])
def test_an_element_errs_by_half_a_step_at_most(cache: CacheType, step: float):
    """Half a step; a whole one where int4 lacks the code +8; the scale's fp16 adds its 2^-11."""
    x = rows(200)
    largest = np.abs(x.reshape(200, 2, KV_GROUP)).max(-1).repeat(KV_GROUP, -1)
    most = (0.5 if cache is CacheType.INT8 else 1.0) * step + 2.0**-11
    assert (np.abs(rounded_rows(x, cache) - x) <= most * largest).all()


def test_the_largest_element_of_int4_has_the_code_that_reaches_furthest():
    x = rows(1)
    x[0, 5], x[0, 40] = 9.0, -9.0
    codes, scales = kv_codes(x, CacheType.INT4)
    assert codes[0, 5] == codes[0, 40] == -8
    assert scales[0, 0] < 0 < scales[0, 1]


@pytest.mark.parametrize("cache", INTEGERS)
def test_runs_of_zeros_tiny_and_huge_values_stay_finite(cache: CacheType):
    x = np.zeros((3, KV_GROUP), np.float32)
    x[1] = 1e-9
    x[2, 3] = 3e38
    found = rounded_rows(x, cache)
    assert not found[:2].any()
    assert np.isfinite(found).all()
    assert found[2, 3] > 65504 * 7


def test_bf16_rounds_to_the_nearest_even():
    x = np.array([[1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -1.0 - 2.0**-8 - 2.0**-20]], np.float32)
    want = [1.0, 1.0, 1.0 + 2.0**-6, -1.0 - 2.0**-7]
    assert rounded_rows(x, CacheType.BF16)[0].tolist() == want


def test_queries_of_integer_stores_have_sixteen_bits():
    q = rows(50)
    assert rounded_queries(q, CacheType.F16) is q
    rounded = rounded_queries(q, CacheType.INT8)
    largest = np.abs(q.reshape(50, 2, KV_GROUP)).max(-1).repeat(KV_GROUP, -1)
    assert (np.abs(rounded - q) <= largest / 65534 * 1.0001).all()
    assert not rounded_queries(0 * q, CacheType.INT4).any()


@pytest.mark.parametrize("cache", INTEGERS)
def test_heads_that_have_no_whole_runs_are_refused(cache: CacheType):
    with pytest.raises(UsageError, match=f"{cache.value} needs heads of a multiple of 32"):
        build_program(GEMMA_LIKE, cache)


def test_rotating_heads_of_another_size_than_a_power_of_two_is_refused():
    with pytest.raises(UsageError, match="power of two, and this model's have 48"):
        build_program(GEMMA_LIKE, rotate_keys=True)
