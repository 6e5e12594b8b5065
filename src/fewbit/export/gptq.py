"""GPTQ folders, for GPTQModel, vLLM, SGLang and transformers; version 1 or 2.

What is stored is described in `checkpoint/gptq.py`, which reads it back. An order of columns that
the source has is kept (`desc_act`). There is one group size,
the smallest of the model's (a longer group's scale is repeated), and zero points where any layer
has them. Layers of other bits, and layers that stay floats, are named under `dynamic`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.gptq import METHOD, V1, V2
from fewbit.checkpoint.safetensors_write import Part
from fewbit.errors import UnsupportedError
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
    module_of,
    packed_slots,
    plain_modules,
    weight_only_notes,
)
from fewbit.export.packed import as_stored, write_packed
from fewbit.export.target import ExportSettings, Holding, Layout, dtype_of, held
from fewbit.formats.pack import take_columns
from fewbit.formats.recode import keeps_codes
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import NumberFormat, QuantSpec, QuantTensor, is_ordered
from fewbit.formats.words import dense_words, pack_across, to_words
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor

if TYPE_CHECKING:
    from fewbit.export.job import Job

_BITS = (2, 3, 4, 8)
_FUSED_NAMES = {
    ("q_proj", "k_proj", "v_proj"): "qkv_proj",
    ("gate_proj", "up_proj"): "gate_up_proj",
}
"""What vLLM and SGLang call modules that they run as one, and match patterns against."""


@dataclass(frozen=True)
class GptqTarget:
    """Reads with GPTQModel, vLLM, SGLang and transformers."""

    dtype: NumberFormat
    """What tables and other formats become."""
    label: str
    """The version, by the name that files have for it."""
    container: Literal["folder"] = "folder"

    @property
    def name(self) -> str:
        """`gptq` or `gptq_v2`."""
        return self.label

    def layout(self, source: ModelSource) -> Layout:
        """Return integers of 2, 3, 4 or 8 bits in the model's one group size; others as floats."""
        layers = layer_integers(source)
        holdings = {slot: self._holding(source, slot, layers) for slot in source.slots}
        formats = {slot: holding.format for slot, holding in holdings.items()}
        notes = [dtype_note(source), *weight_only_notes(source, packed_slots(formats))]
        forms = formats.values()
        if self.label == V1 and any(isinstance(f, QuantSpec) and not f.symmetric for f in forms):
            notes.append(f"{V1} has no zero point of 0: the export stops at one; {V2} has it.")
        return Layout(holdings=holdings, notes=tuple(notes))

    def _holding(self, source: ModelSource, slot: Slot, layers: tuple[QuantSpec, ...]) -> Holding:
        info, stored = source.info(slot), source.huggingface_name(slot)
        if is_vector(slot) or is_table(slot):
            return float_holding(source, slot, self.dtype)
        near = integers_near(info.format)
        if near is None or info.matrix_shape[1] % WORD:
            kept = info.format if info.format in FLOATS else self.dtype
            return held(source, slot, stored, [kept])
        grid = _grid(near, layers)
        if is_ordered(info.format):
            movable = keeps_codes(grid.laid_out, info.format.laid_out, info.matrix_shape[1])
            grid = replace(grid, ordered=movable)
        holding = held(source, slot, stored, [grid])
        return as_stored(holding, _parts("", holding.format, info.matrix_shape))

    def absent(self, source: ModelSource) -> tuple[AbsentTensor, ...]:
        """Return the tensors without a slot."""
        return left_out(source)

    def refusals(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> tuple[str, ...]:
        """Return what vLLM, GPTQModel and, of mixtures, transformers would refuse."""
        said = (mixed_fusions(_names(formats)), *_limits(source, formats))
        return tuple(filter(None, (*said, fused_experts(formats, "GPTQ"))))

    def write(self, job: Job) -> None:
        """Write the folder.

        Raises:
            UnsupportedError: version 1, and a zero point is 0, which it cannot say.
        """
        source, formats = job.source, job.planned.formats
        config = _config(source, formats, self.label)

        def announce(slot: Slot, module: str) -> list[Part]:
            return _parts(module, formats[slot], source.info(slot).matrix_shape)

        def make(_: Slot, module: str, tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
            return _arrays(tensor, module, self.label)

        write_packed(
            job, {"dtype": served_dtype(source), "quantization_config": config}, announce, make
        )


def gptq(settings: ExportSettings) -> GptqTarget:
    """Return the target that writes version 1; raises UsageError for a setting it has not."""
    return GptqTarget(dtype_of(settings), V1)


def gptq_v2(settings: ExportSettings) -> GptqTarget:
    """Return the target that writes version 2; raises UsageError for a setting it has not."""
    return GptqTarget(dtype_of(settings), V2)


def _grid(near: QuantSpec, layers: tuple[QuantSpec, ...]) -> QuantSpec:
    """Return integers as this model's GPTQ has them; 5 to 7 bits go into symmetric 8."""
    symmetric = all(spec.symmetric or spec.bits not in _BITS for spec in layers)
    bits = near.bits if near.bits in _BITS else 8
    return in_groups(replace(near, bits=bits, symmetric=symmetric), common_group(layers))


def _names(formats: Mapping[Slot, NumberFormat]) -> dict[Slot, str]:
    return {s: "floats" if form in FLOATS else form.name for s, form in formats.items()}


def _limits(source: ModelSource, formats: Mapping[Slot, NumberFormat]) -> Iterator[str]:
    slots = packed_slots(formats)
    specs = dict.fromkeys(formats[slot] for slot in slots)
    wrong = [s.name for s in specs if isinstance(s, QuantSpec) and _not_in_vllm(s)]
    if wrong:
        yield (
            f"vLLM runs GPTQ of 4 and 8 bits without zero points, not {', '.join(wrong)}; "
            "compressed-tensors holds these too."
        )
    ragged = [source.info(s).name for s in slots if source.info(s).matrix_shape[0] % WORD]
    if ragged:
        yield (
            f"GPTQModel wants outputs in multiples of {WORD}, unlike {len(ragged)} of these "
            f"({ragged[0]})."
        )


def _not_in_vllm(spec: QuantSpec) -> bool:
    return spec.bits not in (4, 8) or not spec.symmetric


def _config(
    source: ModelSource, formats: Mapping[Slot, NumberFormat], label: str
) -> dict[str, Any]:
    """Return the quantization_config; the bits of most layers are those of the model."""
    specs = {slot: formats[slot] for slot in packed_slots(formats)}
    counts = Counter(spec.bits for spec in specs.values() if isinstance(spec, QuantSpec))
    bits = counts.most_common(1)[0][0] if counts else 4
    first = next(iter(specs.values()), None)
    return {
        "quant_method": METHOD,
        "checkpoint_format": label,
        "bits": bits,
        "group_size": written_group(specs.values()) or -1,
        "sym": not isinstance(first, QuantSpec) or first.symmetric,
        "desc_act": any(map(is_ordered, specs.values())),
        "lm_head": False,
        "pack_dtype": "int32",
        "dynamic": _dynamic(source, formats, bits),
    }


def _dynamic(
    source: ModelSource, formats: Mapping[Slot, NumberFormat], bits: int
) -> dict[str, dict[str, int]] | None:
    """Return patterns of the modules that differ from the model: in bits, or by being floats."""
    others: dict[int, list[str]] = {}
    for slot in packed_slots(formats):
        spec = formats[slot]
        assert isinstance(spec, QuantSpec)
        if spec.bits != bits:
            others.setdefault(spec.bits, []).append(module_of(source.huggingface_name(slot)))
    kept = [name for name in plain_modules(source, formats) if "." in name]
    rules: dict[str, dict[str, int]] = {_pattern("-", name): {} for name in _with_fused(kept)}
    for width, names in others.items():
        rules |= {_pattern("+", name): {"bits": width} for name in _with_fused(names)}
    return rules or None


def _with_fused(names: Iterable[str]) -> Iterator[str]:
    """Yield names, and those of modules that are run as one where all of it is among them."""
    present = tuple(names)
    yield from present
    for members, fused in _FUSED_NAMES.items():
        for name in present:
            stem, _, last = name.rpartition(".")
            if last == members[0] and {f"{stem}.{m}" for m in members} <= set(present):
                yield f"{stem}.{fused}"


def _pattern(sign: str, name: str) -> str:
    return f"{sign}:^{re.escape(name)}$"


def _parts(module: str, spec: NumberFormat, shape: tuple[int, int]) -> list[Part]:
    outputs, inputs = shape
    assert isinstance(spec, QuantSpec)
    groups = spec.scale_shape(shape)[1]
    return [
        Part(f"{module}.qweight", "I32", (dense_words(inputs, spec.bits), outputs)),
        Part(f"{module}.qzeros", "I32", (groups, dense_words(outputs, spec.bits))),
        Part(f"{module}.scales", "F16", (groups, outputs)),
        Part(f"{module}.g_idx", "I32", (inputs,)),
    ]


def _arrays(tensor: QuantTensor, module: str, label: str) -> Iterator[tuple[str, NDArray[Any]]]:
    spec, inputs = tensor.spec, tensor.shape[1]
    assert isinstance(spec, QuantSpec)
    assert tensor.scales is not None
    groups = np.arange(inputs, dtype=np.int32) // np.int32(spec.group_size or inputs)
    codes = tensor.codes
    if tensor.order is not None:  # both are stored by the matrix's own columns
        codes = take_columns(codes, spec.bits, np.argsort(tensor.order))
        groups = groups[np.argsort(tensor.order)]
    yield "qweight", to_words(codes, spec.bits, inputs).T
    yield "qzeros", pack_across(_stored_zeros(tensor, spec, module, label), spec.bits)
    yield "scales", tensor.scales.T
    yield "g_idx", groups


def _stored_zeros(
    tensor: QuantTensor, spec: QuantSpec, module: str, label: str
) -> NDArray[np.uint8]:
    """Return the zero points as the version stores them, uint8 [groups, outputs]."""
    assert tensor.scales is not None
    zeros = tensor.zeros
    if zeros is None:
        zeros = np.full(tensor.scales.shape, -spec.low, np.uint8)
    zeros = np.ascontiguousarray(zeros.T)
    if label == V2:
        return zeros
    if not zeros.all():
        raise UnsupportedError(
            f"{module} has {int((zeros == 0).sum())} zero points of 0, which version 1 of GPTQ "
            f"stores as -1 and its readers take for something else; export to {V2} instead."
        )
    return zeros - np.uint8(1)
