"""Integer weights with inputs rounded to bf16: each output follows the chain of linear.h bit for
bit, on every instruction set, for any number of rows and any split of the work.

The chain is emulated in NumPy with the fma of `test_linear`: exact but for one case in 2^39.
"""

import numpy as np
import pytest
from native_cases import GEMMA_LIKE, SMALL, bind_random, pages_for, run_alone, run_step, track
from quantized import (
    AFFINE,
    HALVES,
    INTEGER_FORMATS,
    Parts,
    decoded,
    extreme_tensor,
    format_id,
    parts_of,
    random_floats,
    random_tensor,
)
from test_linear import activations, fma, same_bits

from fewbit import _native
from fewbit.program import CacheType
from fewbit.records.kernels import Activations
from fewbit.runtime import reference
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.pack import pack

ISAS = _native.available_isas()
EPSILON = 2.0**-24


def tree_sum(x: np.ndarray) -> np.ndarray:
    """Sum the last axis, of 16, as simd.h's reduce_add does."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def chain(
    parts: Parts, x: np.ndarray, bias: np.ndarray | None, *, halves: bool, back: bool = False
) -> np.ndarray:
    """What linear.h promises; `back` plants a chain over descending inputs."""
    rows, columns = x.shape
    outputs = len(parts.codes)
    rounded = reference.round_to_bf16(x)
    weights = parts.codes.astype(np.float32)
    sums = tree_sum(rounded.reshape(rows, -1, 16))
    acc = np.zeros((rows, outputs), np.float32)
    width = 16 if halves else 32
    for start in range(0, columns, width):
        p = np.zeros_like(acc)
        inputs = range(start, start + width)
        for i in reversed(inputs) if back else inputs:
            p = fma(weights[None, :, i], rounded[:, i, None], p)
        acc = fma(p, parts.scales[None, :, start // 16], acc)
        if parts.minima is not None:
            first = sums[:, start // 16]
            total = first if halves else first + sums[:, start // 16 + 1]
            acc = fma(parts.minima[None, :, start // width], total[:, None], acc)
    return acc + (np.float32(0) if bias is None else bias)


def expected(tensor, x, bias=None, *, back=False):
    name = getattr(tensor.spec, "name", "")
    return chain(parts_of(tensor), x, bias, halves=name in HALVES, back=back)


def uneven(rows: int, columns: int, seed: int) -> np.ndarray:
    """Inputs of very different sizes side by side. A product of a code and a bf16 number has so few
    bits that sums of even sizes are exact in float32, and the order of a chain leaves no trace."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-6, 6, (rows, columns))
    return (rng.standard_normal((rows, columns)) * sizes).astype(np.float32)


# --- rounding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ISAS)
def test_inputs_are_rounded_to_the_nearest_bf16(isa):
    x = activations(37, 96, seed=1)
    x[1, :8] = [1e-44, -1e-44, 0.0, -0.0, 3.4e38, -3.4e38, np.inf, -np.inf]
    words = np.arange(0x3F808000 - 3, 0x3F808000 + 4, dtype=np.uint32)  # a tie, the even one below
    x[2, :7] = words.view(np.float32)
    x[3, :7] = (words + np.uint32(0x10000)).view(np.float32)  # and one with the even one above
    values, sums = _native.round_activations(x, isa)
    want = reference.round_to_bf16(x)
    assert same_bits(values, want)
    assert np.all(values.view(np.uint32) & np.uint32(0xFFFF) == 0)
    with np.errstate(invalid="ignore"):
        totals = tree_sum(want.reshape(37, 6, 16))
    assert np.array_equal(sums, totals, equal_nan=True)


def test_the_rounding_is_half_to_even():
    x = np.array([[1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-23, 3.4e38]], np.float32)
    want = np.array([[1, 1 + 2.0**-6, 1 + 2.0**-7, np.inf]], np.float32)
    assert np.array_equal(reference.round_to_bf16(x), want)


@pytest.mark.parametrize("isa", ISAS)
def test_a_nan_is_never_hidden(isa):
    x = np.ones((2, 32), np.float32)
    x[1, 7] = np.array(0x7FFFFFFF, np.uint32).view(np.float32)  # a carry would make it -0
    values, _ = _native.round_activations(x, isa)
    assert np.isnan(values[1, 7])
    assert np.isfinite(np.delete(values.ravel(), 39)).all()


