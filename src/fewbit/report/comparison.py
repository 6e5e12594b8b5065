"""Two evaluations beside each other, on a terminal and as a page."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.comparison import ComparedFinding, ComparedSlice, Comparison
from fewbit.records.figures import size
from fewbit.records.gate import Judgement
from fewbit.records.measurement import Finding
from fewbit.report.html import render
from fewbit.report.judged import in_words, unit_of
from fewbit.report.terminal import outcome_word

_NARROW = 100


@dataclass(frozen=True)
class ComparedRow:
    """One slice of a comparison in words."""

    compared: ComparedSlice
    first: str
    second: str
    difference: str
    """Of the second against the first; empty where nothing was paired."""
    trend: str
    """`better`, `worse`, `no difference shown`, or why nothing was paired."""


def rows_of(comparison: Comparison) -> list[ComparedRow]:
    """Return the slices as rows."""
    return [_row(compared) for compared in comparison.slices]


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print what differs between the runs, then slice by slice, then findings that changed."""
    for place, side in (("first", comparison.first), ("second", comparison.second)):
        console.print(
            f"{place}: [bold]{escape(side.candidate.name)}[/] against "
            f"{escape(side.source.name)}, {size(side.candidate.bytes)}, "
            f"{outcome_word(side.outcome)} [dim]{escape(side.name)}[/]",
            highlight=False,
        )
    for sentence in comparison.differences:
        console.print(f"Note: {escape(sentence)}", style="dim", highlight=False)
    _print_rows(rows_of(comparison), console)
    for finding in comparison.findings:
        console.print(escape(finding_words(finding)), highlight=False)
    console.print(
        f"Differences are the second candidate against the first over the items of both, with "
        f"{comparison.level:.0%} intervals; larger is worse.",
        style="dim",
        highlight=False,
    )


def comparison_page(comparison: Comparison) -> str:
    """Return a comparison as a page of its own."""
    title = f"{comparison.second.candidate.name} beside {comparison.first.candidate.name}"
    return render(
        "comparison.html.j2",
        title,
        c=comparison,
        rows=rows_of(comparison),
        findings=[finding_words(finding) for finding in comparison.findings],
    )


def finding_words(finding: ComparedFinding) -> str:
    """Return how a finding stands in both, in one sentence."""
    first, second = _standing(finding.first), _standing(finding.second)
    said = finding.second or finding.first
    assert said is not None
    return f"{finding.name}: {first} in the first, {second} in the second. {said.found}"


def _print_rows(rows: list[ComparedRow], console: Console) -> None:
    if console.width < _NARROW:
        for row in rows:
            console.print(f"{escape(row.compared.title)}: {escape(row.trend)}", highlight=False)
            found = f"  {row.first} to {row.second}"
            found += f"; difference {row.difference}" if row.difference else ""
            console.print(escape(found), style="dim", highlight=False)
        return
    table = Table("slice", box=None, header_style="dim", pad_edge=False)
    for heading in ("first", "second", "second against first"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        cells = (row.compared.title, row.first, row.second, row.difference, row.trend)
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)


def _row(compared: ComparedSlice) -> ComparedRow:
    unit = unit_of(compared.measure, compared.unit)
    difference = compared.difference
    shown = "" if difference is None else in_words(difference, compared.measure, unit)
    return ComparedRow(
        compared,
        _figure(compared, compared.first),
        _figure(compared, compared.second),
        shown,
        _trend(compared),
    )


def _figure(compared: ComparedSlice, judgement: Judgement | None) -> str:
    if judgement is None:
        return "not measured"
    unit = unit_of(compared.measure, compared.unit)
    return in_words(judgement.figure, compared.measure, unit, judgement.margin)


def _trend(compared: ComparedSlice) -> str:
    found = compared.difference
    if found is None:
        return compared.why_not or "has no figure"
    none = compared.measure.origin
    if found.low is None or found.high is None:
        return f"no interval on {compared.items} items"
    if found.low > none:
        return "worse"
    if found.high < none:
        return "better"
    same = found.low == found.high == none
    return "the same" if same else "no difference shown"


def _standing(finding: Finding | None) -> str:
    if finding is None:
        return "absent"
    return "passed" if finding.passed else ("waived" if finding.waived else "failed")
