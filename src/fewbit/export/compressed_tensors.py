"""Folders of compressed-tensors, for vLLM, SGLang and transformers.

What is stored is described in `checkpoint/compressed_tensors.py`, which reads it back. Integers go
into pack-quantized, int8 by row whose inputs are int8 too into int-quantized (W8A8), fp8 into
float-quantized and MXFP4 into mxfp4-pack-quantized. Scales keep their fp16: config.json names
float16 for packed integers, since vLLM converts their scales to the model's type, and bf16 would
round them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from fewbit.checkpoint.compressed_config import METHOD
from fewbit.checkpoint.safetensors_write import Part
from fewbit.export.compressed_kept import kept_limits, kept_scheme, kept_tensors
from fewbit.export.compressed_parts import content_of, parts_of
from fewbit.export.compressed_scheme import (
    PACKED,
    Scheme,
    candidates,
    expert_limits,
    runtime_limits,
    scheme_of,
)
from fewbit.export.folder import left_out
from fewbit.export.layers import (
    exceeds_float16,
    float_holding,
    is_table,
    mixed_fusions,
    module_of,
    packed_slots,
    patterns,
    plain_modules,
    weight_only_notes,
)
from fewbit.export.packed import as_stored, write_packed
from fewbit.export.sglang import compressed_limits
from fewbit.export.target import ExportSettings, Holding, Layout, dtype_of, held
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.families import expert_of
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor
from fewbit.records.kernels import Activations

if TYPE_CHECKING:
    from fewbit.export.job import Job

_MIXED = "mixed-precision"


@dataclass(frozen=True)
class CompressedTensorsTarget:
    """Reads with vLLM, SGLang and transformers."""

    dtype: NumberFormat
    """What tables become."""
    name: str = METHOD
    container: Literal["folder"] = "folder"

    def layout(self, source: ModelSource) -> Layout:
        """Return a matrix's own integers or fp8, others in the nearest; floats as they are.

        The notes say which type the model is to run in, and which roundings of inputs have no name.
        """
        holdings = {slot: self._holding(source, slot) for slot in source.slots}
        schemes = self._schemes(source, {slot: held.format for slot, held in holdings.items()})
        unnamed = [slot for slot, scheme in schemes.items() if scheme.inputs is Activations.BF16]
        notes = (_dtype_note(source, schemes), *weight_only_notes(source, unnamed))
        scales = kept_tensors(source.kv_scales).values()
        return Layout(holdings=holdings, notes=notes, beside=sum(s.nbytes for s in scales))

    def _holding(self, source: ModelSource, slot: Slot) -> Holding:
        form = source.info(slot).format
        if is_vector(slot) or is_table(slot) or form in FLOATS:
            return float_holding(source, slot, self.dtype)
        holding = held(source, slot, source.huggingface_name(slot), candidates(form))
        scheme = scheme_of(holding.format, source.activations(slot), source.input_scale(slot))
        return as_stored(holding, parts_of("", scheme, source.info(slot).matrix_shape))

    def absent(self, source: ModelSource) -> tuple[AbsentTensor, ...]:
        """Return the tensors without a slot."""
        return left_out(source)

    def refusals(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> tuple[str, ...]:
        """Return what vLLM, SGLang and, of mixtures, transformers would refuse."""
        schemes = self._schemes(source, formats)
        named = {slot: schemes[slot].title if slot in schemes else "floats" for slot in formats}
        mixed = mixed_fusions(named)
        distinct = tuple(dict.fromkeys(scheme.shared for scheme in schemes.values()))
        limits = [limit for scheme in distinct for limit in runtime_limits(scheme)]
        limits += kept_limits(source.kv_scales)
        limits += compressed_limits(distinct, mixture=source.config.mixture is not None)
        limits += expert_limits([schemes[s] for s in schemes if expert_of(s) is not None])
        return tuple(dict.fromkeys([mixed, *limits] if mixed else limits))

    def write(self, job: Job) -> None:
        """Write the folder."""
        source, formats = job.source, job.planned.formats
        schemes = self._schemes(source, formats)
        quantization = _config(source, formats, schemes)
        changes = {"dtype": _dtype(source, schemes), "quantization_config": quantization}

        def announce(slot: Slot, module: str) -> list[Part]:
            return parts_of(module, schemes[slot], source.info(slot).matrix_shape)

        def make(slot: Slot, _: str, tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
            return content_of(tensor, schemes[slot])

        write_packed(job, changes, announce, make, extras=kept_tensors(source.kv_scales))

    def _schemes(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> dict[Slot, Scheme]:
        return {
            slot: scheme_of(formats[slot], source.activations(slot), source.input_scale(slot))
            for slot in packed_slots(formats)
        }


def compressed_tensors(settings: ExportSettings) -> CompressedTensorsTarget:
    """Return the target.

    Raises:
        UsageError: a setting that it does not have.
    """
    return CompressedTensorsTarget(dtype_of(settings))


def _dtype(source: ModelSource, schemes: Mapping[Slot, Scheme]) -> str:
    """Return the type that the model is to run in.

    vLLM converts the scales of packed weights to it, but has those of W8A8 and fp8 in float32; and
    its kernel of W8A8 on CPUs with AMX has no float16.
    """
    if exceeds_float16(source):
        return "bfloat16"
    return "float16" if any(s.container == PACKED for s in schemes.values()) else "bfloat16"


def _dtype_note(source: ModelSource, schemes: Mapping[Slot, Scheme]) -> str:
    dtype = _dtype(source, schemes)
    if dtype == "float16":
        return (
            "config.json names float16, which is also the type of packed weights' scales in vLLM."
        )
    if any(scheme.container == PACKED for scheme in schemes.values()):
        return (
            "config.json names bfloat16, because the activations of Gemma exceed float16; vLLM "
            "then rounds the fp16 scales to bfloat16."
        )
    return "config.json names bfloat16; vLLM has the scales of these weights in float32."


def _config(
    source: ModelSource, formats: Mapping[Slot, NumberFormat], schemes: Mapping[Slot, Scheme]
) -> dict[str, Any]:
    """Return the quantization_config: one group for each scheme."""
    groups: dict[Scheme, list[str]] = {}
    for slot, scheme in schemes.items():
        groups.setdefault(scheme.shared, []).append(module_of(source.huggingface_name(slot)))
    plain = plain_modules(source, formats)
    everything = [*plain, *(name for names in groups.values() for name in names)]
    containers = {scheme.container for scheme in groups}
    return {
        "quant_method": METHOD,
        "format": containers.pop() if len(containers) == 1 else _MIXED,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": kept_scheme(source.kv_scales),
        "ignore": list(patterns(plain, everything)),
        "config_groups": {
            f"group_{number}": {
                "targets": ["Linear"] if len(groups) == 1 else list(patterns(names, everything)),
                **scheme.described,
            }
            for number, (scheme, names) in enumerate(groups.items())
        },
    }
