"""The manifest of an export: that of the artefact it was made from, as far as it has one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from fewbit import __version__
from fewbit.checkpoint.checkpoint import content_digest
from fewbit.export.plan import PlannedExport, keeps_kv_scales
from fewbit.formats.registry import is_integer, parse_format
from fewbit.model.binding import is_vector
from fewbit.model.facts import quantized_formats
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor, ExportedTensor, ExportRecord, UnusedTensor
from fewbit.records.manifest import (
    Change,
    Manifest,
    SourceFacts,
    TensorEntry,
)
from fewbit.records.recipe import Recipe

METHOD = "rtn"
"""How codes are found where a format is not held: round to nearest."""


@dataclass(frozen=True)
class Written:
    """A tensor that was given to the writer."""

    bytes: int
    sha256: str
    """Of codes, scales and zero points as the export's format has them, in the Program's order of
    rows."""
    relative_error: float


def manifest_of(planned: PlannedExport, written: Mapping[Slot, Written]) -> Manifest:
    """Return the manifest.

    Where the source is an artefact with a manifest, that is continued: its source, recipe,
    calibration, transforms and tuning stand, and each tensor's entry tells how it was made. Errors
    of tensors that changed are then bounds, by the triangle inequality over both steps.
    """
    source, record, before = planned.source, planned.record, planned.before
    known = {} if before is None else {entry.slot: entry for entry in before.tensors if entry.slot}
    entries = [
        _entry(source, tensor, written[tensor.slot], known.get(tensor.slot))
        for tensor in record.tensors
    ]
    entries += [_unused(source, tensor) for tensor in record.unused]
    entries += [_absent(source, tensor) for tensor in record.absent]
    size = planned.layout.beside + sum(entry.bytes for entry in entries)
    weights = sum(math.prod(tensor.shape) for tensor in record.tensors)
    changed = {t.slot: written[t.slot].relative_error for t in record.changed}
    about: dict[str, Any] = {
        "fewbit_version": __version__,
        "container": record.target,
        "tensors": tuple(entries),
        "export": ExportRecord(plan=record, errors=changed),
        "kv_scales": source.kv_scales if keeps_kv_scales(planned.target) else None,
        "promised_bytes": record.bytes,
        "tensor_bytes": size,
        "bits_per_weight": 8 * size / weights,
    }
    if before is None:
        return Manifest(
            source=_source_facts(source, entries),
            recipe=Recipe(name=f"export-{record.target}", method=METHOD, rules=()),
            source_bits_per_weight=8 * record.source_bytes / weights,
            **about,
        )
    renamed = _Renamed(before, {tensor.slot: tensor.stored for tensor in record.tensors})
    changes = {
        "transforms": renamed.changes(before.transforms),
        "tuning": renamed.changes(before.tuning),
    }
    return structs.replace(before, **about, **changes)


class _Renamed:
    """Names of the export for names of the artefact, by way of the slots."""

    def __init__(self, before: Manifest, stored: Mapping[Slot, str]) -> None:
        self._stored = stored
        self._slots: dict[str, list[Slot]] = {}
        for entry in before.tensors:
            if entry.slot in stored:
                self._slots.setdefault(entry.stored, []).append(entry.slot)

    def changes(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        return tuple(structs.replace(change, tensors=self._names(change)) for change in changes)

    def _names(self, change: Change) -> tuple[str, ...]:
        slots = (slot for name in change.tensors for slot in self._slots.get(name, ()))
        return tuple(dict.fromkeys(self._stored[slot] for slot in slots))


def _entry(
    source: ModelSource, tensor: ExportedTensor, written: Written, before: TensorEntry | None
) -> TensorEntry:
    """Return a tensor's entry: a new one, or the artefact's brought up to date."""
    stored = {
        "stored": tensor.stored,
        "format": tensor.format,
        "bits_per_weight": 8 * written.bytes / math.prod(tensor.shape),
        "bytes": written.bytes,
        "sha256": written.sha256,
        **_activations(source, tensor),
    }
    if before is None:
        return TensorEntry(
            source=tensor.source,
            slot=tensor.slot,
            shape=tensor.shape,
            source_format=tensor.source_format,
            method="" if tensor.exact else METHOD,
            status="quantized" if _requantized(tensor) else "kept",
            reason=tensor.reason,
            relative_error=written.relative_error,
            source_sha256=source.checkpoint.digest(tensor.source),
            **stored,
        )
    if tensor.exact:
        return structs.replace(before, **stored)
    remark = (
        f"the export turned {tensor.source_format} into {tensor.format}; the relative error is a "
        "bound over both steps"
    )
    first, second = before.relative_error, written.relative_error
    return structs.replace(
        before,
        relative_error=first + second * (1 + first),
        remarks=(*before.remarks, remark),
        **stored,
    )


def _requantized(tensor: ExportedTensor) -> bool:
    return not tensor.exact and is_integer(parse_format(tensor.format))


def _activations(source: ModelSource, tensor: ExportedTensor) -> dict[str, Any]:
    """Return how a layer's input is rounded, where the export's weights are integers."""
    form = parse_format(tensor.format)
    if is_vector(tensor.slot) or not is_integer(form):
        return {"activations": None, "input_scale": None}
    return {
        "activations": source.activations(tensor.slot),
        "input_scale": source.input_scale(tensor.slot),
    }


def _unused(source: ModelSource, tensor: UnusedTensor) -> TensorEntry:
    digest = source.checkpoint.digest(tensor.source)
    return TensorEntry(
        source=tensor.source,
        stored=tensor.source,
        slot="",
        shape=tensor.shape,
        source_format=tensor.format,
        format=tensor.format,
        bits_per_weight=8 * tensor.bytes / math.prod(tensor.shape),
        bytes=tensor.bytes,
        method="",
        status="kept",
        reason="the Program does not use it",
        source_sha256=digest,
        sha256=digest,
    )


def _absent(source: ModelSource, tensor: AbsentTensor) -> TensorEntry:
    info = source.checkpoint.tensors[tensor.source]
    return TensorEntry(
        source=tensor.source,
        stored="",
        slot="",
        shape=info.shape,
        source_format=info.format.name,
        format=info.format.name,
        bits_per_weight=0.0,
        bytes=0,
        method="",
        status="absent",
        reason=tensor.reason,
        source_sha256=source.checkpoint.digest(tensor.source),
        sha256="",
    )


def _source_facts(source: ModelSource, entries: Sequence[TensorEntry]) -> SourceFacts:
    digests = {entry.source: entry.source_sha256 for entry in entries}
    infos = source.checkpoint.tensors.values()
    return SourceFacts(
        path=str(source.path),
        sha256=content_digest(source.checkpoint, digests),
        formats=dict(Counter(info.format.name for info in infos)),
        quantized=bool(quantized_formats(source)),
    )
