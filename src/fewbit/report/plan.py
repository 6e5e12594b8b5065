"""What `fewbit quantize --plan` says, on a terminal."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.figures import size
from fewbit.records.plan import Amount, PlannedEntry, PlanReport


def print_plan(plan: PlanReport, console: Console) -> None:
    """Print formats, sizes, what is needed, and what the target would refuse, that last."""
    console.print(_formats(plan))
    for note in plan.notes:
        console.print(f"[yellow]{escape(note)}[/]")
    console.print(
        f"Tensors: {size(plan.promised_bytes)}, {plan.bits_per_weight:.2f} bits per weight; the "
        f"source has {size(plan.source_bytes)}."
    )
    console.print(f"Memory: {_needed(plan.memory, plan.peak_bytes, plan.available_memory)}")
    console.print(f"Disk: {_needed(plan.disk, plan.disk_bytes, plan.free_disk)}")
    parts = ", ".join(f"{part.what} {duration(part.seconds)}" for part in plan.time)
    console.print(
        f"Time: about {duration(plan.seconds)} ({parts}); rough, where nothing else runs."
    )
    if plan.target is not None and not plan.refusals:
        console.print(f"{plan.target} would take it, as far as headers tell.")
    for refusal in plan.refusals:
        console.print(f"[yellow]{plan.target} would refuse or change[/]: {escape(refusal)}")


def duration(seconds: float) -> str:
    """Return a length of time in words: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _needed(amounts: tuple[Amount, ...], total: int, available: int | None) -> str:
    left = "" if available is None else f", {size(available)} available"
    parts = ", ".join(f"{amount.what} {size(amount.bytes)}" for amount in amounts)
    return f"about {size(total)}{left} ({parts})."


def _formats(plan: PlanReport) -> Table:
    groups: dict[tuple[str, str, str], list[PlannedEntry]] = defaultdict(list)
    for entry in plan.tensors:
        groups[entry.source_format, entry.format, entry.status].append(entry)
    table = Table("source", "format", "", "tensors", "size")
    for (before, after, status), group in groups.items():
        total = size(sum(entry.bytes for entry in group))
        table.add_row(before, after, status, str(len(group)), total)
    return table
