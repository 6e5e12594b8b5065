"""X^T X and moments of rows, against float64.

Bounds: an entry's error is measured in units of sqrt(G_ii G_jj), which bounds the sum of magnitudes
(Cauchy and Schwarz). Float32 sums of 256 products lose at most 257 * 2^-24 of it, and adding blocks
2^-24 each; rounding an input to bf16 moves it by 2^-8 at most, a product by 2^-7 + 2^-16.
"""

import numpy as np
import pytest

from fewbit._native import available_isas
from fewbit.errors import KernelError, UsageError
from fewbit.formats.floats import decode_bf16, encode_bf16
from fewbit.runtime.chooser import ISAS
from fewbit.runtime.gram import (
    GRAM_ROWS,
    add_cross,
    add_gram,
    add_moments,
    gram_kernel,
    mirror_gram,
)
from fewbit.runtime.native import thread_pool

ISA_NAMES = available_isas()
FLOAT_ISAS = [isa for isa in ISA_NAMES if gram_kernel(isa).startswith("f32")]
POOL = thread_pool(2)
LENGTHS = [300, 1, 31, 0, 512]


def rows(count, columns, seed=0):
    """Return rows whose columns differ in size, as activations do."""
    random = np.random.default_rng(seed)
    sizes = np.exp(random.standard_normal(columns) * 2)
    return (random.standard_normal((count, columns)) * sizes).astype(np.float32)


def gram_of(x, lengths=None, isa=None, pool=POOL):
    gram = np.zeros((x.shape[1],) * 2, np.float32)
    add_gram(gram, x, pool, lengths=lengths, isa=isa)
    mirror_gram(gram, pool)
    return gram


def error(gram, x):
    """Return the largest error in units of sqrt(G_ii G_jj)."""
    truth = x.astype(np.float64).T @ x.astype(np.float64)
    size = np.sqrt(truth.diagonal())
    return np.abs((gram - truth) / np.outer(size, size)).max()


def bound(kernel, blocks):
    sums = (GRAM_ROWS + 1 + blocks) * 2.0**-24
    return sums + (2.0**-7 + 2.0**-16 if kernel.startswith("bf16") else 0)


@pytest.mark.parametrize("isa", ISA_NAMES)
@pytest.mark.parametrize("columns", [1, 15, 16, 33, 64, 100, 200])
def test_every_kernel_sums_the_products(isa, columns):
    x = rows(sum(LENGTHS), columns)
    gram = gram_of(x, LENGTHS, isa)
    assert error(gram, x) < bound(gram_kernel(isa), 6)
    assert (gram == gram.T).all()


@pytest.mark.parametrize("isa", ISA_NAMES)
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 255, 257])
def test_any_number_of_rows(isa, count):
    x = rows(count, 70, seed=count)
    assert error(gram_of(x, isa=isa), x) < bound(gram_kernel(isa), 2)


@pytest.mark.parametrize("isa", ISA_NAMES)
def test_a_row_that_is_counted_twice_or_not_at_all_is_seen(isa):
    """The bound has teeth: one row of sixty more or less is beyond it."""
    x = np.abs(rows(60, 40)) + 1
    for wrong in (x[1:], np.concatenate([x, x[:1]])):
        assert error(gram_of(wrong, isa=isa), x) > bound(gram_kernel(isa), 1)


def test_float_kernels_agree_bit_for_bit():
    x = rows(sum(LENGTHS), 150)
    first, *others = [gram_of(x, LENGTHS, isa).tobytes() for isa in FLOAT_ISAS]
    assert all(other == first for other in others)


def test_the_float_kernel_is_the_chain_that_is_documented():
    """p = fma(x_i, x_j, p) over a block's rows, then g + p; float64 holds each product exactly."""
    x = rows(400, 3)
    truth = np.zeros((3, 3), np.float32)
    for block in (x[:256], x[256:]):
        p = np.zeros((3, 3), np.float32)
        for row in block.astype(np.longdouble):
            p = (np.outer(row, row) + p).astype(np.float32)
        truth += p
    assert (gram_of(x, isa="portable") == truth).all()


