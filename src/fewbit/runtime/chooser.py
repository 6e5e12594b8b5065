"""Choosing the kernel of each layer, once, at load.

Candidates stand in order, best first; each says whether it can run the layer, and if not why. The
first that can is taken, and the reasons of those before it go into the record. A kernel id is
`weights/activations/instruction set`; all ids that differ only in the last part compute the same
bits, so the choice is one of speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fewbit._native import available_isas
from fewbit.errors import KernelError
from fewbit.formats.spec import QuantTensor
from fewbit.program import Slot
from fewbit.records.kernels import KernelRecord, RejectedKernel
from fewbit.runtime.pack import PackedForm, obstacle, packed_form, size_of

ISAS = ("amx", "avx512vnni", "avx2", "portable")
"""Instruction sets, best first. `amx` is AVX-512 VNNI with AMX tiles for many rows."""

_INTEGER_NAMES = {"amx": "amx+avx512vnni"}
_FLOAT_NAMES = {"amx": "avx512", "avx512vnni": "avx512"}
_NEEDS = {
    "amx": "AMX int8 tiles",
    "avx512vnni": "AVX-512 F, BW, VL, DQ and VNNI",
    "avx2": "AVX2, FMA and F16C",
}


@dataclass(frozen=True)
class _Candidate:
    isa: str
    kernel: str
    refusal: str | None
    """Why it cannot run the layer; None where it can."""


def choose(slot: Slot, tensor: QuantTensor, isa: str | None = None) -> KernelRecord:
    """Choose the kernel of a linear layer.

    Args:
        slot: the layer's weight slot, for the record.
        tensor: its weights, [outputs, inputs].
        isa: one of `ISAS` to force it; None takes the best that the CPU has.

    Raises:
        KernelError: no candidate can run the layer, or the forced one cannot; lists every reason.
    """
    candidates = tuple(_candidates(tensor, isa))
    taken = next((c for c in candidates if c.refusal is None), None)
    if taken is None:
        reasons = "; ".join(f"{c.kernel}: {c.refusal}" for c in candidates)
        raise KernelError(f"No kernel can run {slot} ({tensor.spec.name}). {reasons}.")
    form = packed_form(tensor)
    before = candidates[: candidates.index(taken)]
    return KernelRecord(
        slot=slot,
        format=tensor.spec.name,
        kernel=taken.kernel,
        activations="f32" if form.is_float else "int8-g32",
        bytes=size_of(form, tensor.shape),
        note=form.note,
        rejected=tuple(RejectedKernel(kernel=c.kernel, reason=c.refusal or "") for c in before),
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


def _candidates(tensor: QuantTensor, forced: str | None) -> Iterator[_Candidate]:
    if forced is not None:
        _require_known(forced)
    reason = obstacle(tensor)
    form = None if reason else packed_form(tensor)
    available = available_isas()
    for isa in ISAS:
        refusal = reason or _refusal(isa, forced, available)
        yield _Candidate(isa, _kernel_id(form, tensor, isa), refusal)


def _require_known(isa: str) -> None:
    if isa not in ISAS:
        raise KernelError(f"No instruction set '{isa}'; known are {', '.join(ISAS)}.")


def _refusal(isa: str, forced: str | None, available: list[str]) -> str | None:
    if isa not in available:
        return f"this CPU lacks {_NEEDS[isa]}"
    if forced not in (None, isa):
        return f"{forced} was asked for"
    return None


def _kernel_id(form: PackedForm | None, tensor: QuantTensor, isa: str) -> str:
    if form is None:
        return f"{tensor.spec.name}/{isa}"
    if form.is_float:
        return f"{form.weights}/f32/{_FLOAT_NAMES.get(isa, isa)}"
    return f"{form.weights}/a8.g32/{_INTEGER_NAMES.get(isa, isa)}"
