"""The axis of kernels: what ran each matrix, and whether it read the format or something larger.

A figure of a quantized model is that of its kernels. Where a matrix was quietly turned into floats,
quality is that of the floats and speed that of no low-bit model; so it rejects unless the gate
waives it by name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fewbit.evaluate.arms import PAIR, Arm, Arms, Role, Room
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.machine.work import weight_bytes
from fewbit.formats.registry import FLOATS, encoded_bytes, parse_format
from fewbit.formats.spec import is_ordered
from fewbit.model.decoder import slot_shapes
from fewbit.model.runner import Runner
from fewbit.program import Slot
from fewbit.progress import Progress
from fewbit.records.kernel_axis import KernelKind, KernelsDetails, MatrixKernel, TokenReads
from fewbit.records.kernels import KernelRecord
from fewbit.records.measurement import AxisResult, Finding
from fewbit.runtime.native import NativeExecutor

NAME = "kernels"

TILE_ROWS = 16
"""Packed matrices have whole tiles of so many rows."""

SLACK = 1.1
"""A kernel may read so many times a format's bytes; packed layouts stay within 2% of most formats,
and within 7% of those whose scales have an odd width."""

_FINDINGS = ("float", "fallback", "bytes", "packed")

_FLOAT_NAMES = frozenset(form.name for form in FLOATS)
_ROOM = Room(context=64)
"""Nothing is run: the least store there is."""


@dataclass(frozen=True)
class KernelAxis:
    """Looks at the kernels that were chosen, and at the packed matrices that they read."""

    @property
    def name(self) -> str:
        """`kernels`."""
        return NAME

    @property
    def brings(self) -> Brings:
        """Findings alone."""
        return Brings({}, tuple(f"{NAME}/{kind}" for kind in _FINDINGS))

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Load source and candidate, one after the other, and look at what would run.

        Raises:
            UnsupportedError: an arm runs elsewhere.
        """
        began = time.perf_counter()
        ran = {}
        for done, role in enumerate(PAIR):
            progress("kernels", done, len(PAIR))
            with arms.open(role, _ROOM) as arm:
                ran[role] = _ran(arm)
        candidate = ran[Role.CANDIDATE]
        return AxisResult(
            axis=NAME,
            findings=kernel_findings(candidate.kernels, candidate.format_bytes, candidate.packed),
            details=_details(ran),
            notes=tuple(_notes(ran)),
            seconds=time.perf_counter() - began,
        )


@dataclass(frozen=True)
class Ran:
    """What of an arm is looked at."""

    kernels: tuple[KernelRecord, ...]
    format_bytes: Mapping[Slot, int]
    """Of each matrix in its format, its rows filled up to whole tiles."""
    packed: Mapping[Slot, int] | None
    """Bytes of each packed matrix in memory; None where the executor packs nothing."""
    token_bytes: int
    token_format_bytes: int


def kernel_findings(
    kernels: Sequence[KernelRecord],
    format_bytes: Mapping[Slot, int],
    packed: Mapping[Slot, int] | None,
) -> tuple[Finding, ...]:
    """Return what is to be said of the kernels of a candidate.

    Args:
        kernels: the records of its matrices.
        format_bytes: of each matrix in its own format, rows filled up to whole tiles.
        packed: bytes of each matrix in memory; None where nothing is packed.
    """
    return (
        _finding("float", _floats(kernels), f"No quantized matrix of {len(kernels)} ran as floats"),
        _finding("fallback", _fallbacks(kernels), "Every matrix ran as it is stored"),
        _finding(
            "bytes",
            _larger(kernels, format_bytes),
            "No kernel reads more than its matrix' format has",
        ),
        _finding("packed", _unlike(kernels, packed), _packed_as_recorded(packed)),
    )


def is_float_kernel(kernel: str) -> bool:
    """Return whether a kernel reads its weights as floats of 16 or 32 bits, by its id."""
    return kernel.partition("/")[0].partition(".")[0] in _FLOAT_NAMES


def _runs_as_floats(kernel: KernelRecord) -> bool:
    return kernel.format not in _FLOAT_NAMES and is_float_kernel(kernel.kernel)


def _finding(name: str, met: Sequence[str], sound: str) -> Finding:
    """Return a finding of what was met, in words; the first is shown."""
    found = f"{sound}."
    if met:
        count = "1 matrix" if len(met) == 1 else f"{len(met)} matrices"
        found = f"{count}: {met[0]}" + (", and others." if len(met) > 1 else ".")
    return Finding(name=f"{NAME}/{name}", axis=NAME, passed=not met, found=found)


