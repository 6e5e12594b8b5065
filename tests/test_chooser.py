"""The chooser: what is taken, what is refused, and that every reason is told."""

import numpy as np
import pytest
from quantized import AFFINE, float32_scales, random_floats, random_tensor

from fewbit.errors import KernelError
from fewbit.formats.spec import Granularity, QuantSpec, QuantTensor
from fewbit.runtime import chooser
from fewbit.runtime.chooser import Demand, Family, choose, choose_isa, demand
from fewbit.runtime.pack import Weights, pack

RNG = np.random.default_rng(0)
INTEGER_KERNELS = 3 * 5 + 3
"""With activations in int8 in three ways, and in bf16."""
IN_INT8 = "activations in int8-g32 are the default"
LACKING = {
    "avx512vnni": "AVX-512 F, BW, VL, DQ and VNNI",
    "neon": "NEON with the dot products of ARMv8.2",
}
WEIGHTS = {
    "q4_0": "w4.sym.g32",
    "q4_1": "w4.min.g32",
    "q5_0": "w5.sym.g32",
    "q5_1": "w5.min.g32",
    "q8_0": "w8.sym.g32",
    "q4_k": "w4.two.g32",
    "q5_k": "w5.two.g32",
    "q6_k": "w6.half.g16",
}


@pytest.fixture
def cpu(monkeypatch):
    """Pretend that the CPU has these instruction sets only."""
    return lambda *isas: monkeypatch.setattr(chooser, "available_isas", lambda: list(isas))


@pytest.mark.parametrize(("name", "weights"), WEIGHTS.items())
def test_a_block_format_has_one_chain_on_every_instruction_set(cpu, name, weights):
    tensor = random_tensor(name, 16, 256, RNG)
    for isa in chooser.ISAS:
        cpu(isa, "portable")
        kernel = choose("head.weight", tensor).kernel
        assert kernel.rsplit("/", 1)[0] == f"{weights}/a8.g32"


def test_the_best_instruction_set_is_taken_and_all_others_explained(cpu):
    cpu("avx2", "portable")
    record = choose("layers.0.q.weight", random_tensor("q4_0", 16, 64, RNG))
    assert record.kernel == "w4.sym.g32/a8.g32/avx2"
    assert record.activations == "int8-g32"
    lacking = {"amx+avx512vnni": "AMX tiles of int8 and bf16", **LACKING}
    shared = {
        "a8.token": IN_INT8,
        "a8.static": "the model has no calibrated scale for the layer's input",
    }
    assert {r.kernel.split("/", 1)[1]: r.reason for r in record.rejected} == {
        **{f"{a}/{isa}": f"this CPU lacks {what}" for a in shared for isa, what in lacking.items()},
        **{f"{a}/{isa}": reason for a, reason in shared.items() for isa in ("avx2", "portable")},
        "a8.g32/amx+avx512vnni": "this CPU lacks AMX tiles of int8 and bf16",
        "a8.g32/avx512vnni": "this CPU lacks AVX-512 F, BW, VL, DQ and VNNI",
        "a8.g32/neon": "this CPU lacks NEON with the dot products of ARMv8.2",
        "a8.g32/portable": "avx2 computes the same and is faster",
        "abf16/avx512": "this CPU lacks AVX-512 F, BW, VL, DQ and VNNI",
        "abf16/avx2": IN_INT8,
        "abf16/portable": IN_INT8,
    }


def test_the_record_has_the_bytes_of_the_packed_matrix():
    for form in ("q4_k", AFFINE[1]):
        tensor = random_tensor(form, 37, 256, RNG)
        assert choose("embed.weight", tensor).bytes == pack(tensor).nbytes


@pytest.mark.parametrize(
    ("isa", "last"),
    [
        ("amx", "avx512"),
        ("avx512vnni", "avx512"),
        ("avx2", "avx2"),
        ("neon", "neon"),
        ("portable", "portable"),
    ],
)
def test_float_weights_never_take_integer_tiles(cpu, isa, last):
    cpu(isa, "portable")
    tensor, _ = random_floats("f16", 16, 64, RNG)
    record = choose("head.weight", tensor)
    assert record.kernel == f"f16/f32/{last}"
    assert record.activations == "f32"
    tiles, *others = record.rejected
    assert (tiles.kernel, len(others)) == ("f16/f32.split/amx", 3)
    assert not any("AMX" in r.reason for r in others)


def test_bf16_takes_tiles_where_there_are_some(cpu):
    tensor, _ = random_floats("bf16", 16, 64, RNG)
    for isa, kernel in (("amx", "f32.split/amx"), ("avx512vnni", "f32/avx512")):
        cpu(isa, "portable")
        assert choose("head.weight", tensor).kernel == f"bf16/{kernel}"


