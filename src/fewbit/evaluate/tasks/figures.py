"""What the arms made of a task, as items of a slice, as figures, and as flips to look at."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from fewbit.errors import FaultError
from fewbit.evaluate.arms import PAIR, Role
from fewbit.evaluate.tasks.arms import Outcomes
from fewbit.evaluate.tasks.items import ChoiceItem, GenerationItem, InstructionItem
from fewbit.evaluate.tasks.items import Item as Asked
from fewbit.evaluate.tasks.rules import broken, chosen, is_followed, is_right, lead, scores
from fewbit.evaluate.tasks.spec import TaskSpec
from fewbit.records.drawn import Example
from fewbit.records.generation import FinishReason
from fewbit.records.measurement import Item, Measure, Slice
from fewbit.records.tasks import TaskFigures, TaskOutcome

MOST_SHOWN = 2000
"""Characters of a text in an example."""

_RULES = {
    "likelihood": "the likeliest option counts",
    "likelihood-per-byte": "the option of the highest likelihood per byte counts",
    "exact": "the whole answer has to be right",
    "contains": "the right answer has to stand in what is said",
    "number": "the last number counts",
    "strict": "all instructions of a prompt have to be followed",
    "loose": "all instructions have to be followed, but for first and last line and asterisks",
}


def slice_name(spec: TaskSpec) -> str:
    """Return what a task is called in a gate."""
    return f"tasks/{spec.name}"


def slice_of(outcomes: Outcomes) -> Slice:
    """Return a task as a slice: 1 for an item that is wrong on an arm, 0 for one that is right."""
    spec = outcomes.task.spec
    wrong = {role: _wrong(outcomes, role) for role in outcomes.arms}
    floor = wrong.get(Role.FLOOR)
    return Slice(
        name=slice_name(spec),
        axis="tasks",
        measure=Measure.PROPORTION,
        unit="",
        title=f"wrong in {spec.name}",
        items=tuple(
            Item(
                name=item.name,
                cluster=item.cluster,
                source=wrong[Role.SOURCE][item.name],
                candidate=wrong[Role.CANDIDATE][item.name],
                floor=None if floor is None else floor[item.name],
            )
            for item in outcomes.task.items
        ),
        note=f"Of each item, {_RULES[spec.rule]}.",
    )


def figures(outcomes: Outcomes) -> TaskFigures:
    """Return how many items each arm got right, and where they part."""
    task = outcomes.task
    wrong = {role: _wrong(outcomes, role) for role in outcomes.arms}
    harmful, helpful = _flips(wrong[Role.SOURCE], wrong[Role.CANDIDATE])
    floor = wrong.get(Role.FLOOR)
    floor_flips = (None, None) if floor is None else _flips(wrong[Role.SOURCE], floor)
    return TaskFigures(
        task=task.spec.name,
        kind=task.spec.kind,
        rule=task.spec.rule,
        asked_as=task.spec.asked_as.value,
        items=len(task.items),
        clusters=len({item.cluster for item in task.items}),
        chance=_chance(task.items),
        source_right=_right(wrong[Role.SOURCE]),
        candidate_right=_right(wrong[Role.CANDIDATE]),
        floor_right=None if floor is None else _right(floor),
        harmful=harmful,
        helpful=helpful,
        floor_harmful=floor_flips[0],
        floor_helpful=floor_flips[1],
        lead_change=_lead_change(outcomes),
        capped=sum(map(_is_capped, outcomes.arms[Role.CANDIDATE].values())),
        sha256=task.sha256,
    )


def examples(outcomes: Outcomes) -> list[Example]:
    """Return the items on which source and candidate part, the clearest losses first."""
    wrong = {role: _wrong(outcomes, role) for role in PAIR}
    found = [
        (_loss(outcomes, item), _example(outcomes, item, harm))
        for item in outcomes.task.items
        if (harm := wrong[Role.CANDIDATE][item.name] - wrong[Role.SOURCE][item.name])
    ]
    return [example for _, example in sorted(found, key=lambda pair: -pair[0])]


def _wrong(outcomes: Outcomes, role: Role) -> dict[str, float]:
    rule, arm = outcomes.task.spec.rule, outcomes.arms[role]
    return {i.name: float(not _item_right(rule, i, arm[i.name])) for i in outcomes.task.items}


def _item_right(rule: str, item: Asked, outcome: TaskOutcome) -> bool:
    if isinstance(item, ChoiceItem):
        return chosen(_scores(rule, item, outcome)) == item.answer
    if isinstance(item, GenerationItem):
        return is_right(rule, item, _text(outcome))
    if isinstance(item, InstructionItem):
        return is_followed(rule, item, _text(outcome))
    raise FaultError(f"the item '{item.name}' is of the axis of safety.")


def _scores(rule: str, item: ChoiceItem, outcome: TaskOutcome) -> tuple[float, ...]:
    if outcome.choice is None:
        raise FaultError(f"the item '{item.name}' has options and its outcome no likelihoods.")
    return scores(rule, item, outcome.choice)


def _text(outcome: TaskOutcome) -> str:
    return "" if outcome.answer is None else outcome.answer.text


def _is_capped(outcome: TaskOutcome) -> bool:
    return outcome.answer is not None and outcome.answer.finish is FinishReason.LENGTH


def _flips(source: Mapping[str, float], other: Mapping[str, float]) -> tuple[int, int]:
    """Return harmful and helpful flips."""
    harmful = sum(other[name] > value for name, value in source.items())
    return harmful, sum(other[name] < value for name, value in source.items())


def _right(wrong: Mapping[str, float]) -> float:
    return 1.0 - sum(wrong.values()) / len(wrong)


def _chance(items: tuple[Asked, ...]) -> float | None:
    shares = [Fraction(1, len(item.options)) for item in items if isinstance(item, ChoiceItem)]
    return float(sum(shares) / len(shares)) if shares else None


def _leads(outcomes: Outcomes, role: Role, item: ChoiceItem) -> float:
    return lead(item, _scores(outcomes.task.spec.rule, item, outcomes.arms[role][item.name]))


def _lead_change(outcomes: Outcomes) -> float | None:
    losses = [_loss(outcomes, i) for i in outcomes.task.items if isinstance(i, ChoiceItem)]
    return sum(losses) / len(losses) if losses else None


def _loss(outcomes: Outcomes, item: Asked) -> float:
    """Return how much of the right option's lead the candidate lost; 0 without options."""
    if not isinstance(item, ChoiceItem):
        return 0.0
    source = _leads(outcomes, Role.SOURCE, item)
    return source - _leads(outcomes, Role.CANDIDATE, item)


