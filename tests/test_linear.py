"""The linear kernels: each output follows the chain of linear.h bit for bit, on every instruction
set, for any number of rows and any split of the work.

The chain is emulated in NumPy. An fma is a long double product and sum (64 bits: the product is
exact) rounded to float32; that second rounding differs from a true fma only where the long double
falls on a tie, one case in 2^39, which these seeds do not meet.
"""

import numpy as np
import pytest
from bits import same_bits
from quantized import (
    AFFINE,
    BLOCKS,
    FLOATS,
    HALVES,
    INTEGER_FORMATS,
    decoded,
    extreme_tensor,
    format_id,
    parts_of,
    random_floats,
    random_tensor,
)

from fewbit import _native
from fewbit.formats.activations import quantize_static, quantize_tokens
from fewbit.formats.registry import BLOCK_FORMATS, DEQUANTIZED
from fewbit.formats.spec import QuantTensor
from fewbit.runtime.pack import pack

ISAS = _native.available_isas()
EPSILON = 2.0**-24
SHARED = ("int8-token", "int8-static")
"""Roundings whose scale is that of the row, or given."""
INPUT_SCALE = 0.0371


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return (a.astype(np.longdouble) * b + c).astype(np.float32)


def quantize(x: np.ndarray, shared: str = "int8-g32") -> tuple[np.ndarray, np.ndarray]:
    """The int8 codes [rows, runs, 32] and scales [rows, runs] of activations."""
    runs = x.reshape(len(x), -1, 32)
    scales = np.abs(runs).max(axis=2) / np.float32(127)
    if shared == "int8-token":
        scales = np.repeat(scales.max(axis=1, keepdims=True), scales.shape[1], axis=1)
    if shared == "int8-static":
        scales = np.full_like(scales, INPUT_SCALE)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.where(scales[..., None] == 0, 0, np.rint(runs / scales[..., None]))
    return codes.clip(-127, 127).astype(np.int64), scales


