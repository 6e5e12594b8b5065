"""What GPTQ and AWQ share: one group size, one kind of zero point, and float16 scales."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fewbit.export.compressed_scheme import candidates
from fewbit.export.layers import exceeds_float16, is_table
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import Granularity, NumberFormat, QuantSpec, ScaleType
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource

WORD = 32
"""Codes of one word or zero points of one run; rows and columns come in multiples of it."""


def served_dtype(source: ModelSource) -> str:
    """Return the type that config.json names: that of the scales, where the model runs in it."""
    return "bfloat16" if exceeds_float16(source) else "float16"


def dtype_note(source: ModelSource) -> str:
    """Say which type the model is to run in, and what that does to the scales."""
    if exceeds_float16(source):
        return (
            "config.json names bfloat16, because the activations of Gemma exceed float16; runtimes "
            "that convert the fp16 scales to the model's type round them."
        )
    return "config.json names float16, the type of the scales."


def integers_near(form: NumberFormat) -> QuantSpec | None:
    """Return the integers that a matrix is or becomes; None for floats of all kinds."""
    if form in FLOATS:
        return None
    near = candidates(form)[0]
    return replace(near, scale_type=ScaleType.F16) if isinstance(near, QuantSpec) else None


def layer_integers(source: ModelSource) -> tuple[QuantSpec, ...]:
    """Return the integers of every matrix of the decoder layers that is not kept in floats."""
    slots = (slot for slot in source.slots if not is_vector(slot) and not is_table(slot))
    found = (integers_near(source.info(slot).format) for slot in slots)
    return tuple(spec for spec in found if spec is not None)


def common_group(specs: Iterable[QuantSpec]) -> int | None:
    """Return the smallest group, which the others are multiples of; None where all are rows."""
    return min((s.group_size for s in specs if s.group_size is not None), default=None)


def written_group(packed: Iterable[NumberFormat]) -> int | None:
    """Return the one group size of packed matrices; None for rows, or where there are none."""
    return next((form.group_size for form in packed if isinstance(form, QuantSpec)), None)


def in_groups(spec: QuantSpec, group: int | None) -> QuantSpec:
    """Return a format with scales for groups of that size, or for rows."""
    where = Granularity.ROW if group is None else Granularity.GROUP
    return replace(spec, granularity=where, group_size=group)
