"""Choosing the kernel of each layer, once, at load.

Candidates stand in order, best first; each says whether it can run the layer, and if not why. The
first that can is taken, and the reasons of all others go into the record. A kernel id is
`weights/activations/instruction set`; all ids that differ only in the last part compute the same
bits, so that choice is one of speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from fewbit._native import available_isas
from fewbit.errors import KernelError
from fewbit.formats.spec import QuantTensor, is_ordered
from fewbit.program import Slot
from fewbit.records.kernels import Activations, KernelRecord, RejectedKernel
from fewbit.runtime.pack import (
    Layout,
    PackedForm,
    Weights,
    obstacle,
    packed_form,
    size_of,
    upper_weights,
)

ISAS = ("amx", "avx512vnni", "avx2", "neon", "portable")
"""Instruction sets, best first. `amx` is AVX-512 VNNI with AMX tiles for many rows."""

_TILES = "amx+avx512vnni"
"""Tiles for many rows, the vector units for a few."""

_STATIC = "int8-static"
"""The rounding that needs a calibrated scale of each layer's input."""

_PIECES = "f32.split"
"""Kernels that take a float32 input as a sum of three bf16 numbers."""

_NEEDS = {
    "amx": "AMX tiles of int8 and bf16",
    "avx512vnni": "AVX-512 F, BW, VL, DQ and VNNI",
    "avx2": "AVX2, FMA and F16C",
    "neon": "NEON with the dot products of ARMv8.2",
}


@dataclass(frozen=True)
class Family:
    """Kernels that differ in their instruction set alone, and so compute the same bits."""

    activations: str
    """The activations' part of a kernel id."""
    rounding: str
    """How the input is rounded, as a `KernelRecord` names it."""
    reads: frozenset[Weights]
    isas: Mapping[str, tuple[str, ...]]
    """The last part of each kernel's id, and the instruction sets of an executor that run it; best
    first. An executor with AMX runs `avx512vnni` for weights that are not for tiles."""


_INTEGER_ISAS = {
    _TILES: ("amx",),
    "avx512vnni": ("avx512vnni", "amx"),
    "avx2": ("avx2",),
    "neon": ("neon",),
    "portable": ("portable",),
}

FAMILIES = (
    Family("a8.g32", "int8-g32", frozenset({Weights.INTEGER}), _INTEGER_ISAS),
    Family("a8.token", "int8-token", frozenset({Weights.INTEGER}), _INTEGER_ISAS),
    Family("a8.static", _STATIC, frozenset({Weights.INTEGER}), _INTEGER_ISAS),
    Family(
        "abf16",
        "bf16",
        frozenset({Weights.INTEGER}),
        {
            "avx512": ("amx", "avx512vnni"),
            "avx2": ("avx2",),
            "portable": ("portable", "neon"),
        },
    ),
    Family(_PIECES, "f32", frozenset({Weights.FLOAT}), {"amx": ("amx",)}),
    Family(
        "f32",
        "f32",
        frozenset({Weights.FLOAT}),
        {
            "avx512": ("amx", "avx512vnni"),
            "avx2": ("avx2",),
            "neon": ("neon",),
            "portable": ("portable",),
        },
    ),
)
"""All kernels. Where several families read a layer's weights, the first is the default."""

SPLIT = "f32-split"
"""The `rounding` that an executor is told of inputs for those kernels."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What is asked of a layer's kernel; None leaves it to the chooser."""

    isa: str | None = None
    """One of `ISAS`."""
    kernel: str | None = None
    """A kernel id, for the layers whose weights it names; it binds no other layer."""
    activations: str | None = None
    """How the inputs of integer weights are to be rounded, the `rounding` of a family. A forced
    kernel decides for the layers that it binds."""
    input_scale: float | None = None
    """The calibrated scale of the layer's input; None where the model has none."""
    layout: Layout = Layout.PLAIN
    """How codes of 8 bits are to lie."""


ANY = Demand()

_ROUNDINGS = {
    Activations.INT8: "int8-g32",
    Activations.TOKEN: "int8-token",
    Activations.STATIC: _STATIC,
    Activations.BF16: "bf16",
}


