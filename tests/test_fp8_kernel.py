"""FP8 weights in the native kernels: the exact values of the codes, and the chain of linear.h."""

import numpy as np
import pytest
from native_cases import SMALL, bind_random, run_alone, track
from test_linear import fma, same_bits

from fewbit import _native
from fewbit.errors import NumericalError
from fewbit.formats import fp8
from fewbit.formats.registry import FP8, decode
from fewbit.formats.spec import Fp8Spec, QuantTensor
from fewbit.runtime.chooser import choose
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.pack import pack
from fewbit.runtime.reference import ReferenceExecutor

ISAS = _native.available_isas()
EVERY_CODE = np.array([code for code in range(256) if code & 0x7F != fp8.NAN], np.uint8)


def matrix(spec: Fp8Spec, rows: int, columns: int, seed: int) -> QuantTensor:
    rng = np.random.default_rng(seed)
    codes = rng.choice(EVERY_CODE, (rows, columns))
    shape = spec.scale_shape((rows, columns))
    return QuantTensor(
        spec, (rows, columns), codes, rng.uniform(0.001, 3, shape).astype(np.float32)
    )


def chain(tensor: QuantTensor, x: np.ndarray, bias: np.ndarray, *, early: bool = False):
    """What linear.h promises; `early` plants scales that are multiplied in weight by weight."""
    values, scales = fp8.VALUES[tensor.codes], tensor.scales
    acc = np.zeros((len(x), len(values)), np.float32)
    for column in range(values.shape[1]):
        weights = values[:, column] * scales[:, 0] if early else values[:, column]
        acc = fma(weights[None, :], x[:, column, None], acc)
    return (acc if early else acc * scales[:, 0]) + bias


@pytest.mark.parametrize("spec", FP8, ids=lambda spec: spec.name)
def test_every_code_is_decoded_exactly(spec):
    tensor = matrix(spec, 19, len(EVERY_CODE), seed=1)
    tensor.codes[:] = EVERY_CODE
    packed, want = pack(tensor), decode(tensor)
    for row in range(19):
        assert same_bits(packed.decode_row(row), want[row])


@pytest.mark.parametrize("isa", ISAS)
def test_every_code_is_multiplied_exactly(isa):
    """Column by column by inputs of 1 and 0: the sums are the values themselves."""
    tensor = matrix(FP8[0], 16, len(EVERY_CODE), seed=2)
    tensor.codes[:] = EVERY_CODE
    tensor.scales[:] = 1
    ones = np.eye(len(EVERY_CODE), dtype=np.float32)
    got = _native.multiply(pack(tensor), ones, None, isa)
    assert np.array_equal(got, np.repeat(fp8.VALUES[EVERY_CODE][:, None], 16, axis=1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("spec", FP8, ids=lambda spec: spec.name)
def test_every_output_follows_the_chain(spec, isa):
    tensor = matrix(spec, 150, 75, seed=3)
    x = np.random.default_rng(4).standard_normal((21, 75)).astype(np.float32)
    bias = np.linspace(-1, 1, 150, dtype=np.float32)
    packed, want = pack(tensor), chain(tensor, x, bias)
    for rows in range(1, 22):
        assert same_bits(_native.multiply(packed, x[:rows], bias, isa), want[:rows])
    for tiles, rows in ((1, 21), (3, 4), (5, 9)):
        parts = _native.multiply(packed, x, bias, isa, tiles_at_once=tiles, rows_at_once=rows)
        assert same_bits(parts, want)


def test_a_scale_taken_in_too_early_would_be_seen():
    tensor = matrix(FP8[0], 16, 75, seed=3)
    x = np.random.default_rng(4).standard_normal((3, 75)).astype(np.float32)
    got = _native.multiply(pack(tensor), x, None, ISAS[0])
    assert same_bits(got, chain(tensor, x, np.float32(0)))
    assert not same_bits(got, chain(tensor, x, np.float32(0), early=True))


def test_nan_codes_are_refused():
    tensor = matrix(FP8[0], 16, 32, seed=5)
    tensor.codes[3, 7] = 0xFF
    with pytest.raises(NumericalError, match="row 3, column 7 is NaN"):
        pack(tensor)


def test_scales_are_needed_one_or_one_a_row():
    codes = np.zeros((4, 32), np.uint8)
    with pytest.raises(ValueError, match="FP8 codes need scales"):
        _native.PackedMatrix("fp8_e4m3", 32, codes)
    with pytest.raises(ValueError, match="one, or one for each row"):
        _native.PackedMatrix("fp8_e4m3", 32, codes, row_scales=np.ones(3, np.float32))


def test_the_record_names_the_kernel_and_its_bytes():
    tensor = matrix(FP8[1], 37, 75, seed=6)
    record = choose("head.weight", tensor)
    assert record.kernel.startswith("f8e4m3/f32/")
    assert record.activations == "f32"
    assert record.bytes == pack(tensor).nbytes == 3 * 16 * (75 + 4)


def test_a_model_in_fp8_gives_the_references_logits():
    binding = bind_random(SMALL, ("fp8_e4m3-row", "fp8_e4m3-tensor"))
    got = run_alone(NativeExecutor(binding, pages=1, threads=2), track(40, (0,), seed=1), 40)
    want = run_alone(ReferenceExecutor(binding, 1), track(40, (0,), seed=1), 40)
    # A few hundred roundings of relative 2^-24 on the way to logits of size 5, and keys rounded to
    # f16 that a last place may move to the next one, 2^-11 away.
    assert np.abs(got - want).max() < 300 * 2.0**-24 * 5 + 2.0**-11