# --- the chain ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_every_output_follows_the_chain(form):
    tensor = random_tensor(form, 37, 512, np.random.default_rng(2))
    x = np.concatenate([activations(14, 512, seed=3), uneven(7, 512, seed=4)])
    bias = np.random.default_rng(4).standard_normal(37).astype(np.float32)
    packed, want = pack(tensor), expected(tensor, x, bias)
    for isa in ISAS:
        assert same_bits(_native.multiply_weight_only(packed, x, bias, isa), want)
        assert same_bits(_native.multiply_weight_only(packed, x[:1], bias, isa), want[:1])


@pytest.mark.parametrize("form", ["q4_0", "q4_k", "q6_k"])
def test_a_changed_order_of_the_chain_would_be_seen(form):
    """Negative control: the same sum over descending inputs is as good, and not the same bits."""
    tensor = random_tensor(form, 16, 256, np.random.default_rng(2))
    x = uneven(4, 256, seed=3)
    got = _native.multiply_weight_only(pack(tensor), x, None, ISAS[0])
    assert same_bits(got, expected(tensor, x))
    assert not same_bits(got, expected(tensor, x, back=True))


def test_inputs_left_unrounded_would_be_seen():
    tensor = random_tensor("q8_0", 16, 64, np.random.default_rng(2))
    x = activations(4, 64, seed=3)
    rounded = reference.round_to_bf16(x)
    got = _native.multiply_weight_only(pack(tensor), x, None, ISAS[0])
    assert same_bits(got, _native.multiply_weight_only(pack(tensor), rounded, None, ISAS[0]))
    assert not np.array_equal(x, rounded)


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_a_row_has_the_same_bits_in_any_company(form):
    packed = pack(random_tensor(form, 70, 512, np.random.default_rng(5)))
    x = uneven(19, 512, seed=6)
    whole = _native.multiply_weight_only(packed, x, None, ISAS[0])
    for isa in ISAS:
        assert same_bits(_native.multiply_weight_only(packed, x, None, isa), whole)
    for isa in ISAS[:-1]:  # the portable kernel takes its rows one by one
        for rows in range(1, 17):
            assert same_bits(
                _native.multiply_weight_only(packed, x[:rows], None, isa), whole[:rows]
            )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("form", ["q4_1", "q6_k", AFFINE[1]], ids=format_id)
def test_any_split_of_the_work_gives_the_same_bits(form, isa):
    packed = pack(random_tensor(form, 130, 256, np.random.default_rng(7)))
    x = uneven(70, 256, seed=8)
    bias = np.arange(130, dtype=np.float32)
    whole = _native.multiply_weight_only(packed, x, bias, isa)
    for tiles, rows in ((1, 70), (2, 33), (3, 17), (9, 16), (5, 7)):
        parts = _native.multiply_weight_only(
            packed, x, bias, isa, tiles_at_once=tiles, rows_at_once=rows
        )
        assert same_bits(parts, whole)


@pytest.mark.parametrize("columns", [32, 96, 544])
def test_any_number_of_runs(columns):
    for form in ("q4_0", "q5_1", "q8_0", AFFINE[1]):
        tensor = random_tensor(form, 33, columns, np.random.default_rng(columns))
        x = activations(6, columns, seed=9)
        for isa in ISAS:
            got = _native.multiply_weight_only(pack(tensor), x, None, isa)
            assert same_bits(got, expected(tensor, x))


