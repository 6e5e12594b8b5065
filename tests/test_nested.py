"""Codes of 8 bits in halves: the plain product from both, and the draft's from the upper one."""

from __future__ import annotations

import numpy as np
import pytest
from bits import same_bits
from quantized import extreme_tensor, format_id, parts_of, random_tensor

from fewbit import _native
from fewbit.formats.activations import quantize_activations
from fewbit.formats.nested import has_halves, upper_half
from fewbit.formats.registry import decode, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.chooser import Demand, choose, upper_record
from fewbit.runtime.pack import Layout, layout_of, pack, packed_form, size_of
from fewbit.runtime.pack import upper_half as packed_upper_half

ISAS = _native.available_isas()
FORMS = ("q8_0", *(parse_format(f) for f in ("int8-g32", "int8-g128", "int8-row", "int8-tensor")))
ROWS, COLUMNS = 53, 768
"""No whole tile, and more than the 512 inputs that are unpacked at once for many rows."""


def inputs(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, COLUMNS)).astype(np.float32)


def tensors(form):
    rng = np.random.default_rng(1)
    yield random_tensor(form, ROWS, COLUMNS, rng)
    yield extreme_tensor(form, ROWS, COLUMNS, high=True)
    yield extreme_tensor(form, ROWS, COLUMNS, high=False)


def rows_of(packed) -> np.ndarray:
    return np.stack([packed.decode_row(row) for row in range(packed.rows)])


# --- the target: both halves ----------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=format_id)
def test_both_halves_are_the_plain_matrix(form):
    for tensor in tensors(form):
        plain, nested = pack(tensor), pack(tensor, layout=Layout.NESTED)
        assert nested.nbytes == plain.nbytes
        assert nested.nbytes == size_of(packed_form(tensor, Layout.NESTED), tensor.shape)
        assert same_bits(rows_of(nested), rows_of(plain))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 17, 40])
def test_both_halves_give_the_plain_product(isa, rows):
    x = inputs(rows)
    for tensor in tensors("q8_0"):
        plain, nested = pack(tensor), pack(tensor, layout=Layout.NESTED)
        for rounding in ("int8-g32", "int8-token"):
            expected = _native.multiply(plain, x, None, isa, activations=rounding)
            assert same_bits(_native.multiply(nested, x, None, isa, activations=rounding), expected)
        weight_only = _native.multiply_weight_only(plain, x, None, isa)
        assert same_bits(_native.multiply_weight_only(nested, x, None, isa), weight_only)


def test_threads_pack_the_same():
    tensor = random_tensor("q8_0", 100, COLUMNS, np.random.default_rng(2))
    one, three = (pack(tensor, threads, layout=Layout.NESTED) for threads in (1, 3))
    assert one.bytes(0, one.nbytes) == three.bytes(0, three.nbytes)


