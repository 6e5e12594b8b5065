"""Act-order: matrices whose groups follow an order of the columns, on real low-bit kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import test_linear
import test_weight_only
from bits import same_bits
from kernel_cases import INPUT_SCALE, random_matrix

from fewbit import _native
from fewbit._native import available_isas
from fewbit.errors import FaultError, KernelError, UsageError
from fewbit.formats.pack import pack, take_columns, unpack
from fewbit.formats.recode import holds, keeps_codes, recode
from fewbit.formats.registry import decode, encode, encoded_bytes, parse_format
from fewbit.formats.spec import join_rows
from fewbit.program import Embed, Linear, Program
from fewbit.runtime.chooser import ANY, choose
from fewbit.runtime.executor import Binding
from fewbit.runtime.native import NativeExecutor, thread_pool
from fewbit.runtime.native_linear import NativeLinear
from fewbit.runtime.pack import pack as packed_matrix
from fewbit.runtime.reference import linear
from fewbit.runtime.segment import Segment


def order_of(columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(columns).astype(np.int32)


def matrix(form: str, rows: int, columns: int, seed: int = 0):
    tensor = random_matrix(parse_format(form), rows, columns, np.random.default_rng(seed))
    return tensor.in_order(order_of(columns, seed + 1))


# --- the format -----------------------------------------------------------------------------------


def test_a_tensor_decodes_to_the_columns_in_their_places():
    tensor = matrix("int3-g32-asym", 20, 96)
    assert parse_format(tensor.spec.name) == tensor.spec and "order" in tensor.spec.name
    assert tensor.nbytes == encoded_bytes(tensor.spec, tensor.shape)
    bits = tensor.spec.bits_per_weight(tensor.shape)
    assert bits == pytest.approx(8 * tensor.nbytes / (20 * 96))
    assert np.array_equal(decode(tensor)[:, tensor.order], decode(tensor.laid_out))
    halves = [tensor.take_rows(slice(0, 7)), tensor.take_rows(slice(7, 20))]
    assert np.array_equal(decode(join_rows(halves)), decode(tensor))


def test_nothing_is_encoded_in_an_order():
    with pytest.raises(UsageError, match="take int4-g32"):
        encode(np.ones((4, 64), np.float32), parse_format("int4-g32-order"))
    with pytest.raises(UsageError, match="which only groups have"):
        parse_format("int4-row-order")


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_columns_are_taken_in_an_order(bits):
    codes = np.random.default_rng(0).integers(0, 1 << bits, (5, 64)).astype(np.uint8)
    order = order_of(64, 1)
    assert np.array_equal(
        unpack(take_columns(pack(codes, bits), bits, order), bits, 64), codes[:, order]
    )


def test_formats_with_an_order_hold_each_other_and_no_others():
    long, short = parse_format("int4-g64-order"), parse_format("int4-g32-asym-order")
    assert holds(short, long, 128) and keeps_codes(short, long, 128)
    plain = parse_format("int4-g32")
    assert not holds(plain, long, 128) and not holds(long, plain, 128)
    assert not keeps_codes(plain, long, 128)
    tensor = matrix("int4-g64", 8, 128)
    assert np.array_equal(decode(recode(tensor, short)), decode(tensor))


# --- kernels --------------------------------------------------------------------------------------

ROUNDINGS = ["int8-g32", "int8-token", "int8-static", "bf16"]


def run(tensor, x, rounding, isa=None, *, order=None, threads=2):
    """One linear layer on the executor."""
    program = Program(
        (Linear(layer=0, site="l", out="y", x="x", weight="w"),),
        {"x": tensor.shape[1], "y": tensor.shape[0]},
        logits="",
        layers=1,
        vocabulary=1,
        context=1 << 20,
    )
    kernel = choose(
        "w", tensor, replace(ANY, isa=isa, activations=rounding, input_scale=INPUT_SCALE)
    )
    given = tensor if order is None else replace(tensor, order=order)
    binding = Binding(program, {"w": given}, {"w": kernel})
    return Segment(binding, slice(None), threads=threads, isa=isa).run([len(x)], {"x": x}, ["y"])[
        "y"
    ]


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    "form", ["int4-g32", "int4-g64-asym", "int3-g32", "int8-g32", "int2-g32-asym"]
)
def test_a_layer_is_its_kernel_on_gathered_inputs(form, rounding, isa):
    """Bit for bit: what the kernel gives is held against a slow chain in test_linear.py."""
    tensor = matrix(form, 37, 576)  # gathered in two pieces
    x = test_linear.activations(21, 576, 3)
    gathered = np.ascontiguousarray(x[:, tensor.order])
    packed = packed_matrix(tensor)
    if rounding == "bf16":
        expected = _native.multiply_weight_only(packed, gathered, None, isa)
    else:
        expected = _native.multiply(
            packed, gathered, None, isa, activations=rounding, input_scale=INPUT_SCALE
        )
    assert same_bits(run(tensor, x, rounding, isa), expected)


@pytest.mark.parametrize("rounding", ["int8-g32", "bf16"])
def test_a_layer_follows_the_slow_chain(rounding):
    tensor = matrix("int4-g32-asym", 24, 128)
    x = test_linear.activations(6, 128, 4)
    slow, gathered = tensor.laid_out, x[:, tensor.order]
    if rounding == "bf16":
        expected = test_weight_only.expected(slow, gathered)
    else:
        expected = test_linear.chain(slow, gathered, None)
    assert same_bits(run(tensor, x, rounding), expected)


def test_another_order_would_be_seen():
    tensor, x = matrix("int4-g32", 16, 64), test_linear.activations(4, 64, 5)
    swapped = tensor.order.copy()
    swapped[[3, 40]] = swapped[[40, 3]]
    assert not same_bits(run(tensor, x, "bf16"), run(tensor, x, "bf16", order=swapped))


def test_a_row_has_the_same_bits_in_any_company():
    tensor, x = matrix("int4-g32", 50, 320), test_linear.activations(19, 320, 6)
    for rounding in ROUNDINGS:
        whole = run(tensor, x, rounding)
        alone = np.concatenate([run(tensor, row[None], rounding, threads=1) for row in x])
        assert same_bits(whole, alone)


def test_the_reference_gathers_before_it_rounds():
    """Which 32 inputs share a scale depends on the order, so decoded weights give another sum."""
    tensor, x = matrix("int4-g32", 16, 64), test_linear.activations(4, 64, 7)
    exact = linear(x[:, tensor.order], decode(tensor.laid_out), None, "int8-g32")
    late = linear(x, decode(tensor), None, "int8-g32")
    found = run(tensor, x, "int8-g32")
    # Of 64 products 2^-24 of each, in float32, on both sides.
    near = 128 * 2.0**-24 * (np.abs(x) @ np.abs(decode(tensor)).T)
    assert (np.abs(found - exact) <= near).all()
    assert not (np.abs(found - late) <= near).all()


@pytest.mark.parametrize("bad", [[0, 1], [*range(63), 64], [*range(63), -1]])
def test_an_order_beyond_the_columns_is_refused(bad):
    tensor, x = matrix("int4-g32", 16, 64), np.ones((1, 64), np.float32)
    with pytest.raises((FaultError, ValueError), match="order"):
        run(tensor, x, "bf16", order=np.array(bad, np.int32))


def test_layers_of_one_order_round_their_input_once():
    """Two layers of one order, one of another: two roundings, of the same bits as alone."""
    first, third = matrix("int4-g32", 32, 96, 1), matrix("int4-g32", 32, 96, 5)
    tensors = {
        "a": first,
        "b": replace(matrix("int4-g32", 48, 96, 2), order=first.order),
        "c": third,
    }
    ops = tuple(Linear(layer=0, site=n, out=f"y{n}", x="x", weight=n) for n in tensors)
    widths = {"x": 96} | {f"y{n}": t.shape[0] for n, t in tensors.items()}
    program = Program(ops, widths, logits="", layers=1, vocabulary=1, context=1 << 20)
    kernels = {n: choose(n, t, replace(ANY, activations="bf16")) for n, t in tensors.items()}
    x = test_linear.activations(5, 96, 8)
    segment = Segment(Binding(program, tensors, kernels), slice(None), threads=1)
    found = segment.run([5], {"x": x}, [f"y{n}" for n in tensors])
    for name, tensor in tensors.items():
        assert same_bits(found[f"y{name}"], run(tensor, x, "bf16"))


def test_a_layer_alone_gathers():
    tensor = matrix("int8-g32", 20, 64)
    layer = NativeLinear(tensor, "bf16", thread_pool(1))
    assert layer.kernel.gathered
    x = test_linear.activations(3, 64, 9)
    assert same_bits(layer(x), run(tensor, x, "bf16"))


def test_a_table_in_an_order_is_refused():
    tensor = matrix("int4-g32", 32, 64)
    ops = (Embed(layer=-1, site="embed", out="y", weight="w"),)
    program = Program(ops, {"y": 64}, logits="y", layers=1, vocabulary=32, context=64)
    binding = Binding(program, {"w": tensor}, {"w": choose("w", tensor)})
    with pytest.raises(KernelError, match="export it to hf"):
        NativeExecutor(binding, pages=1, threads=1)