@pytest.mark.parametrize("isa", ISA_NAMES)
def test_inputs_are_rounded_as_the_id_says(isa):
    x = rows(700, 100)
    rounded = decode_bf16(encode_bf16(x))
    right, wrong = (rounded, x) if gram_kernel(isa).startswith("bf16") else (x, rounded)
    gram = gram_of(x, isa=isa)
    assert error(gram, right) < bound("f32", 3)
    assert error(gram, wrong) > 10 * bound("f32", 3)


@pytest.mark.parametrize("isa", ISA_NAMES)
def test_neither_batches_nor_threads_change_a_bit(isa):
    x = rows(sum(LENGTHS), 200)
    once = gram_of(x, LENGTHS, isa)
    apart = np.zeros_like(once)
    alone = thread_pool(1)
    start = 0
    for length in LENGTHS:
        add_gram(apart, np.ascontiguousarray(x[start : start + length]), alone, isa=isa)
        start += length
    mirror_gram(apart, alone)
    assert once.tobytes() == apart.tobytes()


def test_sequences_that_start_elsewhere_give_other_bits():
    """The comparison of bits catches blocks that are counted from the batch's start."""
    x = rows(sum(LENGTHS), 200)
    assert gram_of(x, LENGTHS).tobytes() != gram_of(x).tobytes()


def test_many_rows_keep_four_digits():
    """65,536 rows with a mean, so that sums grow steadily: the worst case for float32."""
    x = rows(65_536, 32) + np.float32(0.5)
    for isa in {ISA_NAMES[0], FLOAT_ISAS[0]}:
        assert error(gram_of(x, [512] * 128, isa), x) < 1e-4


def test_not_finite_inputs_stay_visible():
    x = rows(40, 80)
    x[7, 3] = np.nan
    gram = gram_of(x)
    assert np.isnan(gram[3]).all()
    assert np.isnan(gram[:, 3]).all()
    assert np.isfinite(np.delete(np.delete(gram, 3, 0), 3, 1)).all()


def test_no_rows_add_nothing():
    gram = np.full((5, 5), 2, np.float32)
    add_gram(gram, np.empty((0, 5), np.float32), POOL, lengths=[])
    assert (gram == 2).all()


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 190])
def test_mirroring_copies_the_upper_triangle(columns):
    gram = np.random.default_rng(0).standard_normal((columns, columns)).astype(np.float32)
    upper = np.triu(gram)
    mirror_gram(gram, POOL)
    assert (gram == upper + np.triu(upper, 1).T).all()


def cross_of(left, right, lengths=None, isa=None, pool=POOL):
    cross = np.zeros((left.shape[1], right.shape[1]), np.float32)
    add_cross(cross, left, right, pool, lengths=lengths, isa=isa)
    return cross


@pytest.mark.parametrize("isa", ISA_NAMES)
@pytest.mark.parametrize("shape", [(1, 1), (15, 130), (200, 64), (70, 33), (65, 200)])
def test_products_of_two_inputs(isa, shape):
    left, right = (rows(sum(LENGTHS), n, seed) for seed, n in enumerate(shape))
    truth = left.astype(np.float64).T @ right.astype(np.float64)
    sizes = [np.sqrt(np.square(x, dtype=np.float64).sum(axis=0)) for x in (left, right)]
    found = cross_of(left, right, LENGTHS, isa)
    assert np.abs((found - truth) / np.outer(*sizes)).max() < bound(gram_kernel(isa), 6)


@pytest.mark.parametrize("isa", ISA_NAMES)
def test_an_input_with_itself_has_the_gram_matrix_bit_for_bit(isa):
    x = rows(sum(LENGTHS), 150)
    upper = np.triu(gram_of(x, LENGTHS, isa))
    assert np.triu(cross_of(x, x, LENGTHS, isa)).tobytes() == upper.tobytes()