@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_codes_at_the_ends_of_their_range(form, high):
    tensor = extreme_tensor(form, 16, 256, high=high)
    x = np.ones((2, 256), np.float32)
    x[1] = -1
    for isa in ISAS:
        got = _native.multiply_weight_only(pack(tensor), x, None, isa)
        assert same_bits(got, expected(tensor, x))


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_the_result_is_near_the_exact_product(form):
    # Of 512 / width terms each is a chain of `width` roundings, then one more at the sum; a minimum
    # brings a sum of 32 (6 roundings) and one addition. Each is at most EPSILON of a partial sum of
    # magnitudes; products of two scales round once more.
    tensor = random_tensor(form, 32, 512, np.random.default_rng(10))
    x = activations(5, 512, seed=11)
    rounded = reference.round_to_bf16(x).astype(np.float64)
    parts = parts_of(tensor)
    exact = rounded @ decoded(tensor).astype(np.float64).T
    scaled = np.abs(parts.codes * np.repeat(parts.scales, 16, axis=1).astype(np.float64))
    magnitude = np.abs(rounded) @ scaled.T
    if parts.minima is not None:
        width = 512 // parts.minima.shape[1]
        magnitude += np.abs(rounded) @ np.abs(np.repeat(parts.minima, width, axis=1)).T
    steps = 32 + 2 * 512 // 16 + 8
    got = _native.multiply_weight_only(pack(tensor), x, None, ISAS[0])
    assert np.all(np.abs(got - exact) <= steps * EPSILON * magnitude + 2.0**-149)


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
        _native.multiply_weight_only(packed, x, bias, "portable")


def test_float_weights_are_refused():
    packed = pack(random_floats("bf16", 16, 32, np.random.default_rng(1))[0])
    with pytest.raises(ValueError, match="float weights"):
        _native.multiply_weight_only(packed, np.zeros((1, 32), np.float32), None, "portable")


# --- the executor -------------------------------------------------------------------------------

MIXED = ("int4-g32", "q4_0", "int8-g32", "f32", "int4-g32-asym")
LENGTH = 100
PAGES = (3, 1)


@pytest.fixture(scope="module", params=["small", "gemma-like"])
def binding(request):
    config = SMALL if request.param == "small" else GEMMA_LIKE
    return bind_random(config, MIXED, CacheType.F16, activations=Activations.BF16)


@pytest.fixture(scope="module")
def alone(binding):
    """Logits of every position: one piece, two threads, the best instruction set."""
    executor = NativeExecutor(binding, pages=4, threads=2)
    return run_alone(executor, track(LENGTH, PAGES, seed=1), LENGTH)


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_and_threads_change_no_bit(binding, alone, chunk, threads):
    assert pages_for(LENGTH) == len(PAGES)
    executor = NativeExecutor(binding, pages=4, threads=threads)
    assert same_bits(run_alone(executor, track(LENGTH, PAGES, seed=1), chunk), alone)


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_change_no_bit(binding, alone, isa):
    executor = NativeExecutor(binding, pages=4, threads=2, isa=isa)
    item = track(LENGTH, PAGES, seed=1)
    parts = [run_step(executor, [(item, count)])[0] for count in (64, 1, 5, 30)]
    assert same_bits(np.concatenate(parts), alone)


def test_a_layer_may_read_the_same_input_in_both_ways(binding):
    """Kernels of both kinds behind one norm: each gets its own rounding of the buffer."""
    kernels = dict(binding.kernels)
    slot = "layers.0.k.weight"
    kernels[slot] = reference.choose_reference(slot, binding.tensors[slot], Activations.INT8)
    mixed = type(binding)(binding.program, binding.tensors, kernels)
    taps = frozenset({(0, "attn_norm"), (0, "q"), (0, "k")})
    executors = [NativeExecutor(b, pages=4, threads=2, taps=taps) for b in (binding, mixed)]
    for executor in executors:
        run_alone(executor, track(20, PAGES, seed=1), 20)
    for site, equal in (("attn_norm", True), ("q", True), ("k", False)):
        one, other = (executor.tap(0, site) for executor in executors)
        assert same_bits(one, other) is equal


def test_rounding_that_does_not_fit_the_weights_is_a_fault():
    packed = pack(random_tensor("q4_0", 16, 32, np.random.default_rng(1)))
    program = _native.Program(layers=0, vocabulary=16, context=64, cache_type="f16")
    x, program.logits = program.buffer(32, False), program.buffer(16, False)
    program.embed(x, packed, 1.0)
    with pytest.raises(ValueError, match="no rounding of inputs 'fp8'"):
        program.linear(program.logits, x, packed, None, "fp8")
    program.linear(program.logits, x, packed, None, "f32")
    pool = _native.ThreadPool(1)
    with pytest.raises(ValueError, match="not rounded as its weights need"):
        _native.Executor(program, 1, pool, "portable")
