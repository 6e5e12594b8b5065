"""Records on a terminal, with rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.evaluation import Attempt, CompressReport, Evaluation
from fewbit.records.figures import describe, size
from fewbit.records.gate import Judgement
from fewbit.records.language import LanguageDetails
from fewbit.records.measurement import AxisResult
from fewbit.records.outcome import Outcome
from fewbit.report.judged import Row, deciding, rows_of, shown_attempt

_COLOURS = {Outcome.ACCEPT: "green", Outcome.REJECT: "red", Outcome.INCONCLUSIVE: "yellow"}
_NARROW = 100
"""Columns under which a judgement takes two lines instead of a row of a table."""


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print an evaluation: judged figures, findings, conditions, notes, and the verdict last."""
    source, candidate = evaluation.source, evaluation.candidate
    console.print(
        f"[bold]{escape(candidate.name)}[/] against [bold]{escape(source.name)}[/], "
        f"{_size(evaluation)}",
        highlight=False,
    )
    print_rows(rows_of(evaluation), console)
    for axis in evaluation.axes:
        _print_findings(axis, console)
    for line in (*_texts(evaluation.axes), _conditions(evaluation)):
        console.print(escape(line), style="dim", highlight=False)
    notes = (*evaluation.notes, *(note for axis in evaluation.axes for note in axis.notes))
    _print_notes(tuple(dict.fromkeys(notes)), console)
    reasons = deciding(evaluation.verdict.reasons, evaluation)
    print_verdict(evaluation.verdict.outcome, reasons, console)


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Print judged figures, as a table where the terminal is wide enough for one."""
    if console.width < _NARROW:
        for row in rows:
            _print_row(row, console)
        return
    table = Table("slice", box=None, header_style="dim", pad_edge=False)
    for heading in ("found", "floor", "margin"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for row in rows:
        floor = row.words(row.judgement.floor)
        table.add_row(
            escape(row.title),
            escape(row.words(row.judged)),
            escape(floor),
            row.margin,
            _said(row),
        )
    console.print(table)


def print_compress(report: CompressReport, console: Console) -> None:
    """Print all attempts, those not tried and why, what to know of the shown one, the outcome."""
    table = Table("recipe", box=None, header_style="dim", pad_edge=False)
    for heading in ("size", "mean KL, nats", "perplexity ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for attempt in report.attempts:
        table.add_row(*_attempt_cells(attempt, report))
    budget = f"budget {report.budget}" if report.budget else "the smallest that the gate accepts"
    console.print(
        f"{escape(report.source.name)} for {escape(report.runtime)}, {escape(budget)}",
        highlight=False,
    )
    console.print(table)
    for attempt in report.attempts:
        for fallback in attempt.fallbacks:
            console.print(f"{escape(attempt.recipe)}: {escape(fallback)}", style="dim")
    for untried in report.untried:
        console.print(f"{escape(untried.recipe)} not tried: {escape(untried.reason)}", style="dim")
    shown = shown_attempt(report)
    if shown is not None:
        _print_notes(shown.evaluation.notes, console)
    reasons = deciding(report.reasons, None if shown is None else shown.evaluation)
    print_verdict(report.outcome, reasons, console)


def print_verdict(outcome: Outcome, reasons: tuple[str, ...], console: Console) -> None:
    """Print the outcome and its reasons."""
    console.print(outcome_word(outcome))
    for reason in reasons:
        console.print(f"  {escape(reason)}", highlight=False)


def _print_row(row: Row, console: Console) -> None:
    word, _, more = _said(row).partition("\n")
    console.print(f"{word} {escape(row.title)}", highlight=False)
    if more:
        console.print(f"  {more}", highlight=False)
    parts = [row.words(row.judged)]
    parts += [f"floor {row.words(row.judgement.floor)}"] if row.judgement.floor else []
    parts += [f"margin {row.margin}"] if row.margin else []
    console.print(f"  {escape('; '.join(parts))}", highlight=False)


def _print_findings(axis: AxisResult, console: Console) -> None:
    """Print what failed or is waived in full, and of the rest how many passed."""
    passed = [finding for finding in axis.findings if finding.passed]
    for finding in axis.findings:
        if not finding.passed:
            word = "[yellow]waived[/]" if finding.waived else "[red]failed[/]"
            waived = f" ({finding.waived})" if finding.waived else ""
            console.print(
                f"{word} {escape(finding.name)}: {escape(finding.found + waived)}", highlight=False
            )
    if passed:
        names = ", ".join(finding.name for finding in passed)
        console.print(f"[green]passed[/] {escape(names)}", highlight=False)


def _attempt_cells(attempt: Attempt, report: CompressReport) -> list[str]:
    e = attempt.evaluation
    figures = [e.judgement(name) for name in ("language/kl", "language/perplexity")]
    return [
        escape(attempt.recipe) + (f"\n[dim]{escape(attempt.why)}[/]" if attempt.why else ""),
        f"{size(e.candidate.bytes)}\n[dim]{e.candidate.bytes / report.source.bytes:.2f} x[/]",
        *(_two_lines(found) for found in figures),
        outcome_word(e.verdict.outcome),
    ]


def _print_notes(notes: tuple[str, ...], console: Console) -> None:
    for note in notes:
        console.print(f"Note: {escape(note)}", style="dim", highlight=False)


def _size(evaluation: Evaluation) -> str:
    source, candidate = evaluation.source.bytes, evaluation.candidate.bytes
    if not source or not candidate:
        return "of unknown size"
    return f"{size(source)} to {size(candidate)}, {candidate / source:.2f} of the source"


def _texts(axes: Sequence[AxisResult]) -> list[str]:
    texts = [axis.details.text for axis in axes if isinstance(axis.details, LanguageDetails)]
    return [
        f"On {text.name}: {text.documents} documents, {text.positions:,} scored positions."
        for text in texts
    ]


def _conditions(evaluation: Evaluation) -> str:
    c = evaluation.conditions
    return (
        f"{c.cpu}, {c.isa}, activations {c.activations}, {c.threads} threads, {c.kv} KV cache; "
        f"{evaluation.seconds:.1f} s."
    )


def _two_lines(found: Judgement | None) -> str:
    """Return a figure and, under it, its bounds."""
    if found is None:
        return "[dim]not measured[/]"
    value, _, bounds = describe(found.figure, found.margin).partition(" ")
    return f"{value}\n[dim]{escape(bounds)}[/]"


def _said(row: Row) -> str:
    outcome = row.judgement.outcome
    if outcome is None:
        return "[dim]not judged[/]"
    needed = row.judgement.items_needed
    more = f"\n[dim]{needed:,} items would decide[/]" if needed else ""
    return outcome_word(outcome) + more


def outcome_word(outcome: Outcome) -> str:
    """Return an outcome in its colour, as rich markup."""
    return f"[bold {_COLOURS[outcome]}]{outcome.value}[/]"
