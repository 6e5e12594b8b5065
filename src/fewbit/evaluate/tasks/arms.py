"""Every arm asked every task, one arm open at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fewbit.evaluate.arms import Arms, LocalParty, Role, Room
from fewbit.evaluate.tasks.asking import ask_task, is_complete, named, outcomes
from fewbit.evaluate.tasks.items import ChoiceItem, Item
from fewbit.evaluate.tasks.spec import Task
from fewbit.progress import Progress
from fewbit.records.answers import AnswererFacts
from fewbit.records.kept import Kept, fingerprint
from fewbit.records.tasks import TaskOutcome

_SEQUENCES = 16
"""Answers at once."""
_FRAME = 512
"""Tokens that a chat template may add to a prompt; system prompts are the longest of it."""

_FACTS = "facts"


@dataclass(frozen=True)
class Outcomes:
    """A task and what each arm made of its items, by name."""

    task: Task
    arms: Mapping[Role, Mapping[str, TaskOutcome]]


@dataclass(frozen=True)
class Asked:
    """What came of all tasks, and how texts reach each arm."""

    tasks: tuple[Outcomes, ...]
    facts: tuple[AnswererFacts, ...]
    notes: tuple[str, ...]


def ask_arms(tasks: Sequence[Task], arms: Arms, progress: Progress, *, floor: bool = True) -> Asked:
    """Ask every arm every item; what was kept of an arm that is complete, it is not opened for.

    Args:
        tasks: with their items.
        arms: the arms there are.
        progress: told how many items of an arm are done.
        floor: whether the perturbed source is asked too.

    Raises:
        RequestError, MissingError, NumericalError: as `ask_task`; the message names the arm.
    """
    found: dict[Role, list[Mapping[str, TaskOutcome]]] = {}
    facts: list[AnswererFacts] = []
    asked: Sequence[Task] = ()
    for role in arms.roles:
        if floor or role is not Role.FLOOR:
            with named(f"On the arm '{role.value}'"):
                decide = (
                    partial(_asked, tasks, arms) if role is Role.SOURCE else partial(_as, asked)
                )
                asked, found[role], its_facts = _ask_arm(
                    decide, room_of(tasks), role, arms, progress
                )
            facts.append(its_facts)
    paired = tuple(
        Outcomes(task, {role: of_tasks[i] for role, of_tasks in found.items()})
        for i, task in enumerate(asked)
    )
    return Asked(paired, tuple(facts), _notes(tasks, asked))


_Decide = Callable[[AnswererFacts], Sequence[Task]]
"""Says how tasks are asked, once it is known what answers."""


def _as(asked: Sequence[Task], _: AnswererFacts) -> Sequence[Task]:
    return asked


def _asked(tasks: Sequence[Task], arms: Arms, facts: AnswererFacts) -> Sequence[Task]:
    """Return the tasks as every arm is asked them; the source decides, so that arms are paired.

    Those that leave it open are asked as texts where the source has no chat template. A server
    that does not show its template is taken to have one.
    """
    if facts.template or not isinstance(arms.parties[Role.SOURCE], LocalParty):
        return tasks
    return [task.as_text() if task.spec.prompt is None else task for task in tasks]


def _ask_arm(
    decide: _Decide, room: Room, role: Role, arms: Arms, progress: Progress
) -> tuple[Sequence[Task], list[Mapping[str, TaskOutcome]], AnswererFacts]:
    told = arms.kept(role, fingerprint(_FACTS))
    facts = told.read(AnswererFacts).get(_FACTS)
    tasks = () if facts is None else decide(facts)
    if facts is None or not all(is_complete(t, k) for t, k in _kept(tasks, role, arms)):
        with arms.open(role, room) as arm:
            facts = arm.answerer.facts
            told.add(_FACTS, facts)
            tasks = decide(facts)
            for task, kept in _kept(tasks, role, arms):
                what, count = f"{role.value}: {task.spec.name}", len(task.items)
                ask_task(task, arm.answerer, kept, partial(_tell, progress, what, count))
    return tasks, [outcomes(task, kept) for task, kept in _kept(tasks, role, arms)], facts


def room_of(tasks: Sequence[Task]) -> Room:
    """Return room for the longest item: a text has no more tokens than bytes."""
    most = max((task.spec.max_tokens + _bytes(i) for task in tasks for i in task.items), default=0)
    return Room(context=most + _FRAME, sequences=_SEQUENCES)


def _bytes(item: Item) -> int:
    if isinstance(item, ChoiceItem):
        return sum(
            max(len(t.encode()) for t in texts) for texts in (item.contexts, item.continuations)
        )
    return len(item.prompt.encode())


def _kept(tasks: Sequence[Task], role: Role, arms: Arms) -> list[tuple[Task, Kept]]:
    return [(task, arms.kept(role, task.fingerprint)) for task in tasks]


def _notes(tasks: Sequence[Task], asked: Sequence[Task]) -> tuple[str, ...]:
    names = [
        task.spec.name
        for task, other in zip(tasks, asked, strict=True)
        if task.spec.asked_as is not other.spec.asked_as
    ]
    if not names:
        return ()
    return (
        f"The model has no chat template: the prompts of {', '.join(names)} were continued as "
        "texts.",
    )


def _tell(progress: Progress, what: str, count: int, done: int) -> None:
    progress(what, done, count)