def test_a_forced_instruction_set_is_taken():
    tensor = random_tensor("q4_0", 16, 64, RNG)
    record = choose("layers.0.q.weight", tensor, demand("portable"))
    assert record.kernel == "w4.sym.g32/a8.g32/portable"
    assert len(record.rejected) == INTEGER_KERNELS - 1


def test_a_forced_instruction_set_that_is_missing_fails_with_every_reason(cpu):
    cpu("avx2", "portable")
    tensor = random_tensor("q4_0", 16, 64, RNG)
    with pytest.raises(KernelError) as caught:
        choose("layers.0.q.weight", tensor, demand("amx"))
    assert str(caught.value) == (
        "No kernel can run layers.0.q.weight (q4_0) as asked. "
        "w4.sym.g32/a8.g32/amx+avx512vnni: this CPU lacks AMX tiles of int8 and bf16; "
        "w4.sym.g32/a8.g32/avx512vnni: this CPU lacks AMX tiles of int8 and bf16; "
        "w4.sym.g32/a8.g32/avx2: amx was asked for; "
        "w4.sym.g32/a8.g32/neon: this CPU lacks NEON with the dot products of ARMv8.2; "
        "w4.sym.g32/a8.g32/portable: amx was asked for; "
        "w4.sym.g32/a8.token/amx+avx512vnni: this CPU lacks AMX tiles of int8 and bf16; "
        "w4.sym.g32/a8.token/avx512vnni: this CPU lacks AMX tiles of int8 and bf16; "
        "w4.sym.g32/a8.token/avx2: amx was asked for; "
        "w4.sym.g32/a8.token/neon: this CPU lacks NEON with the dot products of ARMv8.2; "
        "w4.sym.g32/a8.token/portable: amx was asked for; "
        "w4.sym.g32/a8.static/amx+avx512vnni: this CPU lacks AMX tiles of int8 and bf16; "
        "w4.sym.g32/a8.static/avx512vnni: this CPU lacks AMX tiles of int8 and bf16; "
        "w4.sym.g32/a8.static/avx2: amx was asked for; "
        "w4.sym.g32/a8.static/neon: this CPU lacks NEON with the dot products of ARMv8.2; "
        "w4.sym.g32/a8.static/portable: amx was asked for; "
        "w4.sym.g32/abf16/avx512: this CPU lacks AMX tiles of int8 and bf16; "
        "w4.sym.g32/abf16/avx2: amx was asked for; "
        "w4.sym.g32/abf16/portable: amx was asked for."
    )
    with pytest.raises(KernelError, match="can run avx2, portable"):
        choose_isa("amx")


def test_an_unknown_instruction_set_is_refused_with_those_known():
    with pytest.raises(KernelError, match="No instruction set 'sve'; known are amx"):
        demand("sve")
    with pytest.raises(KernelError, match="No instruction set 'sve'"):
        choose_isa("sve")


def test_a_forced_kernel_is_taken_with_its_instruction_set(cpu):
    cpu("amx", "avx512vnni", "avx2", "portable")
    wanted = demand(kernel="w4.sym.g32/a8.g32/avx2")
    assert wanted.isa == "avx2"
    assert choose("a", random_tensor("q4_0", 16, 64, RNG), wanted).kernel == wanted.kernel
    # It names other weights than these, which follow its instruction set and nothing else of it.
    assert choose("b", random_tensor("q8_0", 16, 64, RNG), wanted).kernel.endswith("/a8.g32/avx2")
    floats, _ = random_floats("bf16", 16, 64, RNG)
    assert choose("c", floats, wanted).kernel == "bf16/f32/avx2"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("q2_k", "a scale per 16 inputs"),
        ("q3_k", "a scale per 16 inputs"),
        ("q6_k", "a scale per 16 inputs"),
        (QuantSpec(8, Granularity.GROUP, 32, symmetric=False), "take nine bits"),
    ],
    ids=str,
)
def test_weights_that_are_not_for_tiles_are_recorded_on_the_vector_units(cpu, form, words):
    cpu("amx", "avx512vnni", "avx2", "portable")
    tensor = random_tensor(form, 16, 256, RNG)
    for isa in (None, "amx", "avx512vnni"):
        record = choose("a", tensor, demand(isa))
        assert record.kernel.endswith("/a8.g32/avx512vnni")
        assert words in record.rejected[0].reason or isa == "avx512vnni"
    tiles = record.kernel.replace("avx512vnni", "amx+avx512vnni")
    with pytest.raises(KernelError, match=words):
        choose("a", tensor, demand(kernel=tiles))
    assert demand(kernel=record.kernel).isa == "avx512vnni"


