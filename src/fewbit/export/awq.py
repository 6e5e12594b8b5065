"""AWQ folders (the "gemm" layout), for vLLM, SGLang and AutoAWQ: 4 bits with zero points.

What is stored is described in `checkpoint/awq.py`, which reads it back. There is one group size,
the smallest of the model's; symmetric integers of up to 4 bits have the same zero point everywhere.
Layers of more bits stay floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.awq import GEMM, METHOD
from fewbit.checkpoint.safetensors_write import Part
from fewbit.export.folder import left_out
from fewbit.export.grouped import (
    WORD,
    common_group,
    dtype_note,
    in_groups,
    integers_near,
    layer_integers,
    served_dtype,
    written_group,
)
from fewbit.export.layers import (
    float_holding,
    fused_experts,
    is_table,
    mixed_fusions,
    packed_slots,
    plain_modules,
    weight_only_notes,
)
from fewbit.export.packed import as_stored, write_packed
from fewbit.export.target import ExportSettings, Holding, Layout, dtype_of, held
from fewbit.formats.pack import unpack
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import NumberFormat, QuantSpec, QuantTensor
from fewbit.formats.words import pack_awq
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor

if TYPE_CHECKING:
    from fewbit.export.job import Job

_BITS = 4
_RUN = 8
"""Outputs of a word."""
_GROUPS = (None, 32, 64, 128)


@dataclass(frozen=True)
class AwqTarget:
    """Reads with vLLM, SGLang and AutoAWQ."""

    dtype: NumberFormat
    """What tables and other formats become."""
    name: str = METHOD
    container: Literal["folder"] = "folder"

    def layout(self, source: ModelSource) -> Layout:
        """Return 4-bit integers with zero points in the model's one group size, or floats."""
        group = common_group(spec for spec in layer_integers(source) if spec.bits <= _BITS)
        holdings = {slot: self._holding(source, slot, group) for slot in source.slots}
        packed = packed_slots({slot: holding.format for slot, holding in holdings.items()})
        notes = (dtype_note(source), *weight_only_notes(source, packed))
        return Layout(holdings=holdings, notes=notes)

    def _holding(self, source: ModelSource, slot: Slot, group: int | None) -> Holding:
        info, stored = source.info(slot), source.huggingface_name(slot)
        if is_vector(slot) or is_table(slot):
            return float_holding(source, slot, self.dtype)
        near, (outputs, inputs) = integers_near(info.format), info.matrix_shape
        if near is None or near.bits > _BITS or outputs % _RUN or inputs % WORD:
            kept = info.format if info.format in FLOATS else self.dtype
            return held(source, slot, stored, [kept])
        spec = in_groups(replace(near, bits=_BITS, symmetric=False), group)
        return as_stored(held(source, slot, stored, [spec]), _parts("", spec, (outputs, inputs)))

    def absent(self, source: ModelSource) -> tuple[AbsentTensor, ...]:
        """Return the tensors without a slot."""
        return left_out(source)

    def refusals(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> tuple[str, ...]:
        """Return what vLLM and, of mixtures, transformers would refuse."""
        packed = packed_slots(formats)
        names = {slot: formats[slot].name if slot in packed else "floats" for slot in formats}
        said = [mixed_fusions(names), fused_experts(formats, "AWQ")]
        group = written_group(formats[slot] for slot in packed)
        if group not in _GROUPS:
            said.append(f"vLLM's kernels on CUDA have groups of 32, 64 and 128, not {group}.")
        return tuple(filter(None, said))

    def write(self, job: Job) -> None:
        """Write the folder."""
        source, formats = job.source, job.planned.formats
        config = _config(source, formats)

        def announce(slot: Slot, module: str) -> list[Part]:
            return _parts(module, formats[slot], source.info(slot).matrix_shape)

        def make(_: Slot, __: str, tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
            return _arrays(tensor)

        write_packed(
            job, {"dtype": served_dtype(source), "quantization_config": config}, announce, make
        )


def awq(settings: ExportSettings) -> AwqTarget:
    """Return the target; raises UsageError for a setting it has not."""
    return AwqTarget(dtype_of(settings))


def _config(source: ModelSource, formats: Mapping[Slot, NumberFormat]) -> dict[str, Any]:
    group = written_group(formats[slot] for slot in packed_slots(formats))
    return {
        "quant_method": METHOD,
        "bits": _BITS,
        "group_size": group or -1,
        "zero_point": True,
        "version": GEMM,
        "modules_to_not_convert": list(plain_modules(source, formats)),
    }


def _parts(module: str, spec: NumberFormat, shape: tuple[int, int]) -> list[Part]:
    outputs, inputs = shape
    assert isinstance(spec, QuantSpec)
    groups = spec.scale_shape(shape)[1]
    return [
        Part(f"{module}.qweight", "I32", (inputs, outputs // _RUN)),
        Part(f"{module}.qzeros", "I32", (groups, outputs // _RUN)),
        Part(f"{module}.scales", "F16", (groups, outputs)),
    ]


def _arrays(tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
    assert tensor.scales is not None
    assert tensor.zeros is not None
    codes = unpack(tensor.codes, _BITS, tensor.shape[1])
    yield "qweight", pack_awq(np.ascontiguousarray(codes.T))
    yield "qzeros", pack_awq(np.ascontiguousarray(tensor.zeros.T))
    yield "scales", tensor.scales.T
