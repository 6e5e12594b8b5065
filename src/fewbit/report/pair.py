"""What `fewbit pair` found, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.pair import Consequence, PairCheck, PairDifference, PairReport, PairVerdict

_COLOURS = {
    PairVerdict.USABLE: "green",
    PairVerdict.MAPPED: "yellow",
    PairVerdict.NOT_USABLE: "red",
}
_MARKS = {
    Consequence.NONE: "dim",
    Consequence.SLOWER: "yellow",
    Consequence.MAPPING: "yellow",
    Consequence.PREVENTS: "red",
}


def print_pair(report: PairReport, console: Console) -> None:
    """Print every check, its differences under it, then the probe texts and the verdict."""
    draft, target = escape(report.draft.name), escape(report.target.name)
    console.print(f"[bold]{draft}[/] drafting for [bold]{target}[/]", highlight=False)
    for check in report.checks:
        _print_check(check, console)
    console.print(_probes(report))
    console.print(f"[bold {_COLOURS[report.verdict]}]{report.verdict.value}[/]")
    for reason in report.reasons:
        console.print(f"  {escape(reason)}", highlight=False)


def describe_difference(difference: PairDifference) -> str:
    """Return a difference and what it does as one line of text."""
    return f"{difference.found} {difference.effect}"


def _print_check(check: PairCheck, console: Console) -> None:
    if not check.differences:
        console.print(f"[green]same[/] {check.name}: {escape(check.agrees)}", highlight=False)
    for difference in check.differences:
        style = _MARKS[difference.consequence]
        console.print(
            f"[{style}]differ[/] {check.name}: {escape(difference.found)}", highlight=False
        )
        for example in difference.examples:
            console.print(f"    {escape(example)}", highlight=False)
        console.print(f"  [dim]{escape(difference.effect)}[/]", highlight=False)


def _probes(report: PairReport) -> Table:
    table = Table("probe text", box=None, header_style="dim", pad_edge=False)
    for heading in ("characters", "target's tokens", "draft's", "can be proposed"):
        table.add_column(heading, justify="right")
    table.add_column("cut")
    for probe in report.probes:
        table.add_row(
            escape(probe.name),
            f"{probe.characters:,}",
            f"{probe.target_tokens:,}",
            f"{probe.draft_tokens:,}",
            f"{probe.proposable:.1%}",
            "alike" if probe.cut_alike else "otherwise",
        )
    return table