@dataclass(frozen=True)
class _Candidate:
    family: Family
    kernel: str
    refusal: str | None
    """Why it cannot run the layer; None where it can."""


def executed_rounding(kernel: KernelRecord) -> str:
    """Return how an executor is told to take a kernel's inputs."""
    return SPLIT if f"/{_PIECES}/" in kernel.kernel else kernel.activations


def rounding_of(activations: Activations) -> str:
    """Return how a `KernelRecord` names a rounding of the inputs of integer weights."""
    return _ROUNDINGS[activations]


def demand(
    isa: str | None = None, kernel: str | None = None, activations: Activations | None = None
) -> Demand:
    """Return a demand for all layers of a model, its names checked.

    A forced kernel forces its instruction set for the whole model, since an executor runs one.

    Raises:
        KernelError: no instruction set is called so, the kernel's name is none, or both disagree.
    """
    if isa is not None:
        _require_known(isa)
    rounding = None if activations is None else rounding_of(activations)
    if kernel is None:
        return Demand(isa=isa, activations=rounding)
    family, isas = _named(kernel)
    if rounding not in (None, family.rounding) and Weights.INTEGER in family.reads:
        raise KernelError(
            f"Kernel '{kernel}' takes activations in {family.rounding}, and {rounding} was asked "
            "for; leave one of them out."
        )
    if isa is not None and isa not in isas:
        raise KernelError(
            f"Kernel '{kernel}' does not run on instruction set '{isa}'; leave one of them out."
        )
    available = available_isas()
    best = next((name for name in isas if name in available), isas[0])
    return Demand(isa=isa or best, kernel=kernel, activations=rounding)


def choose(slot: Slot, tensor: QuantTensor, wanted: Demand = ANY) -> KernelRecord:
    """Choose the kernel of a linear layer.

    Args:
        slot: the layer's weight slot, for the record.
        tensor: its weights, [outputs, inputs].
        wanted: what must hold of the kernel, as `demand` checked it.

    Raises:
        KernelError: no candidate can run the layer as wanted; lists every candidate's reason.
    """
    reason = obstacle(tensor)
    if reason is not None:
        raise KernelError(f"No kernel can run {slot} ({tensor.spec.name}): {reason}.")
    form = packed_form(tensor, wanted.layout)
    candidates = tuple(_candidates(form, tensor.shape[-1], wanted))
    taken = next((c for c in candidates if c.refusal is None), None)
    if taken is None:
        reasons = "; ".join(f"{c.kernel}: {c.refusal}" for c in candidates)
        raise KernelError(f"No kernel can run {slot} ({tensor.spec.name}) as asked. {reasons}.")
    return KernelRecord(
        slot=slot,
        format=tensor.spec.name,
        kernel=taken.kernel,
        activations=taken.family.rounding,
        bytes=size_of(form, tensor.shape),
        input_scale=wanted.input_scale if taken.family.rounding == _STATIC else None,
        gathered=is_ordered(tensor.spec),
        note=form.note,
        rejected=tuple(_rejected(candidates, taken)),
    )


def upper_record(record: KernelRecord, isa: str) -> KernelRecord:
    """Return the record of a draft that reads the upper half of a nested matrix.

    Its inputs are rounded as the target's are, but to int8 per 32 inputs where the target takes
    bf16: a draft is there to be fast.

    Args:
        record: of the nested matrix.
        isa: of the executor that both run on.
    """
    weights = record.kernel.partition("/")[0]
    found = next((f for f in FAMILIES[:3] if f.rounding == record.activations), FAMILIES[0])
    end = next(end for end, isas in found.isas.items() if isa in isas and end != _TILES)
    return msgspec.structs.replace(
        record,
        kernel=f"{upper_weights(weights)}/{found.activations}/{end}",
        activations=found.rounding,
        input_scale=record.input_scale if found.rounding == _STATIC else None,
        rejected=(),
    )


def choose_isa(isa: str | None = None) -> str:
    """Return the forced instruction set, or the best that this CPU has.

    Raises:
        KernelError: the forced one is unknown or this CPU cannot run it.
    """
    available = available_isas()
    if isa is None:
        return available[0]
    _require_known(isa)
    if isa not in available:
        raise KernelError(
            f"This CPU cannot run instruction set '{isa}', which needs {_NEEDS[isa]}; "
            f"it can run {', '.join(available)}."
        )
    return isa


