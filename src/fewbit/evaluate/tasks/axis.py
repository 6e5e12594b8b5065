"""The axis of tasks: multiple choice, short generation and instructions that a program checks.

Each arm is asked the same items; an item is a failure (1) or not (0) on each, so that a task is a
paired difference of two proportions. Where the candidate parts from the source the flip is harmful
or helpful: equal rates may hide many of both.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fewbit.errors import UsageError
from fewbit.evaluate.arms import Arms
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.tasks.arms import ask_arms
from fewbit.evaluate.tasks.built_in import built_in_tasks
from fewbit.evaluate.tasks.figures import examples, figures, slice_name, slice_of
from fewbit.evaluate.tasks.spec import Task, of_kinds
from fewbit.progress import Progress
from fewbit.records.drawn import Example
from fewbit.records.measurement import AxisResult, Measure
from fewbit.records.tasks import TasksDetails

KINDS = ("choice", "generation", "instructions")

_EXAMPLES = 12


@dataclass(frozen=True)
class TasksAxis:
    """Tasks with their items, and whether the perturbed source is asked too."""

    tasks: tuple[Task, ...]
    floor: bool = True
    name: str = "tasks"

    def __post_init__(self) -> None:
        wrong = [task.spec for task in self.tasks if task.spec.kind not in KINDS]
        if wrong:
            raise UsageError(
                f"The task '{wrong[0].name}' is of the kind '{wrong[0].kind}', which the axis of "
                f"tasks does not have; it has {', '.join(KINDS)}."
            )

    @property
    def brings(self) -> Brings:
        """A slice for each task."""
        return Brings({slice_name(task.spec): Measure.PROPORTION for task in self.tasks})

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Ask every arm every item, and pair what they said.

        Raises:
            RequestError, MissingError, NumericalError: as `ask_task`; the message names the arm.
        """
        began = time.perf_counter()
        asked = ask_arms(self.tasks, arms, progress, floor=self.floor)
        flips = [examples(outcomes) for outcomes in asked.tasks]
        return AxisResult(
            axis=self.name,
            slices=tuple(slice_of(outcomes) for outcomes in asked.tasks),
            details=TasksDetails(
                tasks=tuple(figures(outcomes) for outcomes in asked.tasks),
                harmful=_taken_in_turn([e for e in task if e.harm > 0] for task in flips),
                helpful=_taken_in_turn([e for e in reversed(task) if e.harm < 0] for task in flips),
                asked=asked.facts,
            ),
            notes=(*asked.notes, *(note for task in self.tasks for note in task.notes)),
            seconds=time.perf_counter() - began,
        )


def tasks_axis(suite: Path | None = None) -> TasksAxis:
    """Return the axis over the tasks of a folder, or over the built-in ones.

    Raises:
        MissingError, BadFileError, UnsupportedError: as `read_tasks`.
    """
    return TasksAxis(of_kinds(suite, KINDS, built_in_tasks))


def _taken_in_turn(tasks: Iterable[list[Example]]) -> tuple[Example, ...]:
    """Return the first examples of every task, then the second ones, as many as are shown."""
    rounds = itertools.zip_longest(*tasks)
    found = (example for one_of_each in rounds for example in one_of_each if example is not None)
    return tuple(itertools.islice(found, _EXAMPLES))