def chain(
    tensor: QuantTensor, x: np.ndarray, bias: np.ndarray | None, shared: str = "int8-g32"
) -> np.ndarray:
    """What linear.h promises, run by run."""
    parts = parts_of(tensor)
    q, scale_a = quantize(x, shared)
    outputs, columns = tensor.shape
    codes = parts.codes.reshape(outputs, columns // 32, 2, 16)
    halves = q.reshape(len(x), columns // 32, 2, 16)
    acc = np.zeros((len(x), outputs), np.float32)
    steps = 2 if tensor.spec.name in HALVES else 1
    for step in range(steps * columns // 32):
        run, half = divmod(step, steps)
        used = slice(half, half + 1) if steps == 2 else slice(0, 2)
        inputs = halves[:, run, used].reshape(len(x), -1)
        dot = inputs @ codes[:, run, used].reshape(outputs, -1).T
        scale = parts.scales[None, :, 2 * run + half] * scale_a[:, run, None]
        acc = fma(dot.astype(np.float32), scale, acc)
        if parts.minima is not None:
            weighted = inputs.sum(axis=1).astype(np.float32) * scale_a[:, run]
            acc = fma(parts.minima[None, :, step], weighted[:, None], acc)
    return acc + (np.float32(0) if bias is None else bias)


def activations(rows: int, columns: int, seed: int) -> np.ndarray:
    """Runs of very different sizes, one of them all zero, some with a single large value."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns // 32, 32)) * 10.0 ** rng.uniform(
        -4, 2, (rows, columns // 32, 1)
    )
    x[0, 0] = 0
    x[:, -1, 3] *= 100
    return x.reshape(rows, columns).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_rounded_as_promised(isa):
    x = activations(37, 96, seed=1)
    x[1, :32] = 1e-44  # the scale is subnormal, and x / scale would pass 127
    x[2, :32] = np.linspace(-127, 127, 32) / 2  # ties
    x[3, 5] = -3.4e38
    codes, scales, weighted, sums = _native.quantize_activations(x, isa)
    q, expected_scales = quantize(x)
    assert same_bits(scales, expected_scales)
    assert np.array_equal(codes, q.reshape(37, 96))
    assert np.array_equal(sums, q.reshape(37, 6, 16).sum(axis=2))
    assert same_bits(weighted, q.sum(axis=2).astype(np.float32) * scales)


@pytest.mark.parametrize("isa", ISAS)
def test_codes_are_those_of_a_true_division(isa):
    # Inputs around the middles between two codes, where x * (1 / scale) rounds otherwise: that is
    # seen here, and must not be what the kernel does.
    rng = np.random.default_rng(20)
    scales = rng.uniform(0.001, 10, (4000, 1)).astype(np.float32)
    x = (rng.integers(-127, 127, (4000, 32)) + 0.5).astype(np.float32) * scales
    steps = rng.integers(-2, 3, x.shape)
    x = (x.view(np.int32) + steps.astype(np.int32)).view(np.float32)
    x[:, 0] = 127 * scales[:, 0]
    codes, got, _, _ = _native.quantize_activations(x, isa)
    q, expected = quantize(x)
    assert same_bits(got, expected)
    assert np.array_equal(codes, q[:, 0])
    assert not np.array_equal(np.rint(x * (1 / expected)), q[:, 0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("columns", [32, 96, 160])
def test_activations_share_a_scale_as_promised(columns, shared, isa):
    x = activations(37, columns, seed=1)
    x[1] = 1e-44  # the row's scale is subnormal, and x / scale would pass 127
    x[2] = np.linspace(-127, 127, columns) * INPUT_SCALE / 2  # ties
    x[3, 5] = -3.4e38
    x[4] = 0
    x[5, :2] = (127.5 * INPUT_SCALE, -126.49999 * INPUT_SCALE)
    codes, scales, weighted, sums = _native.quantize_activations(x, isa, shared, INPUT_SCALE)
    q, expected_scales = quantize(x, shared)
    assert same_bits(scales, expected_scales)
    assert np.array_equal(codes, q.reshape(x.shape))
    assert np.array_equal(sums, q.reshape(37, -1, 16).sum(axis=2))
    assert same_bits(weighted, q.sum(axis=2).astype(np.float32) * scales)
    truth = quantize_tokens(x)[0] if shared == "int8-token" else quantize_static(x, INPUT_SCALE)
    assert np.array_equal(codes, truth)


@pytest.mark.parametrize("isa", ISAS)
def test_codes_with_a_given_scale_are_those_of_a_true_division(isa):
    """As above: around the middles between codes, beyond the largest one too."""
    rng = np.random.default_rng(21)
    x = (rng.integers(-140, 140, (4000, 32)) + 0.5).astype(np.float32) * np.float32(INPUT_SCALE)
    x = (x.view(np.int32) + rng.integers(-2, 3, x.shape, dtype=np.int32)).view(np.float32)
    codes, _, _, _ = _native.quantize_activations(x, isa, "int8-static", INPUT_SCALE)
    assert np.array_equal(codes, quantize(x, "int8-static")[0][:, 0])
    product = np.rint(x * (1 / np.float32(INPUT_SCALE))).clip(-127, 127)
    assert not np.array_equal(codes, product)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_shared_scale_hides_no_value_that_is_not_finite(isa, value):
    x = np.ones((3, 96), np.float32)
    x[1, 37] = value
    scales = {s: _native.quantize_activations(x, isa, s, INPUT_SCALE)[1] for s in SHARED}
    assert not np.isfinite(scales["int8-token"][1]).any()
    assert np.isfinite(scales["int8-static"][1]).tolist() == [True, False, True]
    for found in scales.values():
        assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_never_hidden(isa, value):
    x = np.ones((3, 64), np.float32)
    x[1, 7] = value
    _, scales, _, _ = _native.quantize_activations(x, isa)
    assert not np.isfinite(scales[1, 0])
    assert np.isfinite(np.delete(scales.ravel(), 2)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_every_output_follows_the_chain(form, isa):
    tensor = random_tensor(form, 37, 512, np.random.default_rng(2))
    x = activations(21, 512, seed=3)
    bias = np.random.default_rng(4).standard_normal(37).astype(np.float32)
    packed = pack(tensor)
    assert same_bits(_native.multiply(packed, x, bias, isa), chain(tensor, x, bias))
    assert same_bits(_native.multiply(packed, x[:1], None, isa), chain(tensor, x[:1], None))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize(
    "form",
    ["q4_0", "q2_k", "q4_k", "q6_k", "mxfp4", AFFINE[1], AFFINE[15], AFFINE[16]],
    ids=format_id,
)
def test_every_output_follows_the_chain_with_a_shared_scale(form, shared, isa):
    tensor = random_tensor(form, 37, 512, np.random.default_rng(2))
    x = activations(21, 512, seed=3)
    got = _native.multiply(pack(tensor), x, None, isa, activations=shared, input_scale=INPUT_SCALE)
    assert same_bits(got, chain(tensor, x, None, shared))
    assert not same_bits(got, chain(tensor, x, None))


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_a_row_has_the_same_bits_in_any_company(form):
    tensor = pack(random_tensor(form, 70, 768, np.random.default_rng(5)))
    x = activations(40, 768, seed=6)
    whole = _native.multiply(tensor, x, None, ISAS[0])
    for isa in ISAS:
        assert same_bits(_native.multiply(tensor, x, None, isa), whole)
    for isa in ISAS[:-1]:  # the portable kernel takes its rows one by one
        for rows in range(1, 40):
            assert same_bits(_native.multiply(tensor, x[:rows], None, isa), whole[:rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "form", ["q4_0", "q2_k", "q4_k", "q6_k", "iq4_xs", "mxfp4", AFFINE[1], AFFINE[4]], ids=format_id
)
def test_any_split_of_the_work_gives_the_same_bits(form, isa):
    tensor = pack(random_tensor(form, 130, 512, np.random.default_rng(7)))
    x = activations(70, 512, seed=8)
    bias = np.arange(130, dtype=np.float32)
    whole = _native.multiply(tensor, x, bias, isa)
    for tiles, rows in ((1, 70), (2, 33), (3, 17), (9, 16), (5, 7), (4, 25), (9, 64)):
        parts = _native.multiply(tensor, x, bias, isa, tiles_at_once=tiles, rows_at_once=rows)
        assert same_bits(parts, whole)


@pytest.mark.parametrize("columns", [32, 64, 96, 544, 1056])
def test_any_number_of_runs(columns):
    for form in ("q4_0", "q5_1", "q8_0", "mxfp4", AFFINE[1]):
        tensor = random_tensor(form, 33, columns, np.random.default_rng(columns))
        x = activations(20, columns, seed=9)
        expected = chain(tensor, x, None)
        for isa in ISAS:
            assert same_bits(_native.multiply(pack(tensor), x, None, isa), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_nothing_saturates(form, high, isa):
    tensor = extreme_tensor(form, 16, 512, high=high)
    x = np.ones((18, 512), np.float32)
    x[1::2] = -1  # every code is 127 or -127
    assert same_bits(_native.multiply(pack(tensor), x, None, isa), chain(tensor, x, None))


def test_a_saturating_dot_would_be_seen():
    # Sixteen-bit sums of pairs of products, as maddubs makes them, cannot hold 2 x 255 x 127: the
    # extreme tensors above tell such a kernel from an exact one.
    u = np.full(64, 255, np.int64)
    exact = (u * 127).sum()
    saturated = np.clip((u * 127).reshape(-1, 2).sum(axis=1), -(2**15), 2**15 - 1).sum()
    assert saturated != exact
    tensor = extreme_tensor("q8_0", 16, 512, high=True)
    assert np.all(parts_of(tensor).codes + 128 == 255)


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_the_result_is_near_the_exact_product(form):
    # Each of the chain's steps rounds once, at most EPSILON of the largest partial sum, which the
    # sum of magnitudes bounds; products of scales and the sum times scale add two roundings a term.
    tensor = random_tensor(form, 32, 512, np.random.default_rng(10))
    x = activations(5, 512, seed=11)
    q, scale_a = quantize(x)
    rounded = (q * scale_a[..., None].astype(np.float64)).reshape(5, 512)
    parts = parts_of(tensor)
    weights = decoded(tensor).astype(np.float64)
    exact = rounded @ weights.T
    magnitude = (
        np.abs(rounded)
        @ np.abs(parts.codes * np.repeat(parts.scales, 16, axis=1).astype(np.float64)).T
    )
    if parts.minima is not None:
        width = 512 // parts.minima.shape[1]
        magnitude += np.abs(rounded) @ np.abs(np.repeat(parts.minima, width, axis=1)).T
    steps = 512 // 32 * (4 if tensor.spec.name in HALVES else 2) + 4
    got = _native.multiply(pack(tensor), x, None, ISAS[0])
    assert np.all(np.abs(got - exact) <= steps * EPSILON * magnitude + 2.0**-149)


@pytest.mark.parametrize("name", ["q2_k", "q6_k"])
def test_exchanged_scales_of_the_halves_of_a_run_would_be_seen(name):
    tensor = random_tensor(name, 16, 256, np.random.default_rng(21))
    x = activations(4, 256, seed=22)
    planted = tensor.codes.copy()
    scales = planted.view(BLOCKS[name])["scales"]
    scales[...] = scales.reshape(16, 1, 8, 2)[..., ::-1].reshape(16, 1, 16)
    got = _native.multiply(pack(QuantTensor(tensor.spec, tensor.shape, planted)), x, None, ISAS[0])
    assert not same_bits(got, chain(tensor, x, None))


def test_exchanged_nibbles_would_be_seen():
    tensor = random_tensor("q4_0", 16, 64, np.random.default_rng(12))
    x = activations(4, 64, seed=13)
    codes = tensor.codes.copy()
    codes[:, 2:18] = (codes[:, 2:18] >> 4) | (codes[:, 2:18] << 4)
    planted = QuantTensor(tensor.spec, tensor.shape, codes)
    got = _native.multiply(pack(planted), x, None, ISAS[0])
    assert not same_bits(got, chain(tensor, x, None))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FLOATS)
def test_float_weights_follow_their_chain(name, isa):
    tensor, values = random_floats(name, 37, 75, np.random.default_rng(14))
    x = np.random.default_rng(15).standard_normal((9, 75)).astype(np.float32)
    bias = np.linspace(-1, 1, 37, dtype=np.float32)
    acc = np.zeros((9, 37), np.float32)
    for column in range(75):
        acc = fma(values[None, :, column], x[:, column, None], acc)
    packed = pack(tensor)
    assert same_bits(_native.multiply(packed, x, bias, isa), acc + bias)
    for rows in range(1, 9):
        assert same_bits(_native.multiply(packed, x[:rows], bias, isa), (acc + bias)[:rows])
    split = _native.multiply(packed, x, bias, isa, tiles_at_once=1, rows_at_once=4)
    assert same_bits(split, acc + bias)


@pytest.mark.parametrize("name", FLOATS)
def test_float_weights_on_many_tiles(name):
    tensor, values = random_floats(name, 150, 64, np.random.default_rng(16))
    x = np.random.default_rng(17).standard_normal((11, 64)).astype(np.float32)
    expected = x.astype(np.float64) @ values.T.astype(np.float64)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(values.T).astype(np.float64)
    results = [_native.multiply(pack(tensor), x, None, isa) for isa in ISAS]
    assert np.all(np.abs(results[0] - expected) <= 64 * EPSILON * magnitude)
    for other in results[1:]:
        assert same_bits(other, results[0])


def test_every_block_format_that_can_be_decoded_is_covered():
    known = {name for name, form in BLOCK_FORMATS.items() if form.decode is not None}
    assert set(BLOCKS) == known - set(FLOATS) - set(DEQUANTIZED)


@pytest.mark.parametrize(
    ("x", "bias", "words"),
    [
        (np.zeros((1, 32), np.float32), None, "another width"),
        (np.zeros((1, 64), np.float32), np.zeros(3, np.float32), "one bias"),
    ],
)
def test_the_native_call_checks_shapes(x, bias, words):
    packed = pack(random_tensor("q4_0", 16, 64, np.random.default_rng(18)))
    with pytest.raises(ValueError, match=words):
        _native.multiply(packed, x, bias, "portable")
