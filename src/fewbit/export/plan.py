"""The plan of an export, from headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.errors import UsageError
from fewbit.export.target import Holding, Target
from fewbit.formats.spec import NumberFormat
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import ExportedTensor, ExportPlan


@dataclass(frozen=True)
class PlannedExport:
    """A source, where it goes, and what becomes of each slot."""

    source: ModelSource
    target: Target
    holdings: Mapping[Slot, Holding]
    """Of every slot, in the Program's order."""
    record: ExportPlan

    @property
    def formats(self) -> dict[Slot, NumberFormat]:
        """The format of every slot in the export."""
        return {slot: holding.format for slot, holding in self.holdings.items()}


def plan_export(source: ModelSource, target: Target) -> PlannedExport:
    """Decide every tensor.

    Raises:
        UnsupportedError: the target has no place for a tensor or for the configuration.
    """
    holdings = {slot: target.holding(source, slot) for slot in source.slots}
    tensors = tuple(_exported(source, slot, holding) for slot, holding in holdings.items())
    formats = {slot: holding.format for slot, holding in holdings.items()}
    record = ExportPlan(
        target=target.name,
        source=str(source.path),
        tensors=tensors,
        absent=target.absent(source),
        source_bytes=sum(info.nbytes for info in source.checkpoint.tensors.values()),
        bytes=sum(holding.bytes for holding in holdings.values()),
        notes=target.notes(source),
        refusals=target.refusals(source, formats),
    )
    return PlannedExport(source, target, holdings, record)


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