def _candidates(form: PackedForm, columns: int, wanted: Demand) -> Iterator[_Candidate]:
    """Yield every kernel there is for the weights, the default family's first."""
    available = available_isas()
    for family in FAMILIES:
        if form.kind not in family.reads:
            continue
        for end, isas in family.isas.items():
            kernel = f"{form.weights}/{family.activations}/{end}"
            refusal = (
                _lack(isas, wanted, available)
                or _unfit(form, columns, family, end)
                or _objection(family, isas, kernel, wanted)
            )
            yield _Candidate(family, kernel, refusal)


def _unfit(form: PackedForm, columns: int, family: Family, end: str) -> str | None:
    """Return why weights are not for the tiles of AMX.

    native/src/linear/split.h and kernels_amx.cpp agree.
    """
    if family.activations == _PIECES:
        if form.weights != "bf16":
            return "tiles multiply floats that are bf16 alone"
        return f"tiles take 32 inputs at once, and there are {columns}" if columns % 32 else None
    if end != _TILES:
        return None
    if form.weights.endswith(".g16"):
        return "with a scale per 16 inputs, tiles are slower than avx512vnni"
    if form.bits == 8 and form.asymmetric:
        return "8-bit codes less a zero point take nine bits, and tiles have eight"
    return None


def _lack(isas: tuple[str, ...], wanted: Demand, available: list[str]) -> str | None:
    """Return what the CPU lacks of what a kernel needs at least, or of what is forced."""
    needed = (wanted.isa,) if wanted.isa in isas else isas
    if any(isa in available for isa in needed):
        return None
    return f"this CPU lacks {_NEEDS[max(needed, key=ISAS.index)]}"


def _objection(family: Family, isas: tuple[str, ...], kernel: str, wanted: Demand) -> str | None:
    """Return what was asked for that a kernel is not."""
    if _is_another(kernel, wanted.kernel):
        return f"{wanted.kernel} was asked for"
    chosen = kernel == wanted.kernel or Weights.INTEGER not in family.reads
    if not chosen and wanted.activations not in (None, family.rounding):
        return f"activations in {wanted.activations} were asked for"
    if wanted.isa not in (None, *isas):
        return f"{wanted.isa} was asked for"
    if family.rounding == _STATIC and wanted.input_scale is None:
        return "the model has no calibrated scale for the layer's input"
    return None


def _is_another(kernel: str, forced: str | None) -> bool:
    """Say whether a kernel is forced for these weights and this is another one."""
    if forced is None or kernel == forced:
        return False
    return kernel.partition("/")[0] == forced.partition("/")[0]


def _rejected(candidates: tuple[_Candidate, ...], taken: _Candidate) -> Iterator[RejectedKernel]:
    for candidate in candidates:
        if candidate is not taken:
            reason = candidate.refusal or _behind(candidate, taken)
            yield RejectedKernel(kernel=candidate.kernel, reason=reason)


def _behind(candidate: _Candidate, taken: _Candidate) -> str:
    """Return why a candidate that could run the layer stands behind the one taken."""
    if candidate.family is taken.family:
        faster = taken.kernel.rpartition("/")[2]
        return f"{faster} computes the same and is faster"
    if candidate.family.rounding == taken.family.rounding:
        return f"{taken.kernel} rounds no input either, and is faster"
    return f"activations in {taken.family.rounding} are the default"


def _require_known(isa: str) -> None:
    if isa not in ISAS:
        raise KernelError(f"No instruction set '{isa}'; known are {', '.join(ISAS)}.")


def _named(kernel: str) -> tuple[Family, tuple[str, ...]]:
    """Return the family of a kernel's id and the instruction sets that run it, best first."""
    ends = {f"{f.activations}/{end}": (f, isas) for f in FAMILIES for end, isas in f.isas.items()}
    weights, _, rest = kernel.partition("/")
    if not weights or rest not in ends:
        raise KernelError(
            f"'{kernel}' is no kernel; one is called like w4.sym.g32/a8.g32/avx2, and after the "
            f"weights there may be {', '.join(ends)}."
        )
    return ends[rest]
