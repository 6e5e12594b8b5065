"""A gate's rules and waivers beside what was measured: which slice has which margin."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from msgspec.structs import replace

from fewbit.errors import UsageError
from fewbit.records.gate import Gate, SliceRule
from fewbit.records.measurement import AxisResult, Slice


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
        rule = next((r for r in gate.slices if fnmatchcase(found.name, r.match)), None)
        if rule is not None and rule.pool:
            together.setdefault(rule.match, (rule, []))[1].append(found)
        yield Subject(found.name, None if rule is None or rule.pool else rule, found)
    for name, (rule, slices) in together.items():
        yield Subject(name, rule, _pooled(rule, slices))


def require_declared(axes: Sequence[AxisResult], gate: Gate) -> None:
    """Refuse what a gate says of slices and findings that are not there.

    What belongs to an axis that was not measured is no error.

    Raises:
        UsageError: with near matches.
    """
    slices = [found.name for axis in axes for found in axis.slices]
    findings = [finding.name for axis in axes for finding in axis.findings]
    ran = {axis.axis for axis in axes} | {_axis_of(name) for name in (*slices, *findings)}
    for rule in gate.slices:
        fits = any(fnmatchcase(name, rule.match) for name in slices)
        if not fits and not rule.optional and _axis_of(rule.match) in ran:
            raise UsageError(
                f"The pattern '{rule.match}' of the gate '{gate.name}' fits no slice that was "
                f"measured; {_offer(rule.match, slices)}."
            )
    for waiver in gate.waive:
        if waiver.finding not in findings and _axis_of(waiver.finding) in ran:
            raise UsageError(
                f"The gate '{gate.name}' waives '{waiver.finding}', which is no finding; "
                f"{_offer(waiver.finding, findings)}."
            )


def _axis_of(name: str) -> str:
    return name.partition("/")[0]


def _offer(name: str, known: Iterable[str]) -> str:
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, 3)
    if not near:
        return f"there are {', '.join(names) or 'none'}"
    return f"did you mean {' or '.join(near)}"


def _pooled(rule: SliceRule, slices: Sequence[Slice]) -> Slice:
    """Return all items as one slice; clusters of one name are one, whatever slice they are in."""
    first = slices[0]
    measures = {found.measure for found in slices}
    if len(measures) > 1:
        kinds = ", ".join(f"{found.name} is a {found.measure.value}" for found in slices)
        raise UsageError(
            f"The gate judges '{rule.match}' as one, but {kinds}; pool slices of one measure."
        )
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
