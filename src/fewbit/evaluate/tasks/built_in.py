"""The built-in tasks: some five hundred items of our own, most of them cheap, all offline.

They are easy on purpose. A model of 135 million parameters gets 40 to 90% of most of them right, so
that a loss can show; harder sets come from files (docs/evaluation/tasks.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fewbit.evaluate.tasks import generated, passages
from fewbit.evaluate.tasks.items import Item
from fewbit.evaluate.tasks.spec import PromptKind, Task, TaskSpec

_BUILT_IN = "built in"


def _spec(name: str, kind: str, rule: str, **options: Any) -> TaskSpec:
    return TaskSpec(name=name, file=_BUILT_IN, kind=kind, rule=rule, **options)


_TASKS: tuple[tuple[TaskSpec, Callable[[], tuple[Item, ...]]], ...] = (
    (_spec("facts", "choice", "likelihood"), generated.facts),
    (_spec("grammar", "choice", "likelihood"), generated.grammar),
    (_spec("numbers", "choice", "likelihood"), generated.numbers),
    (_spec("patterns", "choice", "likelihood"), generated.patterns),
    (_spec("reading", "choice", "likelihood"), passages.reading),
    (_spec("short-answers", "generation", "contains", max_tokens=24), passages.short_answers),
    (
        _spec(
            "lookups",
            "generation",
            "number",
            prompt=PromptKind.TEXT,
            max_tokens=12,
            stop=("\n",),
        ),
        passages.lookups,
    ),
    (_spec("instructions", "instructions", "strict"), passages.instructions),
)


def built_in_tasks() -> tuple[Task, ...]:
    """Return the built-in tasks with their items."""
    return tuple(Task(spec, make(), sha256="") for spec, make in _TASKS)