# --- the draft: the upper half --------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS, ids=format_id)
def test_the_upper_half_is_the_middle_of_what_a_code_may_be(form):
    for tensor in tensors(form):
        parts, got = parts_of(tensor), decode(upper_half(tensor))
        scales = np.repeat(parts.scales, 16, axis=1)
        # 19 bits of a product of both: exact, so the distance to the whole code is at most 7.5.
        assert np.array_equal(got, scales * (parts.codes // 16 * 16 + 7.5))
        assert (np.abs(got - decode(tensor)) <= 7.5 * np.abs(scales)).all()


@pytest.mark.parametrize("form", FORMS, ids=format_id)
def test_the_packed_upper_half_has_the_same_values_and_no_memory_of_its_own(form):
    for tensor in tensors(form):
        nested = pack(tensor, layout=Layout.NESTED)
        upper = packed_upper_half(nested)
        assert same_bits(rows_of(upper), decode(upper_half(tensor)))
        assert upper.nbytes < 0.55 * nested.nbytes
        assert upper.bytes(0, upper.nbytes) == nested.bytes(0, upper.nbytes)


def upper_truth(tensor: QuantTensor, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The chain of the kernel in float64, and a bound of what float32 may differ from it.

    Each run adds a product and rounds twice, by 2^-24 of the largest partial sum each.
    """
    q, scales = quantize_activations(x)
    parts, runs = parts_of(tensor), x.shape[1] // 32
    upper = (parts.codes // 16 + 8).reshape(len(parts.codes), runs, 32)
    q = q.reshape(len(x), runs, 32).astype(np.int64)
    dots = np.einsum("ogk,rgk->rog", upper, q) + np.floor(-241 * q.sum(-1) / 32)[:, None]
    terms = dots * (16.0 * parts.scales[:, ::2]) * scales[:, None]
    return terms.sum(-1), 3 * runs * 2.0**-24 * np.abs(terms).sum(-1) + 2.0**-140


@pytest.mark.parametrize("isa", ISAS)
def test_the_upper_half_multiplies_as_numpy_does(isa):
    for rows in (1, 3, 8, 20, 40):
        x = inputs(rows, seed=rows)
        for tensor in tensors("q8_0"):
            upper = packed_upper_half(pack(tensor, layout=Layout.NESTED))
            got = _native.multiply(upper, x, None, isa)
            truth, bound = upper_truth(tensor, x)
            assert (np.abs(got - truth) <= bound).all()
            assert same_bits(got, _native.multiply(upper, x, None, "portable"))


def test_a_row_of_the_upper_half_does_not_depend_on_others():
    tensor, x = random_tensor("q8_0", ROWS, COLUMNS, np.random.default_rng(3)), inputs(40)
    upper = packed_upper_half(pack(tensor, layout=Layout.NESTED))
    whole = _native.multiply(upper, x, None, ISAS[0])
    for row in range(len(x)):
        assert same_bits(_native.multiply(upper, x[row : row + 1], None, ISAS[0])[0], whole[row])


def test_some_rows_alone():
    tensor = random_tensor("q8_0", ROWS, COLUMNS, np.random.default_rng(4))
    nested = pack(tensor, layout=Layout.NESTED)
    assert same_bits(
        rows_of(packed_upper_half(nested, 20)), rows_of(packed_upper_half(nested))[:20]
    )
    with pytest.raises(ValueError, match="more rows"):
        packed_upper_half(nested, ROWS + 1)


# --- planted: what must be seen -------------------------------------------------------------------


def test_a_wrong_centre_is_seen():
    """Rounding down, without the half step, is off by 7.5 scales for each unit of the input."""
    tensor, x = extreme_tensor("q8_0", ROWS, COLUMNS, high=True), np.abs(inputs(4))
    got = _native.multiply(packed_upper_half(pack(tensor, layout=Layout.NESTED)), x, None, ISAS[0])
    truth, bound = upper_truth(tensor, x)
    q, scales = quantize_activations(x)
    without = truth - (7.5 * q.reshape(4, -1, 32).sum(-1) * scales).sum(-1)[:, None]
    assert (np.abs(got - truth) <= bound).all()
    assert not (np.abs(got - without) <= bound).any()


def test_exchanged_halves_are_seen():
    tensor = random_tensor("q8_0", ROWS, COLUMNS, np.random.default_rng(5))
    fields = tensor.codes.reshape(ROWS, -1, 34).copy()
    fields[..., 2:] = (fields[..., 2:] >> 4) | (fields[..., 2:] << 4)
    exchanged = QuantTensor(tensor.spec, tensor.shape, fields.reshape(ROWS, -1))
    halves = [packed_upper_half(pack(t, layout=Layout.NESTED)) for t in (tensor, exchanged)]
    assert not same_bits(*(_native.multiply(half, inputs(1), None, ISAS[0]) for half in halves))


# --- which matrices, and which kernels ------------------------------------------------------------


@pytest.mark.parametrize("name", ["q4_0", "q6_k", "int8-g32-asym", "int4-g32", "int7-g32", "f16"])
def test_other_formats_have_no_halves(name):
    form = parse_format(name)
    assert not has_halves(form)
    tensor = QuantTensor(form, (16, 256), np.zeros((16, 0), np.uint8))
    assert packed_form(tensor, Layout.NESTED) == packed_form(tensor)


def test_the_native_packer_refuses_other_formats():
    with pytest.raises(ValueError, match="symmetric codes of 8 bits"):
        _native.PackedMatrix("q4_0", 32, np.zeros((16, 18), np.uint8), form="nested")
    with pytest.raises(ValueError, match="not packed as two halves"):
        pack(random_tensor("q8_0", 16, 32, np.random.default_rng(0))).upper_half(16)


def record(isa: str, activations: str | None = None) -> KernelRecord:
    tensor = random_tensor("q8_0", 16, 64, np.random.default_rng(0))
    return choose("slot", tensor, Demand(isa=isa, activations=activations, layout=Layout.NESTED))


@pytest.mark.parametrize("isa", ISAS)
def test_the_kernels_are_named(isa):
    target = record(isa)
    assert target.kernel.startswith("w8.nest.g32/a8.g32/")
    assert layout_of(target.kernel) is Layout.NESTED
    ends = {"amx": "avx512vnni"}
    assert upper_record(target, isa).kernel == f"w4.high.g32/a8.g32/{ends.get(isa, isa)}"


def test_a_draft_rounds_inputs_as_its_target_does_but_for_bf16():
    isa = ISAS[0]
    assert upper_record(record(isa, "int8-token"), isa).activations == "int8-token"
    assert upper_record(record(isa, "bf16"), isa).activations == "int8-g32"
