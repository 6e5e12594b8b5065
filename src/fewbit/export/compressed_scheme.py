"""How compressed-tensors names a matrix's format and the rounding of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fewbit.formats.registry import BLOCK_FORMATS, parse_format
from fewbit.formats.spec import BlockSpec, Fp8Spec, Granularity, NumberFormat, QuantSpec
from fewbit.records.kernels import Activations

PACKED, INTEGERS, FLOATS = "pack-quantized", "int-quantized", "float-quantized"
MXFP4 = "mxfp4-pack-quantized"

_NEAREST = {
    "q4_0": ("int4-g32",),
    "q5_0": ("int5-g32",),
    "q8_0": ("int8-g32",),
    "q5_1": ("int5-g32-asym",),
    "iq4_nl": ("int8-g32",),
    "q5_k": ("int8-g32",),
    "q6_k": ("int8-g32",),
}
"""Of GGUF types what holds them, or what is near and run by most; others get 4 bits."""
_ELSE = ("int4-g32-asym",)
_MARLIN_GROUPS = (None, 32, 64, 128)


@dataclass(frozen=True)
class Scheme:
    """What a config group says of its modules."""

    form: QuantSpec | Fp8Spec | BlockSpec
    inputs: Activations
    """`BF16` where inputs are not rounded."""
    input_scale: float | None = None

    @property
    def shared(self) -> Scheme:
        """What modules of one group have in common: all but the scale of their inputs."""
        return replace(self, input_scale=None)

    @property
    def symmetric(self) -> bool:
        """Whether there are no zero points."""
        return not isinstance(self.form, QuantSpec) or self.form.symmetric

    @property
    def title(self) -> str:
        """In words, for messages."""
        inputs = "" if self.inputs is Activations.BF16 else f" with inputs in {self.inputs.value}"
        return self.form.name + inputs

    @property
    def container(self) -> str:
        """The `format` of the group."""
        if isinstance(self.form, Fp8Spec):
            return FLOATS
        if isinstance(self.form, BlockSpec):
            return MXFP4
        return INTEGERS if self.inputs is not Activations.BF16 and self._is_int8_row else PACKED

    @property
    def described(self) -> dict[str, Any]:
        """The group's fields apart from its targets."""
        return {
            "weights": _weights(self.form),
            "input_activations": _input_activations(self.inputs),
            "output_activations": None,
            "format": self.container,
        }

    @property
    def _is_int8_row(self) -> bool:
        form = self.form
        return (
            isinstance(form, QuantSpec)
            and form.bits == 8
            and form.symmetric
            and (form.granularity is Granularity.ROW)
        )


def candidates(form: NumberFormat) -> Sequence[NumberFormat]:
    """Return the formats of compressed-tensors for a matrix, the preferred first.

    An order of columns is in none: the package has not read `weight_g_idx` since August 2026.
    """
    if isinstance(form, QuantSpec):
        grouped = form.granularity in (Granularity.GROUP, Granularity.ROW)
        return [form.laid_out if grouped else replace(form, granularity=Granularity.ROW)]
    if isinstance(form, Fp8Spec) or form == BLOCK_FORMATS["mxfp4"].spec:
        return [form]
    names = _NEAREST.get(form.name, _ELSE)
    return [parse_format(name) for name in names]


def scheme_of(form: NumberFormat, inputs: Activations, input_scale: float | None) -> Scheme:
    """Return the scheme of a matrix; roundings of inputs without a name there are left out."""
    assert isinstance(form, QuantSpec | Fp8Spec | BlockSpec)
    if not isinstance(form, QuantSpec):
        return Scheme(form, Activations.BF16)
    if inputs is Activations.STATIC and input_scale is not None:
        return Scheme(form, inputs, input_scale)
    return Scheme(form, inputs if inputs is Activations.TOKEN else Activations.BF16)


def runtime_limits(scheme: Scheme) -> Iterator[str]:
    """Yield, as sentences, what vLLM 0.32 does not run of a scheme, as its source reads."""
    form = scheme.form
    if not isinstance(form, QuantSpec):
        if isinstance(form, BlockSpec):
            yield "vLLM runs mxfp4 weights of linear layers on CUDA and ROCm only, not on a CPU."
        return
    if scheme.inputs is not Activations.BF16:
        yield from _rounded_limits(scheme)
        return
    if form.bits not in (4, 8) or (form.bits == 8 and not form.symmetric):
        yield f"vLLM runs {form.name} only on CUDA with the humming package."
    elif form.bits == 8:
        yield f"vLLM runs {form.name} as weight-only on CUDA and ROCm; its CPU kernel has 4 bits."
    if form.group_size not in _MARLIN_GROUPS:
        yield f"vLLM's kernels on CUDA have groups of 32, 64 and 128, not {form.group_size}."


def expert_limits(experts: Sequence[Scheme]) -> Iterator[str]:
    """Yield, as sentences, what transformers 5.24 does not load of a mixture's experts (run there).

    It has the experts of a layer in one parameter, which it makes of decoded weights.
    """
    who = "transformers 5.24 does not load a mixture's experts"
    if any(not scheme.symmetric for scheme in experts):
        yield f"{who} with zero points; take a symmetric format for them."
    if any(scheme.container == INTEGERS for scheme in experts):
        yield f"{who} in int8 whose inputs are int8 too; take a weight-only format or fp8 for them."
    elif any(scheme.inputs is not Activations.BF16 for scheme in experts):
        yield "transformers 5.24 leaves the inputs of a mixture's experts as they are, unrounded."
    if len({scheme.shared for scheme in experts}) > 1:
        yield "transformers 5.24 decodes all experts like the first; here their formats differ."


def _rounded_limits(scheme: Scheme) -> Iterator[str]:
    form = scheme.form
    assert isinstance(form, QuantSpec)
    if scheme.container == INTEGERS:
        return
    if scheme.inputs is Activations.STATIC:
        yield f"vLLM has static int8 inputs for int8-row weights only, not for {form.name}."
    else:
        yield f"vLLM runs {scheme.title} only on CUDA with the humming package."


def _weights(form: QuantSpec | Fp8Spec | BlockSpec) -> dict[str, Any]:
    if isinstance(form, BlockSpec):
        return _arguments(4, "float", "group", 32)
    if isinstance(form, Fp8Spec):
        where = "tensor" if form.granularity is Granularity.TENSOR else "channel"
        return _arguments(8, "float", where)
    where = "channel" if form.group_size is None else "group"
    return _arguments(form.bits, "int", where, form.group_size, symmetric=form.symmetric)


def _input_activations(inputs: Activations) -> dict[str, Any] | None:
    if inputs is Activations.TOKEN:
        return {**_arguments(8, "int", "token"), "dynamic": True}
    return _arguments(8, "int", "tensor") if inputs is Activations.STATIC else None


def _arguments(
    bits: int, kind: str, strategy: str, group: int | None = None, *, symmetric: bool = True
) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": group,
        "dynamic": False,
    }
