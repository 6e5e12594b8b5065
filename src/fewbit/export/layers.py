"""What the targets for servers share: modules, tables, and layers that are run as one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.safetensors_write import Part, plain_part
from fewbit.export.hf import plain_holding
from fewbit.export.target import Holding
from fewbit.formats.registry import FLOATS, is_integer
from fewbit.formats.spec import NumberFormat
from fewbit.model.binding import is_vector
from fewbit.model.families import FAMILIES, expert_of
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.kernels import Activations

FUSED = (("q", "k", "v"), ("gate", "up"))
"""Sites whose matrices vLLM and SGLang multiply as one."""

_TABLES = ("embed.weight", "head.weight")
_TABLE_REASON = "tables are floats here: most runtimes refuse quantized ones"


_ROUNDINGS: Mapping[Activations, str] = MappingProxyType(
    {
        Activations.INT8: "int8 per 32",
        Activations.TOKEN: "int8 per token",
        Activations.STATIC: "int8 with a static scale",
    }
)


def exceeds_float16(source: ModelSource) -> bool:
    """Return whether a model is to run in bfloat16, because float16 is too small for it: Gemma."""
    return FAMILIES[source.config.family].gemma


def weight_only_notes(source: ModelSource, unnamed: Iterable[Slot]) -> tuple[str, ...]:
    """Say which layers lose the rounding of their inputs; those of float weights have none.

    Args:
        source: the model.
        unnamed: packed matrices whose rounding the target has no name for.
    """
    rounded = (slot for slot in unnamed if is_integer(source.info(slot).format))
    counts = Counter(source.activations(slot) for slot in rounded)
    return tuple(
        f"{counts[kind]} layers round their inputs to {how} here; that has no name there, so they "
        "are written as weight-only."
        for kind, how in _ROUNDINGS.items()
        if counts[kind]
    )


def module_of(stored: str) -> str:
    """Return the module of a stored weight: the name without `.weight`."""
    return stored.removesuffix(".weight")


def is_table(slot: Slot) -> bool:
    """Return whether a slot is the input or the output table."""
    return slot in _TABLES


def float_holding(source: ModelSource, slot: Slot, dtype: NumberFormat) -> Holding:
    """Return how a folder holds a vector, a table or a float matrix; integers become `dtype`."""
    holding = plain_holding(source, slot, dtype)
    if holding.reason and is_table(slot):
        return replace(holding, reason=_TABLE_REASON)
    return holding


def float_part(source: ModelSource, slot: Slot, holding: Holding) -> Part:
    """Return the entry of a tensor that is stored as floats."""
    rows, columns = source.info(slot).matrix_shape
    shape = (columns,) if is_vector(slot) else (rows, columns)
    return plain_part(TensorInfo(holding.stored, holding.format, shape, holding.bytes))


def fusions(slots: Iterable[Slot]) -> tuple[tuple[Slot, ...], ...]:
    """Return the slots that are multiplied as one, an expert's among them."""
    present = set(slots)
    found = []
    for slot in slots:
        stem, site, kind = _cut(slot)
        for sites in FUSED:
            members = tuple(f"{stem}.{name}.{kind}" for name in sites)
            if kind == "weight" and site == sites[0] and present.issuperset(members):
                found.append(members)
    return tuple(found)


def mixed_fusions(formats: Mapping[Slot, object]) -> str:
    """Say which layers that are run as one differ in what they have; "" where none do."""
    mixed = [m for m in fusions(tuple(formats)) if len({formats[slot] for slot in m}) > 1]
    if not mixed:
        return ""
    first = ", ".join(f"{slot} {formats[slot]}" for slot in mixed[0])
    return (
        f"vLLM and SGLang run q, k and v as one matrix, and gate and up, and refuse members of "
        f"different formats: {len(mixed)} such ({first})."
    )


def fused_experts(formats: Mapping[Slot, NumberFormat], method: str) -> str:
    """Say that transformers does not read packed experts by some method; "" where there are none.

    It has the experts of a layer in one parameter since version 5, and the loaders of these methods
    replace linear layers alone.
    """
    if all(expert_of(slot) is None for slot in packed_slots(formats)):
        return ""
    return (
        f"transformers 5.24, as its source reads (not run there), does not read the packed experts "
        f"of a mixture by {method}: it has them in one parameter; compressed-tensors it reads."
    )


def packed_slots(formats: Mapping[Slot, NumberFormat]) -> tuple[Slot, ...]:
    """Return the matrices that are not floats."""
    return tuple(s for s, form in formats.items() if form not in FLOATS and not is_vector(s))


def plain_modules(source: ModelSource, formats: Mapping[Slot, NumberFormat]) -> tuple[str, ...]:
    """Return the linear modules that stay floats, an output table that is shared among them."""
    slots = [s for s, form in formats.items() if form in FLOATS and not is_vector(s)]
    names = [module_of(source.huggingface_name(s)) for s in slots if s != "embed.weight"]
    head = module_of(source.huggingface_name("head.weight"))
    return tuple(dict.fromkeys([head, *names] if source.config.tied else names))


def patterns(chosen: Sequence[str], everything: Iterable[str]) -> tuple[str, ...]:
    """Return names, with one pattern for those that differ in their numbers alone.

    A pattern stands only for modules that are all chosen. It has at most two numbers (layer and
    expert), each `[0-9]+`.
    """
    families: dict[str, list[str]] = {}
    for name in everything:
        families.setdefault(_family(name), []).append(name)
    taken = set(chosen)
    named: dict[str, None] = {}
    for name in chosen:
        family = families[_family(name)]
        whole = len(family) > 1 and taken.issuperset(family)
        named[f"re:^{_family(name)}$" if whole else name] = None
    return tuple(named)


def _family(name: str) -> str:
    return re.sub(r"(?<=\\\.)[0-9]+(?=\\\.)", "[0-9]+", re.escape(name))


def _cut(slot: Slot) -> tuple[str, str, str]:
    *stem, site, kind = slot.split(".")
    return ".".join(stem), site, kind