@pytest.mark.parametrize("isa", ISA_NAMES)
def test_neither_batches_nor_threads_change_a_bit_of_products(isa):
    left, right = rows(sum(LENGTHS), 70), rows(sum(LENGTHS), 140, 1)
    apart = np.zeros((70, 140), np.float32)
    for part in np.split(np.arange(len(left)), np.cumsum(LENGTHS)[:-1]):
        add_cross(apart, left[part], right[part], thread_pool(1), isa=isa)
    assert cross_of(left, right, LENGTHS, isa).tobytes() == apart.tobytes()
    assert cross_of(left, right, None, isa).tobytes() != apart.tobytes()


def moments_of(*batches, isa=None):
    inputs = batches[0].shape[1]
    moments = np.zeros(inputs), np.zeros(inputs), np.zeros(inputs, np.float32)
    for batch in batches:
        add_moments(*moments, batch, POOL, isa=isa)
    return moments


@pytest.mark.parametrize("isa", ISA_NAMES)
@pytest.mark.parametrize("columns", [1, 15, 16, 64, 130, 513, 1100])
def test_moments_are_sums_in_float64_whatever_the_batches(columns, isa):
    x = rows(900, columns)
    wide = x.astype(np.float64)
    truth = (wide**2).cumsum(axis=0)[-1], np.abs(wide).cumsum(axis=0)[-1], np.abs(x).max(axis=0)
    for moments in (moments_of(x, isa=isa), moments_of(x[:1], x[1:13], x[13:], isa=isa)):
        for got, exact in zip(moments, truth, strict=True):
            assert got.tobytes() == exact.tobytes()


def test_the_largest_magnitude_keeps_a_nan():
    x = rows(5, 3)
    x[1, 2] = np.nan
    assert np.isnan(moments_of(x, rows(5, 3))[2]).tolist() == [False, False, True]


X = np.zeros((4, 6), np.float32)
G = np.zeros((6, 6), np.float32)
READ_ONLY = G.copy()
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("gram", "x", "lengths", "message"),
    [
        (G, X.astype(np.float64), None, "x is float64 .* contiguous float32"),
        (G, X[0], None, "shape \\(6,\\)"),
        (G, X.T, None, "contiguous"),
        (G[:5], X, None, "gram is float32 of shape \\(5, 6\\); .* \\(6, 6\\)"),
        (READ_ONLY, X, None, "writable"),
        (G, X, [3], "Sequences of 3 rows together are named for x, which has 4"),
        (G, X, [5, -1], "add up to its rows"),
    ],
)
def test_bad_arguments_of_a_gram_are_named(gram, x, lengths, message):
    with pytest.raises(UsageError, match=message):
        add_gram(gram, x, POOL, lengths=lengths)


@pytest.mark.parametrize(
    ("cross", "right", "message"),
    [
        (G, X[:3], "have 4 and 3 rows"),
        (G[:5], X, "cross is float32 of shape \\(5, 6\\); .* \\(6, 6\\)"),
        (G, X.astype(np.float64), "x is float64"),
    ],
)
def test_bad_arguments_of_products_are_named(cross, right, message):
    with pytest.raises(UsageError, match=message):
        add_cross(cross, X, right, POOL)


def test_bad_arguments_of_moments_are_named():
    sums = np.zeros(6), np.zeros(6), np.zeros(6, np.float32)
    with pytest.raises(UsageError, match="absolute is float64 of shape \\(5,\\)"):
        add_moments(sums[0], sums[1][:5], sums[2], X, POOL)
    with pytest.raises(UsageError, match="largest is float64"):
        add_moments(sums[0], sums[1], np.zeros(6), X, POOL)


def test_an_instruction_set_that_this_cpu_lacks_is_refused():
    lacking = next(isa for isa in (*ISAS, "sse9") if isa not in ISA_NAMES)
    with pytest.raises(KernelError, match=lacking):
        gram_kernel(lacking)
