"""The plan of an export, from headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.checkpoint.compressed_config import METHOD
from fewbit.checkpoint.own_manifest import own_manifest
from fewbit.errors import UnsupportedError, UsageError
from fewbit.export.target import Holding, Layout, Target
from fewbit.formats.spec import NumberFormat
from fewbit.model.huggingface import from_huggingface
from fewbit.model.weights import ModelSource
from fewbit.model.written import same_program, written_config
from fewbit.program import Slot
from fewbit.records.export import ExportedTensor, ExportPlan
from fewbit.records.manifest import Manifest


@dataclass(frozen=True)
class PlannedExport:
    """A source, where it goes, and what becomes of each slot."""

    source: ModelSource
    target: Target
    layout: Layout
    record: ExportPlan
    before: Manifest | None = None
    """The source's own, which the export's continues; None where it has none."""

    @property
    def holdings(self) -> Mapping[Slot, Holding]:
        """Of every slot, in the Program's order."""
        return self.layout.holdings

    @property
    def formats(self) -> dict[Slot, NumberFormat]:
        """The format of every slot in the export."""
        return self.layout.formats


def plan_export(source: ModelSource, target: Target) -> PlannedExport:
    """Decide every tensor.

    Raises:
        UnsupportedError: the target has no place for a tensor, for the configuration, or for an
            op that the model needs.
        BadFileError: the source's manifest is damaged.
    """
    _require_no_op(source, target)
    if target.container == "folder":
        _require_plain(source)
    layout, found = target.layout(source), own_manifest(source.checkpoint)
    stale = (f"{found.stale}. It is not continued.",) if found.stale else ()
    tensors = tuple(_exported(source, slot, holding) for slot, holding in layout.holdings.items())
    record = ExportPlan(
        target=target.name,
        source=str(source.path),
        tensors=tensors,
        absent=target.absent(source),
        unused=layout.unused,
        source_bytes=sum(info.nbytes for info in source.checkpoint.tensors.values()),
        bytes=layout.bytes,
        notes=(*source.checkpoint.notes, *stale, *layout.notes, *_scales_left_out(source, target)),
        refusals=target.refusals(source, layout.formats),
    )
    return PlannedExport(source, target, layout, record, found.manifest)


def keeps_kv_scales(target: Target) -> bool:
    """Return whether a target has a place for static scales of keys and values."""
    return target.name == METHOD


def _scales_left_out(source: ModelSource, target: Target) -> tuple[str, ...]:
    if source.kv_scales is None or keeps_kv_scales(target):
        return ()
    return (
        f"The static scales of keys and values ({source.kv_scales.form.value}) are left out: "
        f"{target.name} has no place for them, {METHOD} has.",
    )


def _require_plain(source: ModelSource) -> None:
    """Refuse a model that config.json alone does not describe, such as one with rotations inside.

    Raises:
        UnsupportedError: other runtimes would compute something else.
    """
    if not same_program(from_huggingface(written_config(source)), source.config):
        raise UnsupportedError(
            f"{source.path} computes what a plain config.json cannot say (rotations inside the "
            "MLP, for example), so other runtimes would compute something else; quantize without "
            "that transform to export."
        )


def _require_no_op(source: ModelSource, target: Target) -> None:
    """Refuse a model with an op that no architecture of others has."""
    if source.config.mlp_rotation:
        raise UnsupportedError(
            f"The down projections of {source.path} read inputs that an op rotates, in blocks of "
            f"{source.config.mlp_rotation}, which {target.name} has no place for; quantize the "
            "original model without rotate-mlp."
        )


def require_held(planned: PlannedExport) -> None:
    """Refuse a plan that changes formats, which the user has not asked for.

    Raises:
        UsageError: the message counts the tensors and names their formats and the cost.
    """
    changed = planned.record.changed
    if not changed:
        return
    pairs = sorted({f"{t.source_format} to {t.format}" for t in changed})
    worst = max(t.expected_error for t in changed)
    raise UsageError(
        f"{planned.target.name} does not hold {len(changed)} of {len(planned.record.tensors)} "
        f"tensors in the formats they have ({', '.join(pairs)}; an expected relative error of up "
        f"to {worst:.2g}); look at --plan, and give --requantize where that is what you want."
    )


def _exported(source: ModelSource, slot: Slot, holding: Holding) -> ExportedTensor:
    info = source.info(slot)
    return ExportedTensor(
        slot=slot,
        source=info.name,
        stored=holding.stored,
        shape=info.shape,
        source_format=info.format.name,
        format=holding.format.name,
        bytes=holding.bytes,
        reason=holding.reason,
        expected_error=holding.expected_error,
    )
