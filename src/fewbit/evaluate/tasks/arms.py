"""Every arm asked every task, one arm open at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fewbit.errors import UnsupportedError
from fewbit.evaluate.answers import Answerer
from fewbit.evaluate.arms import Arms, LocalParty, Role, Room
from fewbit.evaluate.seen import refuse_seen_prompts
from fewbit.evaluate.tasks.asking import ask_task, is_complete, named, outcomes, prompt_of
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

    Multiple choice is left out, with a note, where an arm runs elsewhere and tells no likelihoods.

    Args:
        tasks: with their items.
        arms: the arms there are.
        progress: told how many items of an arm are done.
        floor: whether the perturbed source is asked too.

    Raises:
        UsageError: the candidate was calibrated on an item.
        UnsupportedError: nothing is left.
        RequestError, MissingError, NumericalError: as `ask_task`; the message names the arm.
    """
    prompts = {f"{t.spec.name}/{item.name}": item.prompt for t in tasks for item in t.items}
    unknown = refuse_seen_prompts("the items of tasks", prompts, arms)
    roles = [role for role in arms.roles if floor or role is not Role.FLOOR]
    tasks, left_out = _answerable(tasks, roles, arms)
    found: dict[Role, list[Mapping[str, TaskOutcome]]] = {}
    facts: list[AnswererFacts] = []
    asked: Sequence[Task] = ()
    for role in roles:
        with named(f"On the arm '{role.value}'"):
            decide = partial(_asked, tasks, arms) if role is Role.SOURCE else partial(_as, asked)
            asked, found[role], its_facts = _ask_arm(decide, room_of(tasks), role, arms, progress)
        facts.append(its_facts)
    paired = tuple(
        Outcomes(task, {role: of_tasks[i] for role, of_tasks in found.items()})
        for i, task in enumerate(asked)
    )
    return Asked(paired, tuple(facts), (*unknown, *left_out, *_notes(tasks, asked)))


def _answerable(
    tasks: Sequence[Task], roles: Sequence[Role], arms: Arms
) -> tuple[Sequence[Task], tuple[str, ...]]:
    """Return the tasks that every arm can be asked, and a sentence on those that some cannot.

    Raises:
        UnsupportedError: there are none; says why.
    """
    choices = [task for task in tasks if task.spec.kind == "choice"]
    left_out: dict[str, str] = {}
    for role in (r for r in roles if not isinstance(arms.parties[r], LocalParty)):
        unknown = [task for task, kept in _kept(choices, role, arms) if not is_complete(task, kept)]
        if unknown:
            with arms.open(role) as arm:
                left_out |= _unscored(unknown, arm.answerer)
    if not left_out:
        return tasks, ()
    kept_on = [task for task in tasks if task.spec.name not in left_out]
    why = " ".join(dict.fromkeys(left_out.values()))
    if not kept_on:
        raise UnsupportedError(f"{why} Give tasks of another kind, or leave the axis out.")
    return kept_on, (f"Not asked, and counted nowhere: {', '.join(left_out)}. {why}",)


def _unscored(tasks: Sequence[Task], answerer: Answerer) -> dict[str, str]:
    """Return the tasks whose options an answerer does not score, by name, each with why."""
    kinds = {task.spec.asked_as for task in tasks}
    why = {kind: answerer.unscored(prompt_of("One, two,", kind)) for kind in kinds}
    return {t.spec.name: said for t in tasks if (said := why[t.spec.asked_as])}


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