def test_other_weights_are_for_tiles(cpu):
    cpu("amx", "avx512vnni", "avx2", "portable")
    for form in ("q4_0", "q4_k", "iq4_nl", "mxfp4", *(s for s in AFFINE if s.symmetric)):
        record = choose("a", random_tensor(form, 16, 256, RNG))
        assert record.kernel.endswith("/a8.g32/amx+avx512vnni")
        assert choose("a", random_tensor(form, 16, 256, RNG), demand("avx512vnni")).kernel.endswith(
            "/a8.g32/avx512vnni"
        )


def test_a_kernel_of_several_instruction_sets_takes_the_best_there_is(cpu):
    for has, isa in ((("amx", "avx512vnni"), "amx"), (("avx512vnni",), "avx512vnni"), ((), "amx")):
        cpu(*has, "portable")
        assert demand(kernel="bf16/f32/avx512").isa == isa


def test_a_forced_kernel_that_is_missing_fails_with_every_reason(cpu):
    cpu("avx2", "portable")
    wanted = demand(kernel="w4.sym.g32/a8.g32/amx+avx512vnni")
    with pytest.raises(KernelError) as caught:
        choose("layers.0.q.weight", random_tensor("q4_0", 16, 64, RNG), wanted)
    message = str(caught.value)
    assert "amx+avx512vnni: this CPU lacks AMX tiles of int8 and bf16; " in message
    assert message.count("w4.sym.g32/a8.g32/amx+avx512vnni was asked for") == 8
    assert message.count(": ") == INTEGER_KERNELS


@pytest.mark.parametrize(
    "kernel", ["w4.sym.g32", "w4.sym.g32/a8.g32/sve", "w4.sym.g32/a9/avx2", "", "a/b/c/d"]
)
def test_what_is_called_like_no_kernel_is_refused_with_what_there_may_be(kernel):
    with pytest.raises(KernelError, match=r"is no kernel; .*a8\.g32/avx2.*f32/portable"):
        demand(kernel=kernel)


def test_a_kernel_and_another_instruction_set_are_refused():
    with pytest.raises(KernelError, match="does not run on instruction set 'avx2'"):
        demand("avx2", "w4.sym.g32/a8.g32/portable")
    both = demand("portable", "w4.sym.g32/a8.g32/portable")
    assert (both.isa, both.kernel) == ("portable", "w4.sym.g32/a8.g32/portable")


def test_float_weights_cannot_be_forced_onto_tiles_that_the_cpu_lacks(cpu):
    cpu("avx512vnni", "avx2", "portable")
    tensor, _ = random_floats("f16", 16, 64, RNG)
    with pytest.raises(KernelError, match="f16/f32/avx512: this CPU lacks AMX tiles"):
        choose("head.weight", tensor, demand("amx"))


def test_a_second_family_is_taken_where_its_rounding_is_asked_for(cpu, monkeypatch):
    cpu("avx2", "portable")
    other = Family("abf16", "bf16", frozenset({Weights.INTEGER}), {"avx2": ("avx2",)})
    monkeypatch.setattr(chooser, "FAMILIES", (chooser.FAMILIES[0], other))
    tensor = random_tensor("q4_0", 16, 64, RNG)
    default = choose("a", tensor)
    assert default.kernel == "w4.sym.g32/a8.g32/avx2"
    reasons = {r.kernel: r.reason for r in default.rejected}
    assert reasons["w4.sym.g32/abf16/avx2"] == "activations in int8-g32 are the default"
    asked = choose("a", tensor, Demand(activations="bf16"))
    assert (asked.kernel, asked.activations) == ("w4.sym.g32/abf16/avx2", "bf16")
    reasons = {r.kernel: r.reason for r in asked.rejected}
    assert reasons["w4.sym.g32/a8.g32/avx2"] == "activations in bf16 were asked for"
    with pytest.raises(KernelError, match="activations in f32 were asked for"):
        choose("a", tensor, Demand(activations="f32"))


def test_a_format_without_kernel_is_refused_with_the_reason():
    good = random_tensor(AFFINE[0], 16, 64, RNG)
    assert isinstance(good.spec, QuantSpec) and good.scales is not None
    wide = good.scales.astype(np.float32)
    tensor = QuantTensor(float32_scales(good.spec), good.shape, good.codes, wide)
    with pytest.raises(KernelError, match="its scales are f32; kernels read f16"):
        choose("layers.0.q.weight", tensor)


def test_codes_are_run_in_the_bits_that_they_are_stored_in():
    for spec in AFFINE:
        record = choose("a", random_tensor(spec, 16, 128, RNG))
        assert record.kernel.startswith(f"w{spec.bits}.")
        assert record.note == ""


def test_the_best_of_this_machine_is_chosen_by_default():
    assert choose_isa() == chooser.available_isas()[0]
    assert choose_isa("portable") == "portable"
