"""The lane functions: within their bounds of the true value, and the same bits everywhere."""

import numpy as np
import pytest
from bits import equal_but_for_nans

from fewbit import _native

ISAS = _native.available_isas()
FUNCTIONS = {
    # name: truth in float64, and the bound in units in the last place that math.h promises
    "exp": (np.exp, 2.0),
    "tanh": (np.tanh, 3.0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 4.0),
    "silu": (lambda x: x / (1 + np.exp(-x)), 5.0),
    "sqrt": (np.sqrt, 0.5),
    "round": (np.rint, 0.0),
}
SPECIAL = np.fromstring(
    "0 -0.0 1 -1 inf -inf nan 1e-45 -1e-45 1.1754944e-38 88.72283 88.7229 -87.33654 -103.97 -103.98"
    " -104.5 3.4e38 -3.4e38 0.625 -0.625 0.5 1.5 2.5 -2.5",
    np.float32,
    sep=" ",
)


def inputs(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = [
        rng.uniform(-20, 20, count // 2),
        rng.uniform(-104, 90, count // 4),
        rng.standard_normal(count // 4) * 10.0 ** rng.uniform(-30, 3, count // 4),
    ]
    x = np.concatenate([*parts, SPECIAL]).astype(np.float32)
    return np.pad(x, (0, -len(x) % 16))


def ulp_error(got: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of the float32 nearest to the truth."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        nearest = truth.astype(np.float32)
        unit = np.spacing(np.abs(nearest)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - truth) / unit
    same = (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    return np.where(same, np.minimum(np.nan_to_num(error, nan=0.0, posinf=0.0), 0.5), error)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_stays_within_its_bound(name):
    truth, bound = FUNCTIONS[name]
    x = inputs(1_000_000, seed=1)
    if name == "sqrt":
        x = np.abs(x)
    if name == "round":
        x = x[np.abs(x) < 2**31][: len(x) // 2 // 16 * 16]
    if name == "silu":
        x = x[(x > -87) | np.isnan(x)]  # below, the sigmoid is subnormal and the bound absolute
        x = x[: len(x) // 16 * 16]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = truth(x.astype(np.float64))
    error = ulp_error(_native.simd_unary(ISAS[0], name, x), expected)
    assert error.max() <= bound, (x[error.argmax()], error.max())


def test_gelu_is_close_where_the_argument_is_rounded():
    # u carries a relative error of about 2 eps, which e^(2u) turns into 2u * 2 eps: allow
    # (6 + 4 |2u|) units.
    x = np.linspace(-12, 12, 800_000, dtype=np.float32)
    wide = x.astype(np.float64)
    twice_u = 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    expected = wide / (1 + np.exp(-twice_u))
    error = ulp_error(_native.simd_unary(ISAS[0], "gelu_tanh", x), expected)
    normal = np.abs(expected) > 1e-37
    assert np.all(error[normal] <= (6 + 4 * np.abs(twice_u))[normal])


@pytest.mark.parametrize("name", [*FUNCTIONS, "gelu_tanh", "half"])
def test_every_instruction_set_gives_the_equal_but_for_nans(name):
    x = inputs(300_000, seed=2)
    results = [_native.simd_unary(isa, name, x) for isa in ISAS]
    for other in results[1:]:
        assert equal_but_for_nans(results[0], other)


@pytest.mark.parametrize("isa", ISAS)
def test_rounding_is_right_up_to_the_largest_integers(isa):
    # From 2^22 on a float's last place is a half, from 2^23 on it is 1.
    edges = np.ldexp(1.0, np.arange(20, 32)).astype(np.float32)
    near = np.concatenate([np.nextafter(edges, np.float32(0)), edges[:-1], edges[:-1] + 0.5])
    spread = np.linspace(2**21, 2**24, 9999).astype(np.float32)
    x = np.concatenate([near, spread, -near, -spread, -edges[-1:]])
    x = np.pad(x, (0, -len(x) % 16))
    assert np.array_equal(_native.simd_unary(isa, "round", x), np.rint(x))


def test_overflow_and_underflow_of_exp():
    x = np.zeros(16, np.float32)
    x[:7] = [88.73, 1e30, np.inf, -103.98, -1e30, -np.inf, np.nan]
    for isa in ISAS:
        y = _native.simd_unary(isa, "exp", x)
        assert np.all(np.isinf(y[:3]))
        assert np.all(y[3:6] == 0.0)
        assert np.isnan(y[6])


def test_fma_rounds_once():
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal(64_000).astype(np.float32) for _ in range(3))
    c[::2] = -(a * b)[::2]  # the rounding error of the product is all that is left
    a[:160] = 1e-30
    b[:160] = 1e-15  # subnormal results
    exact = a.astype(np.longdouble) * b + c  # 64 bits hold the product; the sum is rounded to odd
    results = [_native.simd_fma(isa, a, b, c) for isa in ISAS]
    for other in results[1:]:
        assert equal_but_for_nans(results[0], other)
    assert np.array_equal(results[0][::2], exact[::2].astype(np.float32))
    # Elsewhere the longdouble sum is itself rounded, at 2^-63: half a unit and a little.
    unit = np.spacing(np.abs(results[0])).astype(np.longdouble)
    assert np.all(np.abs(results[0] - exact) <= unit * (0.5 + 2.0**-20))


def test_a_product_rounded_before_the_sum_would_be_seen():
    a = np.full(16, 1 + 2.0**-12, np.float32)
    c = -(a * a)
    for isa in ISAS:
        assert np.all(_native.simd_fma(isa, a, a, c) == np.float32(2.0**-24))


def test_every_half_is_read_as_numpy_reads_it():
    halves = np.arange(65536, dtype=np.uint16)
    expected = halves.view(np.float16).astype(np.float32)
    for isa in ISAS:
        got = _native.simd_from_half(isa, halves)
        assert equal_but_for_nans(got, expected)
        assert np.array_equal(np.isnan(got), np.isnan(expected))


def test_halves_are_written_as_numpy_writes_them():
    rng = np.random.default_rng(4)
    x = rng.integers(0, 2**32, 1_000_000, dtype=np.uint32).view(np.float32)
    near = np.arange(31743, dtype=np.uint16).view(np.float16).astype(np.float32)
    near = np.concatenate([near, -near])  # every finite half but the largest
    middles = (near[:-1] + near[1:]) / 2  # ties
    x = np.concatenate([x, near, middles, np.nextafter(middles, np.float32(0))])
    x = x[: len(x) // 16 * 16]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    number = ~np.isnan(x)
    results = [_native.simd_to_half(isa, x) for isa in ISAS]
    for got in results:
        assert np.array_equal(got[number], expected[number])
        assert np.array_equal(got, results[0])


@pytest.mark.parametrize("isa", ISAS)
def test_dot4_is_exact_where_maddubs_would_saturate(isa):
    u = np.full(64, 255, np.uint8)
    acc = np.arange(16, dtype=np.int32)
    for value in (127, -127, -128):
        s = np.full(64, value, np.int8)
        got = _native.simd_dot4(isa, acc, u, s, narrow=False)
        assert np.array_equal(got, acc + 4 * 255 * value)


@pytest.mark.parametrize("isa", ISAS)
def test_dot4_equals_numpy(isa):
    rng = np.random.default_rng(5)
    for narrow in (False, True):
        for _ in range(200):
            u = rng.integers(0, 128 if narrow else 256, 64, dtype=np.uint8)
            s = rng.integers(-128, 128, 64, dtype=np.int8)
            acc = rng.integers(-1000, 1000, 16, dtype=np.int32)
            products = u.astype(np.int32) * s
            expected = acc + products.reshape(16, 4).sum(axis=1)
            assert np.array_equal(_native.simd_dot4(isa, acc, u, s, narrow=narrow), expected)


def test_reductions_follow_one_tree():
    rng = np.random.default_rng(6)
    x = (rng.standard_normal(16_000) * 10.0 ** rng.integers(-6, 6, 16_000)).astype(np.float32)
    tree = x.reshape(-1, 16)
    for half in (8, 4, 2, 1):
        tree = tree[:, :half] + tree[:, half:]
    for isa in ISAS:
        sums, maxima = _native.simd_reduce(isa, x)
        assert equal_but_for_nans(sums, tree[:, 0].copy())
        assert np.array_equal(maxima, x.reshape(-1, 16).max(axis=1))


def test_rounding_to_bfloat_goes_to_the_nearest_and_even_on_ties():
    x = inputs(100_000, seed=8)
    ties = (np.arange(1 << 12, dtype=np.uint32) << 17 | 0x8000).view(np.float32)
    x = np.concatenate([x, ties])
    word = x.view(np.uint32).astype(np.uint64)
    expected = ((word + 0x7FFF + (word >> 16 & 1)) >> 16).astype(np.uint16)
    for isa in ISAS:
        found = _native.simd_to_bfloat(isa, x)
        assert np.array_equal(found[~np.isnan(x)], expected[~np.isnan(x)])
        assert np.all((found[np.isnan(x)] & 0x7FFF) > 0x7F80)
