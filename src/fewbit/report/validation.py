"""Six questions about a target with a draft, on a terminal and as a page."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from fewbit.records.outcome import Outcome
from fewbit.records.validation import Question, Validation
from fewbit.report.html import render

ANSWERS = {Outcome.ACCEPT: "yes", Outcome.REJECT: "no", Outcome.INCONCLUSIVE: "not decided"}
"""What an outcome is in answer to a question."""

_COLOURS = {Outcome.ACCEPT: "green", Outcome.REJECT: "red", Outcome.INCONCLUSIVE: "yellow"}


def print_validation(validation: Validation, console: Console) -> None:
    """Print every question with its answer and evidence, and the whole answer last."""
    console.print(
        f"[bold]{escape(validation.target)}[/] with the draft [bold]{escape(validation.draft)}[/], "
        f"against {escape(validation.source)}",
        highlight=False,
    )
    for number, question in enumerate(validation.questions, start=1):
        _print_question(number, question, console)
    console.print(
        f"[bold {_COLOURS[validation.outcome]}]{validation.outcome.value}[/] "
        f"[dim]({validation.seconds:.0f} s)[/]",
        highlight=False,
    )


def validation_page(validation: Validation) -> str:
    """Return a validation as a page of its own."""
    title = f"{validation.outcome.value}: {validation.target} with {validation.draft}"
    return render(
        "validation.html.j2", title, v=validation, answers=ANSWERS, reasons=_reasons(validation)
    )


def _reasons(validation: Validation) -> tuple[str, ...]:
    """Return the questions that decide, with the first of their evidence."""
    if validation.outcome is Outcome.ACCEPT:
        return ("All six questions are answered by yes.",)
    deciding = (q for q in validation.questions if q.outcome is validation.outcome)
    return tuple(f"{q.name}: {' '.join(q.evidence[:1])}" for q in deciding)


def _print_question(number: int, question: Question, console: Console) -> None:
    answer = f"[bold {_COLOURS[question.outcome]}]{ANSWERS[question.outcome]}[/]"
    console.print(f"{number}. {escape(question.asked)} {answer}", highlight=False)
    for line in question.evidence:
        console.print(f"   {escape(line)}", style="dim", highlight=False)
