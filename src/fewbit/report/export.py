"""What `fewbit export` would do or did, on a terminal."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.export import ExportedTensor, ExportPlan
from fewbit.records.figures import size
from fewbit.records.manifest import Manifest

_SHOWN = 3


def print_export_plan(plan: ExportPlan, console: Console) -> None:
    """Print formats before and after, what is not held and its cost, sizes, and refusals."""
    console.print(_formats(plan))
    for tensor in plan.absent:
        console.print(f"[yellow]{escape(tensor.source)}[/] is left out: {escape(tensor.reason)}")
    console.print(f"{size(plan.bytes)} of tensors; the source has {size(plan.source_bytes)}.")
    for note in plan.notes:
        console.print(escape(note))
    for refusal in plan.refusals:
        console.print(f"[yellow]Refused[/]: {escape(refusal)}")
    if plan.changed:
        console.print(
            f"[yellow]{len(plan.changed)} of {len(plan.tensors)} tensors change their values or "
            "their kind of format[/]; --requantize allows it."
        )


def print_exported(manifest: Manifest, console: Console) -> None:
    """Print the plan that was carried out, and the largest errors that it made."""
    record = manifest.export
    if record is None:
        return
    console.print(_formats(record.plan))
    worst = sorted(record.errors.items(), key=lambda item: -item[1])[:_SHOWN]
    for slot, error in worst:
        console.print(f"  {escape(slot)}: relative error {error:.4g}")
    for note in (*record.plan.notes, *record.plan.refusals):
        console.print(escape(note))
    console.print(f"{size(manifest.tensor_bytes)} of tensors.")


def _formats(plan: ExportPlan) -> Table:
    groups: dict[tuple[str, str], list[ExportedTensor]] = defaultdict(list)
    for tensor in plan.tensors:
        groups[tensor.source_format, tensor.format].append(tensor)
    table = Table("source", plan.target, "tensors", "size", "held")
    for (before, after), group in groups.items():
        worst = max(tensor.expected_error for tensor in group)
        exact = all(tensor.exact for tensor in group)
        shown = "exactly" if exact else f"no; expected relative error {worst:.2g}"
        table.add_row(before, after, str(len(group)), size(sum(t.bytes for t in group)), shown)
    return table