def _floats(kernels: Iterable[KernelRecord]) -> list[str]:
    """Name every quantized matrix that floats stand for, whether its record says so or not."""
    return [
        f"{k.slot} is stored in {k.format} and ran on the float kernel {k.kernel}"
        + (f" ({k.note})" if k.note else "")
        for k in kernels
        if _runs_as_floats(k)
    ]


def _fallbacks(kernels: Iterable[KernelRecord]) -> list[str]:
    """Name every matrix that is run otherwise than it is stored, but for those run as floats."""
    return [
        f"{k.slot} in {k.format} is not run as stored: {k.note}"
        for k in kernels
        if k.note and not _runs_as_floats(k)
    ]


def _larger(kernels: Iterable[KernelRecord], format_bytes: Mapping[Slot, int]) -> list[str]:
    """Name every matrix that is read as more than it is stored as, but for those run as floats."""
    return [
        f"{k.slot} is read as {k.bytes:,} bytes where {k.format} has {format_bytes[k.slot]:,}"
        for k in kernels
        if k.bytes > SLACK * format_bytes[k.slot] and not _runs_as_floats(k)
    ]


def _unlike(kernels: Iterable[KernelRecord], packed: Mapping[Slot, int] | None) -> list[str]:
    """Name every matrix that lies in memory otherwise than its record says."""
    if packed is None:
        return []
    return [
        f"{k.slot} has {packed.get(k.slot, 0):,} bytes in memory where the record of its kernel "
        f"{k.kernel} says {k.bytes:,}"
        for k in kernels
        if packed.get(k.slot) != k.bytes
    ]


def _packed_as_recorded(packed: Mapping[Slot, int] | None) -> str:
    if packed is None:
        return "Not checked: the reference executor packs nothing"
    return f"All {len(packed)} packed matrices have the bytes that their kernels' records say"


def _ran(arm: Arm) -> Ran:
    runner = arm.loaded.runner
    kernels, formats = runner.kernels, _format_bytes(runner)
    stored = [msgspec.structs.replace(k, bytes=formats[k.slot]) for k in kernels]
    return Ran(
        kernels=kernels,
        format_bytes=formats,
        packed=_packed(runner),
        token_bytes=weight_bytes(runner.program, kernels),
        token_format_bytes=weight_bytes(runner.program, stored),
    )


def _packed(runner: Runner) -> dict[Slot, int] | None:
    executor = runner.executor
    if not isinstance(executor, NativeExecutor):
        return None
    return {slot: matrix.nbytes for slot, matrix in executor.matrices.items()}


def _format_bytes(runner: Runner) -> dict[Slot, int]:
    shapes, found = slot_shapes(runner.config), {}
    for kernel in runner.kernels:
        rows, columns = shapes[kernel.slot]
        tiles = -(-rows // TILE_ROWS) * TILE_ROWS
        form = parse_format(kernel.format)
        read = form.laid_out if is_ordered(form) else form  # an order is no part of the weights
        found[kernel.slot] = encoded_bytes(read, (tiles, columns))
    return found


def _details(ran: Mapping[Role, Ran]) -> KernelsDetails:
    candidate = ran[Role.CANDIDATE]
    return KernelsDetails(
        kinds=tuple(kind for role, arm in ran.items() for kind in _kinds(role, arm)),
        reads=tuple(
            TokenReads(arm=role.value, bytes=arm.token_bytes, format_bytes=arm.token_format_bytes)
            for role, arm in ran.items()
        ),
        matrices=tuple(
            MatrixKernel(
                slot=k.slot,
                format=k.format,
                kernel=k.kernel,
                bytes=k.bytes,
                format_bytes=candidate.format_bytes[k.slot],
            )
            for k in candidate.kernels
        ),
    )


def _kinds(role: Role, arm: Ran) -> Iterator[KernelKind]:
    """Yield the matrices of an arm by how they are stored and run, the most bytes first."""
    groups: dict[tuple[str, str, str, str], list[KernelRecord]] = {}
    for k in arm.kernels:
        groups.setdefault((k.format, k.kernel, k.activations, k.note), []).append(k)
    for (form, kernel, activations, note), group in sorted(
        groups.items(), key=lambda item: -sum(k.bytes for k in item[1])
    ):
        yield KernelKind(
            arm=role.value,
            format=form,
            kernel=kernel,
            activations=activations,
            matrices=len(group),
            bytes=sum(k.bytes for k in group),
            format_bytes=sum(arm.format_bytes[k.slot] for k in group),
            note=note,
        )


def _notes(ran: Mapping[Role, Ran]) -> Iterator[str]:
    source = ran[Role.SOURCE]
    floats = _floats(source.kernels)
    if floats:
        yield (
            f"Of the source {len(floats)} quantized matrices ran as floats; only the candidate's "
            "kernels are judged."
        )
