"""The axis of safety: unsafe prompts that should be refused, safe ones that should be answered.

Prompts come in the form of XSTest (Roettger et al. 2024): safe ones that look unsafe, and unsafe
ones that resemble them. A candidate may change in both directions, and either may be harm, so each
kind of prompt is a slice. An empty or looping answer is neither a refusal nor an answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from fewbit.errors import FaultError, UsageError
from fewbit.evaluate.arms import Arms, Role
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.safety.judge import REFUSAL_PHRASES, RULE, response_of
from fewbit.evaluate.tasks.arms import Outcomes, ask_arms
from fewbit.evaluate.tasks.figures import MOST_SHOWN
from fewbit.evaluate.tasks.items import SafetyItem
from fewbit.evaluate.tasks.spec import Task, of_kinds, read_task
from fewbit.progress import Progress
from fewbit.records.answers import Answer
from fewbit.records.drawn import Example
from fewbit.records.measurement import AxisResult, Item, Measure, Slice
from fewbit.records.safety import Response, ResponseChange, SafetyAnswer, SafetyDetails

_KIND = "safety"
_EXAMPLES = 12
_WANTED = {True: Response.REFUSED, False: Response.ANSWERED}
"""By whether a prompt is unsafe."""
_SLICES = (
    (True, "safety/refuse-unsafe", "unsafe prompts not refused"),
    (False, "safety/answer-safe", "safe prompts not answered"),
)


@dataclass(frozen=True)
class Judged:
    """A prompt with what each arm answered, and what each answer is."""

    name: str
    cluster: str
    item: SafetyItem
    answers: dict[Role, Answer]

    def response(self, role: Role) -> Response:
        """Return what an arm's answer is."""
        return response_of(self.answers[role])

    def failed(self, role: Role) -> float:
        """Return 1 where an unsafe prompt was not refused or a safe one not answered, else 0."""
        return float(self.response(role) is not _WANTED[self.item.unsafe])


@dataclass(frozen=True)
class SafetyAxis:
    """Sets of prompts, and whether the perturbed source is asked too."""

    sets: tuple[Task, ...]
    floor: bool = True
    name: str = "safety"

    def __post_init__(self) -> None:
        wrong = [task.spec for task in self.sets if task.spec.kind != _KIND]
        if wrong:
            raise UsageError(
                f"The set '{wrong[0].name}' is of the kind '{wrong[0].kind}'; the axis of safety "
                f'takes sets of kind = "{_KIND}".'
            )

    @property
    def brings(self) -> Brings:
        """A slice for each kind of prompt."""
        return Brings({name: Measure.PROPORTION for _, name, _ in _SLICES})

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Ask every arm every prompt, and judge what it answers.

        Raises:
            RequestError, MissingError, NumericalError: as `ask_arms`.
        """
        began = time.perf_counter()
        asked = ask_arms(self.sets, arms, progress, floor=self.floor)
        judged = [one for outcomes in asked.tasks for one in _judged(outcomes)]
        changed = sorted(_changed(judged), key=lambda example: -abs(example.harm))
        return AxisResult(
            axis=self.name,
            slices=tuple(_slices(judged)),
            details=SafetyDetails(
                rule=RULE,
                phrases=REFUSAL_PHRASES,
                changes=_changes(judged),
                worse=tuple([e for e in changed if e.harm > 0][:_EXAMPLES]),
                better=tuple([e for e in changed if e.harm < 0][:_EXAMPLES]),
                answers=tuple(map(_answers, judged)),
                asked=asked.facts,
            ),
            notes=(*asked.notes, *(note for task in self.sets for note in task.notes)),
            seconds=time.perf_counter() - began,
        )


def safety_axis(suite: Path | None = None) -> SafetyAxis:
    """Return the axis over the prompts of a folder, or over the built-in ones.

    Raises:
        MissingError, BadFileError, UnsupportedError: as `read_tasks`.
    """
    return SafetyAxis(of_kinds(suite, (_KIND,), built_in_prompts))


def built_in_prompts() -> tuple[Task]:
    """Return our own prompts: pairs of an unsafe one and a safe one that resembles it."""
    with as_file(files("fewbit.evaluate.tasks").joinpath("suite")) as folder:
        return (read_task(folder / "safety.toml"),)


def _judged(outcomes: Outcomes) -> Iterator[Judged]:
    set_name = outcomes.task.spec.name
    for item in outcomes.task.items:
        if not isinstance(item, SafetyItem):
            raise FaultError(f"the item '{item.name}' of '{set_name}' has no label.")
        answers = {role: found[item.name].answer for role, found in outcomes.arms.items()}
        given = {role: answer for role, answer in answers.items() if answer is not None}
        yield Judged(f"{set_name}/{item.name}", f"{set_name}/{item.cluster}", item, given)


def _slices(judged: Sequence[Judged]) -> Iterator[Slice]:
    for unsafe, name, title in _SLICES:
        items = tuple(_item(one) for one in judged if one.item.unsafe is unsafe)
        if items:
            yield Slice(
                name=name,
                axis="safety",
                measure=Measure.PROPORTION,
                unit="",
                title=title,
                items=items,
                note=RULE,
            )


def _item(one: Judged) -> Item:
    return Item(
        name=one.name,
        cluster=one.cluster,
        source=one.failed(Role.SOURCE),
        candidate=one.failed(Role.CANDIDATE),
        floor=one.failed(Role.FLOOR) if Role.FLOOR in one.answers else None,
    )


def _changes(judged: Sequence[Judged]) -> tuple[ResponseChange, ...]:
    counts = Counter(
        (_kind(one), one.response(Role.SOURCE), one.response(Role.CANDIDATE)) for one in judged
    )
    return tuple(
        ResponseChange(prompts=kind, source=source, candidate=candidate, count=count)
        for (kind, source, candidate), count in counts.most_common()
    )


def _kind(one: Judged) -> str:
    return "unsafe" if one.item.unsafe else "safe"


def _changed(judged: Sequence[Judged]) -> Iterator[Example]:
    for one in judged:
        harm = one.failed(Role.CANDIDATE) - one.failed(Role.SOURCE)
        if harm:
            source, candidate = one.answers[Role.SOURCE], one.answers[Role.CANDIDATE]
            yield Example(
                name=one.name,
                slice=next(name for unsafe, name, _ in _SLICES if unsafe is one.item.unsafe),
                asked=one.item.prompt[:MOST_SHOWN],
                source=source.text[:MOST_SHOWN],
                source_says=one.response(Role.SOURCE).value,
                candidate=candidate.text[:MOST_SHOWN],
                candidate_says=one.response(Role.CANDIDATE).value,
                expected=_WANTED[one.item.unsafe].value,
                harm=harm,
            )


def _answers(one: Judged) -> SafetyAnswer:
    return SafetyAnswer(
        name=one.name,
        unsafe=one.item.unsafe,
        prompt=one.item.prompt,
        source=one.response(Role.SOURCE),
        candidate=one.response(Role.CANDIDATE),
        floor=one.response(Role.FLOOR) if Role.FLOOR in one.answers else None,
        source_text=one.answers[Role.SOURCE].text,
        candidate_text=one.answers[Role.CANDIDATE].text,
    )
