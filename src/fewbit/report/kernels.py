"""Which kernel would run each layer of a model, on a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.figures import size
from fewbit.records.kernels import KernelPlan, KernelRecord

GATHERED = "take their inputs in the order of the file's columns (act-order)"
"""Of matrices in a format with an order."""


def print_kernels(plan: KernelPlan, console: Console) -> None:
    """Print a line for each group of equal layers, then why other kernels were not taken."""
    console.print(f"[bold]{escape(plan.model)}[/] on {plan.isa}", highlight=False)
    console.print(_layers(plan.kernels))
    gathered = sum(record.gathered for record in plan.kernels)
    if gathered:
        console.print(f"{gathered} matrices {GATHERED}.", highlight=False)
    console.print()
    console.print(_rejected(plan.kernels))


def _layers(kernels: Iterable[KernelRecord]) -> Table:
    groups: defaultdict[tuple[str, str, str, str], list[KernelRecord]] = defaultdict(list)
    for record in kernels:
        matrix, _ = place_of(record.slot)
        groups[matrix, record.format, record.kernel, record.note].append(record)
    table = Table("matrix", box=None, header_style="dim", pad_edge=False)
    table.add_column("layers")
    table.add_column("count", justify="right")
    table.add_column("format")
    table.add_column("kernel", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    for (matrix, form, kernel, note), group in groups.items():
        layers = {layer for r in group if (layer := place_of(r.slot)[1]) is not None}
        table.add_row(matrix, ranges(sorted(layers)), str(len(group)), form, kernel, _size(group))
        if note:
            table.add_row("", "", "", "", f"[yellow]{escape(note)}[/]")
    everything = [record for group in groups.values() for record in group]
    table.add_row("all", "", str(len(everything)), "", "", _size(everything), style="dim")
    return table


def _rejected(kernels: Iterable[KernelRecord]) -> Table:
    """Show each kind of kernel that matrices could have had, and why they have another."""
    counts: Counter[tuple[str, str]] = Counter()
    for record in kernels:
        for rejected in record.rejected:
            counts["*/" + rejected.kernel.partition("/")[2], rejected.reason] += 1
    table = Table("not taken", box=None, header_style="dim", pad_edge=False)
    table.add_column("matrices", justify="right")
    table.add_column("because")
    for (kernel, reason), count in counts.items():
        table.add_row(kernel, str(count), escape(reason))
    return table


def _size(group: Iterable[KernelRecord]) -> str:
    return size(sum(record.bytes for record in group))


def place_of(slot: str) -> tuple[str, int | None]:
    """Return the matrix that a slot names and its layer: `layers.3.q.weight` is q of layer 3.

    The experts of a layer share a name: `layers.3.experts.5.gate.weight` is experts.gate of 3.
    """
    first, *rest = slot.removesuffix(".weight").split(".")
    if first != "layers":
        return first, None
    return ".".join(part for part in rest[1:] if not part.isdigit()), int(rest[0])


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers with each run in short, such as `0-3, 5, 7-8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
