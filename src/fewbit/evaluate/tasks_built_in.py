"""The built-in tasks: some five hundred items of our own, most of them cheap, all offline.

They are easy on purpose. A model of 135 million parameters gets 40 to 90% of most of them right, so
that a loss can show; harder sets come from files (docs/evaluation/tasks.md).
"""

from __future__ import annotations

from collections.abc import Callable

from fewbit.evaluate import tasks_generated as generated
from fewbit.evaluate import tasks_passages as passages
from fewbit.evaluate.tasks_items import Item
from fewbit.evaluate.tasks_spec import Task, TaskSpec

_BUILT_IN = "built in"

_TASKS: tuple[tuple[str, str, str, int, Callable[[], tuple[Item, ...]]], ...] = (
    ("facts", "choice", "likelihood", 1, generated.facts),
    ("grammar", "choice", "likelihood", 1, generated.grammar),
    ("numbers", "choice", "likelihood", 1, generated.numbers),
    ("patterns", "choice", "likelihood", 1, generated.patterns),
    ("reading", "choice", "likelihood", 1, passages.reading),
    ("short-answers", "generation", "contains", 24, passages.short_answers),
    ("word-problems", "generation", "number", 48, passages.word_problems),
    ("instructions", "instructions", "strict", 64, passages.instructions),
)
"""Name, kind, rule, tokens of an answer at most, and what makes the items."""


def built_in_tasks() -> tuple[Task, ...]:
    """Return the built-in tasks with their items."""
    return tuple(
        Task(
            TaskSpec(name=name, file=_BUILT_IN, kind=kind, rule=rule, max_tokens=tokens),
            make(),
            sha256="",
        )
        for name, kind, rule, tokens, make in _TASKS
    )
