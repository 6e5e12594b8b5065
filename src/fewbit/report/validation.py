"""Six questions about a target with a draft, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from fewbit.records.outcome import Outcome
from fewbit.records.validation import Question, Validation

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


def _print_question(number: int, question: Question, console: Console) -> None:
    answer = f"[bold {_COLOURS[question.outcome]}]{ANSWERS[question.outcome]}[/]"
    console.print(f"{number}. {escape(question.asked)} {answer}", highlight=False)
    for line in question.evidence:
        console.print(f"   {escape(line)}", style="dim", highlight=False)
