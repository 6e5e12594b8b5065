"""Which kernel runs a layer, and why no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from fewbit.records.base import Record


class Activations(Enum):
    """How the input of a layer with integer weights is rounded before it is multiplied."""

    INT8 = "int8"
    """To int8 with a scale per token and 32 inputs: integer products, the fast path."""
    TOKEN = "int8-token"
    """To int8 with a scale per token: dynamic W8A8, as vLLM and others run it."""
    STATIC = "int8-static"
    """To int8 with one scale, calibrated and stored with the weights: static W8A8."""
    BF16 = "bf16"
    """To bf16: only the weights are quantized ("weight-only"); products in float32."""


class RejectedKernel(Record, frozen=True):
    """A candidate that was not taken."""

    kernel: str
    reason: str


class KernelRecord(Record, frozen=True):
    """The choice made once for one slot, at load."""

    slot: str
    format: str
    """The stored number format, such as `q4_0` or `int4-g32`."""
    kernel: str
    """The kernel id: weight layout, activation format and instruction set, such as
    `w4.sym.g32/a8.g32/avx512vnni`."""
    activations: str
    """How the layer's input is rounded: `f32` (not at all), `int8-g32` (int8 per 32 inputs),
    `int8-token`, `int8-static` or `bf16`."""
    bytes: int
    """Bytes of the weights as the kernel reads them."""
    input_scale: float | None = None
    """The scale of `int8-static`; None with other activations."""
    gathered: bool = False
    """Whether inputs are taken in the order of the matrix's columns before they are rounded."""
    note: str = ""
    """What differs, in words; empty where the format is run as stored."""
    rejected: tuple[RejectedKernel, ...] = ()
    """Every other kernel for the layer's weights, and why it was not taken."""


class KernelPlan(Record, frozen=True, kw_only=True):
    """The kernels that would run a model on this machine."""

    model: str
    path: str
    isa: str
    """The instruction set that the executor runs on."""
    kernels: tuple[KernelRecord, ...]
    """Of every matrix, in the Program's order."""


def kernel_fallbacks(kernels: Iterable[KernelRecord]) -> tuple[str, ...]:
    """Return one sentence for each way in which matrices are not run as they are stored."""
    counts = Counter((kernel.format, kernel.note) for kernel in kernels if kernel.note)
    return tuple(f"{form}: {note}, {count} matrices." for (form, note), count in counts.items())
