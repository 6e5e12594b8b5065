"""bf16 weights by float32 inputs as three bf16 numbers: the tiles' bits beside NumPy's."""

import numpy as np
import pytest

from fewbit import _native
from fewbit.formats.registry import BF16, decode, encode, parse_format
from fewbit.runtime.chooser import choose, executed_rounding
from fewbit.runtime.pack import Layout, pack

RUN = 32
EPSILON = 2.0**-24
SMALLEST = np.float32(2.0**-126)
UPPER = np.uint32(0xFFFF0000)

tiles = pytest.mark.skipif("amx" not in _native.available_isas(), reason="needs AMX")


def weights(rng, outputs, inputs, scale=1.0):
    return encode((rng.standard_normal((outputs, inputs)) * scale).astype(np.float32), BF16)


def packed(tensor):
    return pack(tensor, 1, _native.PackedArena(), Layout.PLAIN)


def upper(x):
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) & UPPER).view(np.float32)


def flushed(x):
    """Float64 rounded to float32, subnormal numbers to 0."""
    rounded = x.astype(np.float32)
    return np.where(np.abs(rounded) < SMALLEST, np.float32(0) * rounded, rounded)


def twin(weight, x):
    """What split.h says: fma chains of a run's even and odd inputs, piece by piece.

    A product of two bf16 numbers has 16 bits, so that in float64 a sum with a float32 of like size
    is exact and rounding it to float32 is what an fma does.
    """
    first = upper(x)
    middle = upper(x - first)
    pieces = [flushed(upper(p)) for p in (x - first - middle, middle, first)]
    w = flushed(weight).astype(np.float64)
    acc = np.zeros((len(x), len(weight)), np.float32)
    for begin in range(0, x.shape[1], RUN):
        for piece in pieces:
            even, odd = np.zeros_like(acc), np.zeros_like(acc)
            for k in range(begin, begin + RUN, 2):
                even = flushed(even + np.outer(piece[:, k], w[:, k]))
                odd = flushed(odd + np.outer(piece[:, k + 1], w[:, k + 1]))
            acc = flushed(acc + flushed(even + odd).astype(np.float64))
    return acc


@tiles
@pytest.mark.parametrize("scale", [1.0, 1e-19, 1e30])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 40, 64), (2, 16, 160), (37, 72, 256)])
def test_tiles_and_vectors_give_the_bits_of_the_chain(rows, outputs, inputs, scale):
    rng = np.random.default_rng(rows)
    weight = weights(rng, outputs, inputs)
    spread = np.exp(3 * rng.standard_normal((rows, inputs))) * scale
    x = (rng.standard_normal((rows, inputs)) * spread).astype(np.float32)
    found = _native.multiply_split(packed(weight), x, None)
    assert np.array_equal(found.view(np.uint32), twin(decode(weight), x).view(np.uint32))


@tiles
def test_no_piece_of_an_input_is_left_out():
    """The negative control: without the last 8 bits of the inputs the error is far larger."""
    rng = np.random.default_rng(1)
    weight = weights(rng, 48, 320)
    x = rng.standard_normal((9, 320)).astype(np.float32)
    w = decode(weight).astype(np.float64)
    truth = x.astype(np.float64) @ w.T
    # Each term is rounded in at most 16 sums of its chain, one of both chains, three of each run.
    allowed = (16 + 1 + 3 * 320 / RUN) * EPSILON * (np.abs(x).astype(np.float64) @ np.abs(w).T)
    found = _native.multiply_split(packed(weight), x, None)
    assert np.all(np.abs(found - truth) <= allowed)
    short = upper(x) + upper(x - upper(x))
    cut = _native.multiply_split(packed(weight), short, None)
    assert np.abs(cut - truth).max() > 4 * np.abs(found - truth).max()


@tiles
def test_how_the_work_is_cut_changes_no_bit_and_biases_come_last():
    rng = np.random.default_rng(2)
    weight = weights(rng, 100, 224)
    x = rng.standard_normal((70, 224)).astype(np.float32)
    bias = rng.standard_normal(100).astype(np.float32)
    whole = _native.multiply_split(packed(weight), x, None)
    for tiles_at_once, rows_at_once in ((1, 1), (3, 5), (2, 33), (7, 16)):
        parts = _native.multiply_split(packed(weight), x, None, tiles_at_once, rows_at_once)
        assert np.array_equal(whole, parts)
    assert np.array_equal(_native.multiply_split(packed(weight), x, bias), whole + bias)


@tiles
def test_tiny_inputs_are_nothing_for_one_row_and_for_many():
    """Subnormal numbers are 0 on tiles; one row is multiplied on vectors, and is to do the same."""
    rng = np.random.default_rng(3)
    weight = weights(rng, 64, 128, scale=1e-3)
    x = (rng.standard_normal((20, 128)) * 1e-35).astype(np.float32)
    whole = _native.multiply_split(packed(weight), x, None)
    alone = _native.multiply_split(packed(weight), x, None, rows_at_once=1)
    assert np.array_equal(whole.view(np.uint32), alone.view(np.uint32))
    assert np.any(whole == 0)


@tiles
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(bad):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((20, 64)).astype(np.float32)
    x[3, 40] = bad
    for rows_at_once in (0, 1):
        found = _native.multiply_split(packed(weights(rng, 32, 64)), x, None, 0, rows_at_once)
        assert not np.isfinite(found[3]).any()
        assert np.isfinite(np.delete(found, 3, axis=0)).all()


@tiles
def test_tiles_are_chosen_for_bf16_in_whole_runs_alone():
    rng = np.random.default_rng(5)
    taken = choose("a", weights(rng, 32, 64))
    assert (taken.kernel, taken.activations) == ("bf16/f32.split/amx", "f32")
    assert executed_rounding(taken) == "f32-split"
    behind = next(r for r in taken.rejected if r.kernel == "bf16/f32/avx512")
    assert behind.reason == "bf16/f32.split/amx rounds no input either, and is faster"
    odd = choose("a", weights(rng, 32, 60))
    assert (odd.kernel, executed_rounding(odd)) == ("bf16/f32/avx512", "f32")
    assert "there are 60" in odd.rejected[0].reason
    halves = choose("a", encode(np.ones((32, 64), np.float32), parse_format("f16")))
    assert "bf16 alone" in halves.rejected[0].reason


def test_a_matrix_that_does_not_fit_is_refused():
    x = np.ones((2, 64), np.float32)
    other = pack(
        encode(np.ones((32, 64), np.float32), parse_format("f16")), 1, _native.PackedArena()
    )
    with pytest.raises(ValueError, match=r"AMX|bf16"):
        _native.multiply_split(other, x, None)