def _example(outcomes: Outcomes, item: Asked, harm: float) -> Example:
    spec = outcomes.task.spec
    said = {role: _said(spec.rule, item, outcomes.arms[role][item.name]) for role in PAIR}
    return Example(
        name=item.name,
        slice=slice_name(spec),
        asked=item.prompt[:MOST_SHOWN],
        source=said[Role.SOURCE][0],
        source_says=said[Role.SOURCE][1],
        candidate=said[Role.CANDIDATE][0],
        candidate_says=said[Role.CANDIDATE][1],
        expected=_expected(item),
        harm=harm,
    )


def _said(rule: str, item: Asked, outcome: TaskOutcome) -> tuple[str, str]:
    """Return what an arm said, and how that was judged."""
    judged = "right" if _item_right(rule, item, outcome) else "wrong"
    if isinstance(item, ChoiceItem):
        values = _scores(rule, item, outcome)
        each = (f"{text} ({value:.2f})" for text, value in zip(item.options, values, strict=True))
        return f"{item.options[chosen(values)]}\n\n{', '.join(each)}"[:MOST_SHOWN], judged
    if isinstance(item, InstructionItem):
        judged = ", ".join("not: " + id_ for id_ in broken(rule, item, _text(outcome))) or judged
    return _text(outcome)[:MOST_SHOWN], judged


def _expected(item: Asked) -> str:
    if isinstance(item, ChoiceItem):
        return item.options[item.answer]
    if isinstance(item, GenerationItem):
        return " or ".join(item.answers)
    if isinstance(item, InstructionItem):
        return ", ".join(instruction.id for instruction in item.instructions)
    return ""
