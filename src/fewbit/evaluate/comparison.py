"""Two evaluations compared slice by slice: paired by item where both asked the same of the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fewbit.evaluate.gating.estimates import Draws, estimate
from fewbit.records.comparison import (
    ComparedFinding,
    ComparedSide,
    ComparedSlice,
    Comparison,
)
from fewbit.records.evaluation import Evaluation
from fewbit.records.interval import Interval
from fewbit.records.measurement import Finding, Item, Measure, Slice
from fewbit.records.tasks import TasksDetails

LEVEL = 0.95
_DIFFERENT = "The items of the two have no names in common."


def compare(first: Evaluation, second: Evaluation, names: tuple[str, str]) -> Comparison:
    """Return two evaluations beside each other.

    Where a slice has items of the same names in both, asked of the same text, the second candidate
    is held against the first on those items, with the interval that a gate would give; elsewhere
    the two figures stand side by side, and why is said.

    Args:
        first: what is compared with.
        second: what is compared.
        names: what the two are called, usually their files' paths.
    """
    return Comparison(
        first=_side(first, names[0]),
        second=_side(second, names[1]),
        differences=tuple(_differences(first, second)),
        slices=tuple(_compared_slices(first, second)),
        findings=tuple(_compared_findings(_findings(first), _findings(second))),
        level=LEVEL,
    )


def _side(evaluation: Evaluation, name: str) -> ComparedSide:
    return ComparedSide(
        name=name,
        source=evaluation.source,
        candidate=evaluation.candidate,
        outcome=evaluation.verdict.outcome,
        seconds=evaluation.seconds,
    )


def _differences(first: Evaluation, second: Evaluation) -> Iterator[str]:
    """Yield a sentence for everything but the candidate that is not the same in both."""
    if first.source != second.source:
        yield f"The sources differ: {first.source.path} and {second.source.path}."
    texts = _text(first), _text(second)
    if texts[0] != texts[1]:
        yield f"The texts differ: {texts[0] or 'none'} and {texts[1] or 'none'}."
    if first.gate != second.gate:
        yield f"The gates differ: {first.gate.name} and {second.gate.name}."
    yield from _conditions_that_differ(first, second)
    axes = [{axis.axis for axis in one.axes} for one in (first, second)]
    for only, where in ((axes[0] - axes[1], "first"), (axes[1] - axes[0], "second")):
        if only:
            yield f"Only the {where} measured {', '.join(sorted(only))}."


def _conditions_that_differ(first: Evaluation, second: Evaluation) -> Iterator[str]:
    named = {
        "cpu": "processors",
        "isa": "instruction sets",
        "activations": "activations",
        "threads": "numbers of threads",
        "executor": "executors",
        "fewbit": "versions of fewbit",
        "kv": "KV caches",
    }
    for field, what in named.items():
        one, other = getattr(first.conditions, field), getattr(second.conditions, field)
        if one != other:
            yield f"The {what} differ: {one} and {other}."


def _text(evaluation: Evaluation) -> str:
    """Return the text of the axis of language with its hash, empty where it did not run."""
    details = evaluation.language
    return "" if details is None else f"{details.text.name} ({details.text.sha256[:12]})"


def _tasks(evaluation: Evaluation) -> dict[str, tuple[str, str, str]]:
    """Return of each task's slice the hash of its items' file, how it was asked, and its rule."""
    details = (axis.details for axis in evaluation.axes)
    found = (task for d in details if isinstance(d, TasksDetails) for task in d.tasks)
    return {f"tasks/{task.task}": (task.sha256, task.asked_as, task.rule) for task in found}


def _unlike(first: Evaluation, second: Evaluation) -> dict[str, str]:
    """Return of each slice that asked something else in both, in which way."""
    texts_differ = _text(first) != _text(second)
    found = dict.fromkeys(_slices(first), "The texts differ.") if texts_differ else {}
    found = {name: why for name, why in found.items() if name.startswith("language/")}
    ours, theirs = _tasks(first), _tasks(second)
    named = ("The files of items differ.", "The prompts differ.", "The rules differ.")
    for name in ours.keys() & theirs.keys():
        pairs = zip(ours[name], theirs[name], named, strict=True)
        why = next((said for one, other, said in pairs if one != other), "")
        if why:
            found[name] = why
    return found


def _compared_slices(first: Evaluation, second: Evaluation) -> Iterator[ComparedSlice]:
    ours, theirs = _slices(first), _slices(second)
    draws, unlike = Draws(), _unlike(first, second)
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        shown = one or other
        assert shown is not None
        items, why_not = _paired(one, other, unlike.get(name, ""))
        yield ComparedSlice(
            slice=name,
            title=shown.title,
            measure=shown.measure,
            unit=shown.unit,
            first=first.judgement(name),
            second=second.judgement(name),
            difference=_difference(shown, items, draws) if items else None,
            items=len(items),
            why_not=why_not,
        )


def _slices(evaluation: Evaluation) -> dict[str, Slice]:
    return {found.name: found for axis in evaluation.axes for found in axis.slices}


def _paired(one: Slice | None, other: Slice | None, unlike: str) -> tuple[list[Item], str]:
    """Return items of the first candidate against the second, or why there are none."""
    if one is None or other is None:
        return [], f"Only the {'second' if one is None else 'first'} measured it."
    if one.measure is not other.measure:
        return [], "It is measured in two ways."
    if unlike:
        return [], unlike
    before = {item.name: item for item in one.items}
    shared = [item for item in other.items if _same(before.get(item.name), item)]
    found = [
        Item(
            name=item.name,
            cluster=item.cluster,
            weight=item.weight,
            source=before[item.name].candidate,
            candidate=item.candidate,
        )
        for item in shared
    ]
    return found, "" if found else _DIFFERENT


def _same(before: Item | None, after: Item) -> bool:
    """Whether two items ask the same: name, cluster and weight are equal."""
    return before is not None and (before.cluster, before.weight) == (after.cluster, after.weight)


def _difference(shown: Slice, items: Sequence[Item], draws: Draws) -> Interval | None:
    if shown.measure is Measure.RATIO and any(item.source <= 0.0 for item in items):
        return None
    paired = Slice(
        name=shown.name,
        axis=shown.axis,
        measure=shown.measure,
        unit=shown.unit,
        title=shown.title,
        items=tuple(items),
    )
    return estimate(paired, draws).figure.interval(LEVEL)


def _findings(evaluation: Evaluation) -> dict[str, Finding]:
    return {found.name: found for axis in evaluation.axes for found in axis.findings}


def _compared_findings(
    ours: Mapping[str, Finding], theirs: Mapping[str, Finding]
) -> Iterator[ComparedFinding]:
    """Yield those that passed in one and not in the other, or are only in one."""
    for name in dict.fromkeys([*ours, *theirs]):
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None or _standing(one) != _standing(other):
            yield ComparedFinding(name=name, first=one, second=other)


def _standing(finding: Finding) -> tuple[bool, bool]:
    return finding.passed, bool(finding.waived)
