"""Records on a terminal, with rich."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.evaluation import CompressReport, Evaluation
from fewbit.records.figures import describe, size
from fewbit.records.interval import Interval
from fewbit.records.outcome import Outcome

_COLOURS = {Outcome.ACCEPT: "green", Outcome.REJECT: "red", Outcome.INCONCLUSIVE: "yellow"}


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print an evaluation: figures, conditions, notes, and the verdict last."""
    source, candidate = evaluation.source, evaluation.candidate
    console.print(f"[bold]{escape(candidate.name)}[/] against [bold]{escape(source.name)}[/]")
    console.print(_figures(evaluation))
    text, conditions = evaluation.text, evaluation.conditions
    console.print(
        f"On {escape(text.name)}: {text.documents} documents, {text.positions:,} scored positions; "
        f"{escape(conditions.cpu)}, {conditions.isa}, activations {conditions.activations}, "
        f"{conditions.threads} threads, {conditions.kv} KV cache; "
        f"{evaluation.seconds:.1f} s.",
        style="dim",
        highlight=False,
    )
    _print_notes(evaluation.notes, console)
    print_verdict(evaluation.verdict.outcome, evaluation.verdict.reasons, console)


def print_compress(report: CompressReport, console: Console) -> None:
    """Print all attempts, those not tried and why, what to know of the last, and the outcome."""
    table = Table("recipe", box=None, header_style="dim", pad_edge=False)
    for heading in ("size", "mean KL, nats", "perplexity ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for attempt in report.attempts:
        e = attempt.evaluation
        table.add_row(
            escape(attempt.recipe),
            f"{size(e.candidate.bytes)}\n[dim]{e.candidate.bytes / report.source.bytes:.2f} x[/]",
            _two_lines(e.divergence.mean, e.gate.mean_divergence),
            _two_lines(e.perplexity.ratio, e.gate.perplexity_ratio),
            _word(e.verdict.outcome),
        )
    console.print(table)
    for attempt in report.attempts:
        for fallback in attempt.fallbacks:
            console.print(f"{escape(attempt.recipe)}: {escape(fallback)}", style="dim")
    for untried in report.untried:
        console.print(f"{escape(untried.recipe)} not tried: {escape(untried.reason)}", style="dim")
    _print_notes(report.attempts[-1].evaluation.notes, console)
    print_verdict(report.outcome, report.reasons, console)


def print_verdict(outcome: Outcome, reasons: tuple[str, ...], console: Console) -> None:
    """Print the outcome and its reasons."""
    console.print(_word(outcome))
    for reason in reasons:
        console.print(f"  {escape(reason)}", highlight=False)


def _print_notes(notes: tuple[str, ...], console: Console) -> None:
    for note in notes:
        console.print(f"Note: {escape(note)}", style="dim", highlight=False)


def _figures(evaluation: Evaluation) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, figure in _rows(evaluation):
        table.add_row(name, figure)
    return table


def _rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    e, gate = evaluation, evaluation.gate
    ratio = e.candidate.bytes / e.source.bytes
    divergence, reverse = e.divergence, e.reverse_divergence
    return [
        ("size", f"{size(e.source.bytes)} to {size(e.candidate.bytes)}, {ratio:.2f} of the source"),
        (
            "mean KL(source || candidate)",
            f"{describe(divergence.mean, gate.mean_divergence)} nats",
        ),
        ("median, p99, largest", _spread(divergence.median, divergence.p99, divergence.maximum)),
        ("mean KL(candidate || source)", f"{describe(reverse.mean)} nats"),
        (
            "perplexity",
            f"{describe(e.perplexity.source)} to {describe(e.perplexity.candidate)}",
        ),
        ("perplexity ratio", describe(e.perplexity.ratio, gate.perplexity_ratio)),
        ("same first token", describe(e.agreement)),
    ]


def _spread(median: Interval, p99: Interval, maximum: float) -> str:
    return f"{median.value:.4g}, {p99.value:.4g}, {maximum:.4g} nats"


def _two_lines(figure: Interval, margin: float) -> str:
    """Return a figure and, under it, its bounds."""
    value, _, bounds = describe(figure, margin).partition(" ")
    return f"{value}\n[dim]{escape(bounds)}[/]"


def _word(outcome: Outcome) -> str:
    return f"[bold {_COLOURS[outcome]}]{outcome.value}[/]"
