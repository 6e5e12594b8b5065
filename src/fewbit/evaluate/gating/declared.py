"""A gate's rules and waivers beside what can be and what was measured: which has which margin."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from msgspec.structs import replace

from fewbit.errors import UsageError
from fewbit.evaluate.axis import Brings
from fewbit.records.gate import Gate, SliceRule
from fewbit.records.measurement import AxisResult, Measure, Slice


@dataclass(frozen=True)
class Subject:
    """What is judged: a slice, or several as one, and the rule that holds for it."""

    name: str
    rule: SliceRule | None
    slice: Slice


def subjects(axes: Sequence[AxisResult], gate: Gate) -> Iterator[Subject]:
    """Yield every slice with its rule, then what rules judge as one; empty slices are left out.

    A slice that is judged together with others is yielded without a rule of its own, too.

    Raises:
        UsageError: slices that are judged as one have several measures.
    """
    together: dict[str, tuple[SliceRule, list[Slice]]] = {}
    for found in (found for axis in axes for found in axis.slices if found.items):
        rule = _rule_of(gate, found.name)
        if rule is not None and rule.pool:
            together.setdefault(rule.match, (rule, []))[1].append(found)
        yield Subject(found.name, None if rule is None or rule.pool else rule, found)
    for name, (rule, slices) in together.items():
        yield Subject(name, rule, _pooled(rule, slices))


def require_known(brings: Sequence[Brings], gate: Gate) -> None:
    """Refuse, before anything is measured, what a gate says of slices and findings there cannot be.

    What belongs to an axis that is not measured is no error, nor is an optional rule, which may be
    meant for other texts and tasks.

    Args:
        brings: of every axis that is to run.
        gate: the margins.

    Raises:
        UsageError: with near matches; or slices that are judged as one have several measures.
    """
    slices = {name: measure for one in brings for name, measure in one.slices.items()}
    findings = [name for one in brings for name in one.findings]
    measured = {_axis_of(name) for name in (*slices, *findings)}
    for rule in gate.slices:
        if not rule.optional and _axis_of(rule.match) in measured:
            _require_slices(gate, rule, slices)
        _require_rates(gate, rule, slices)
    for rule, names in _together(gate, slices):
        _require_one_measure(rule, {name: slices[name] for name in names})
    for waiver in gate.waive:
        if waiver.finding not in findings and _axis_of(waiver.finding) in measured:
            raise UsageError(
                f"The gate '{gate.name}' waives '{waiver.finding}', which is no finding; "
                f"{_offer(waiver.finding, findings)}."
            )


def require_acceptable(brings: Sequence[Brings], gate: Gate) -> None:
    """Refuse, before anything is made, a gate that can accept nothing for want of an axis.

    Args:
        brings: of every axis that is to run.
        gate: the margins.

    Raises:
        UsageError: names the rule that is not optional and that no slice can fit.
    """
    names = [name for one in brings for name in one.slices]
    for rule in gate.slices:
        if not rule.optional and not any(fnmatchcase(name, rule.match) for name in names):
            raise UsageError(
                f"The gate '{gate.name}' asks for '{rule.match}', which no axis that is measured "
                f"brings, so that nothing could be accepted; measure {_axis_of(rule.match)} too, "
                "or give the rule optional = true."
            )


def _together(gate: Gate, names: Iterable[str]) -> Iterator[tuple[SliceRule, list[str]]]:
    """Yield each rule that judges slices as one, with those of the names that it does."""
    first = {name: _rule_of(gate, name) for name in names}
    for rule in gate.slices:
        if rule.pool:
            yield rule, [name for name, found in first.items() if found is rule]


def _require_slices(gate: Gate, rule: SliceRule, names: Iterable[str]) -> None:
    """Refuse a rule that must judge something and has nothing to judge, since no ACCEPT follows."""
    fitting = [name for name in names if fnmatchcase(name, rule.match)]
    if not fitting:
        raise UsageError(
            f"The pattern '{rule.match}' of the gate '{gate.name}' fits no slice; "
            f"{_offer(rule.match, names)}."
        )
    if not any(_rule_of(gate, name) is rule for name in fitting):
        raise UsageError(
            f"Earlier rules of the gate '{gate.name}' judge all that its '{rule.match}' fits "
            f"({', '.join(fitting)}); leave it out, or put it first."
        )


def _require_one_measure(rule: SliceRule, measures: Mapping[str, Measure]) -> None:
    if len(set(measures.values())) > 1:
        kinds = ", ".join(f"{name} is a {measure.value}" for name, measure in measures.items())
        raise UsageError(
            f"The gate judges '{rule.match}' as one, but {kinds}; pool slices of one measure."
        )


def _require_rates(gate: Gate, rule: SliceRule, slices: Mapping[str, Measure]) -> None:
    """Refuse a share of the source's own rate where a slice has none; of `SliceRule.relative`."""
    judged = [name for name in slices if _rule_of(gate, name) is rule]
    others = [name for name in judged if slices[name] is not Measure.PROPORTION]
    if rule.relative and others:
        raise UsageError(
            f"The gate's rule '{rule.match}' has relative = {rule.relative:g}, but {others[0]} is "
            f"no proportion ({slices[others[0]].value}); leave relative out."
        )


def _rule_of(gate: Gate, name: str) -> SliceRule | None:
    return next((rule for rule in gate.slices if fnmatchcase(name, rule.match)), None)


def _axis_of(name: str) -> str:
    return name.partition("/")[0]


def _offer(name: str, known: Iterable[str]) -> str:
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, 3)
    if not near:
        own = [known for known in names if _axis_of(known) == _axis_of(name)]
        return f"there are {', '.join(own or names) or 'none'}"
    return f"did you mean {' or '.join(near)}"


def _pooled(rule: SliceRule, slices: Sequence[Slice]) -> Slice:
    """Return all items as one slice; clusters of one name are one, whatever slice they are in."""
    first = slices[0]
    _require_one_measure(rule, {found.name: found.measure for found in slices})
    items = tuple(
        replace(item, name=f"{found.name}/{item.name}") for found in slices for item in found.items
    )
    title = f"{len(slices)} slices as one" if len(slices) > 1 else first.title
    return Slice(
        name=rule.match,
        axis=first.axis,
        measure=first.measure,
        unit=first.unit,
        title=title,
        items=items,
    )
