"""The gate: every slice's interval against its margin, every finding, and what follows.

A slice is accepted when its whole interval lies under its margin; a rounded figure is never
compared. The verdict is ACCEPT only where every slice with a margin is accepted and every finding
passed or is waived by name. Each slice is held to its own level: to be wrongly accepted a bad
candidate must pass in the very slice where it is bad, so that no correction is needed (an
intersection-union test; Berger, Technometrics 24, 1982). A rejection needs one slice only, so that
the chances of error add up: the slices over their margins are found by Holm's procedure
(Scandinavian Journal of Statistics 6, 1979) at the same error. A finding that did not pass rejects.
What is left is INCONCLUSIVE, with how many items would decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import NormalDist

from msgspec.structs import replace

from fewbit.evaluate.gating.declared import Subject, subjects
from fewbit.evaluate.gating.estimates import Draws, Estimate, Estimates, estimate
from fewbit.evaluate.gating.proportions import mcnemar
from fewbit.evaluate.gating.relative import Allowed
from fewbit.records.figures import describe, most_of_none
from fewbit.records.gate import Gate, Judgement, SliceRule, Verdict
from fewbit.records.interval import Interval
from fewbit.records.measurement import AxisResult, Finding, Measure, Slice
from fewbit.records.outcome import BY_WEIGHT, Outcome

POWER = 0.8
"""The chance with which the number of items given would decide."""

MOST_ITEMS = 10_000_000
"""Where more would be needed, the figure is as good as on its margin."""

_Said = tuple[Outcome, str]
"""What a sentence speaks for, and the sentence."""

_NORMAL = NormalDist()


def judge(
    axes: Sequence[AxisResult], gate: Gate, draws: Draws | None = None
) -> tuple[tuple[Judgement, ...], Verdict]:
    """Return what is found of every slice, and the verdict on the candidate.

    Args:
        axes: what was measured.
        gate: the margins, declared before.
        draws: those of an earlier call, where many are judged.

    Raises:
        UsageError: slices judged as one have several measures.
        NumericalError: a value is NaN or infinite.
    """
    found = [_measured(subject, draws or Draws()) for subject in subjects(axes, gate)]
    family = [one.chance for one in found if one.judged]
    rejected = iter(holm(family, _error(gate.level)))
    judgements = tuple(
        _judgement(one, gate, len(family), outside=one.judged and next(rejected)) for one in found
    )
    findings = [finding for axis in waived(axes, gate) for finding in axis.findings]
    return judgements, _verdict(judgements, findings, _unmeasured(gate, found))


def waived(axes: Sequence[AxisResult], gate: Gate) -> tuple[AxisResult, ...]:
    """Return the axes with the gate's reasons written to the findings that it waives."""
    reasons = {waiver.finding: waiver.reason for waiver in gate.waive}

    def written(finding: Finding) -> Finding:
        reason = reasons.get(finding.name, "")
        return finding if finding.passed or not reason else replace(finding, waived=reason)

    return tuple(
        replace(axis, findings=tuple(written(finding) for finding in axis.findings))
        for axis in axes
    )


def holm(chances: Sequence[float], error: float) -> list[bool]:
    """Return which hypotheses Holm's step-down procedure rejects at a familywise error.

    Args:
        chances: a p-value of each.
        error: of rejecting any that is true, such as 0.025.
    """
    rejected = [False] * len(chances)
    for step, at in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        if chances[at] > error / (len(chances) - step):
            break
        rejected[at] = True
    return rejected


def items_needed(items: int, deviate: float, error: float) -> int | None:
    """Return how many items would decide with `POWER`, were the true figure the one found.

    A figure's distance from its margin, in normal deviates, grows with the root of the number of
    items; it must reach the quantile of the error and that of the power together.

    Args:
        items: those there are.
        deviate: how far the margin lies from the figure with them, either side.
        error: one-sided, of the decision.
    """
    wanted = _NORMAL.inv_cdf(1.0 - error) + _NORMAL.inv_cdf(POWER)
    if abs(deviate) * math.sqrt(MOST_ITEMS / items) < wanted:
        return None
    return max(items + 1, math.ceil(items * (wanted / deviate) ** 2))


@dataclass(frozen=True)
class _Measured:
    """A slice with its rule, where it has one, and what its items give."""

    name: str
    rule: SliceRule | None
    slice: Slice
    estimates: Estimates

    @property
    def excess(self) -> bool:
        """Whether the excess over the floor is held to the margin."""
        return self.rule is not None and self.rule.excess and self.estimates.excess is not None

    @property
    def held(self) -> Estimate:
        """What is held to the margin."""
        excess = self.estimates.excess
        return excess if self.excess and excess is not None else self.estimates.figure

    @property
    def enough(self) -> bool:
        """Whether there are as many items and clusters as the rule asks for."""
        rule, found = self.rule, self.estimates
        return rule is None or (
            found.items >= rule.minimum_items and found.clusters >= rule.minimum_clusters
        )

    @property
    def judged(self) -> bool:
        """Whether there is a margin, and enough to hold to it."""
        return self.rule is not None and self.enough

    @property
    def margin(self) -> float:
        """The rule's, and what it allows on top."""
        assert self.rule is not None
        held = self.held
        return self.rule.margin + (held.allowance if isinstance(held, Allowed) else 0.0)

    @property
    def chance(self) -> float:
        """The p-value of "the true figure does not exceed the margin"."""
        return self.held.chance_under(self.margin)


def _measured(subject: Subject, draws: Draws) -> _Measured:
    share = 0.0 if subject.rule is None else subject.rule.relative
    found = estimate(subject.slice, draws, share)
    return _Measured(subject.name, subject.rule, subject.slice, found)


def _error(level: float) -> float:
    return (1.0 - level) / 2.0


def _judgement(one: _Measured, gate: Gate, family: int, *, outside: bool) -> Judgement:
    estimates, level = one.estimates, gate.level
    held = one.held.interval(level)
    outcome = None if one.rule is None else _outcome(one, held, outside=outside)
    needed = _needed(one, gate, family) if outcome is Outcome.INCONCLUSIVE else None
    return Judgement(
        slice=one.name,
        figure=estimates.figure.interval(level),
        floor=None if estimates.floor is None else estimates.floor.interval(level),
        excess=None if estimates.excess is None else estimates.excess.interval(level),
        margin=None if one.rule is None else one.margin,
        outcome=outcome,
        reason=_reason(one, held, outcome, family, needed),
        items=estimates.items,
        clusters=estimates.clusters,
        items_needed=needed,
    )


def _outcome(one: _Measured, held: Interval, *, outside: bool) -> Outcome:
    if outside:
        return Outcome.REJECT
    under = held.high is not None and held.high < one.margin
    return Outcome.ACCEPT if under and one.enough else Outcome.INCONCLUSIVE


def _needed(one: _Measured, gate: Gate, family: int) -> int | None:
    rule, items = one.rule, one.estimates.items
    assert rule is not None
    if not one.enough:
        by_clusters = math.ceil(items * rule.minimum_clusters / one.estimates.clusters)
        return max(rule.minimum_items, by_clusters)
    deviate = one.held.deviate(one.margin)
    error = _error(gate.level) / (1 if deviate > 0.0 else family)
    return items_needed(items, deviate, error)


def _reason(
    one: _Measured, held: Interval, outcome: Outcome | None, family: int, needed: int | None
) -> str:
    """Return one sentence, and for proportions a second one with what it is made of."""
    rule, name = one.rule, f"{one.name} ({one.slice.title})"
    shown = describe(held, one.margin if rule else None)
    shown += f" {one.slice.unit}" if one.slice.unit else ""
    what = f"The excess of {name} over the floor, {shown}," if one.excess else f"{name}, {shown},"
    if rule is None:
        return f"{what} has no margin.{_failed(one)}"
    said = _relation(one, held, outcome, family)
    return f"{what} {said}{_would_decide(one, held, outcome, needed)}.{_failed(one)}"


def _relation(one: _Measured, held: Interval, outcome: Outcome | None, family: int) -> str:
    rule, found = one.rule, one.estimates
    assert rule is not None
    margin = f"the margin of {_margin(one)}"
    if not one.enough:
        return (
            f"is not judged on {found.items} items in {found.clusters} clusters; "
            f"at least {rule.minimum_items} in {rule.minimum_clusters} are needed"
        )
    if held.low is None or held.high is None:
        return f"has no interval over {found.clusters} clusters to hold to {margin}"
    if outcome is Outcome.ACCEPT:
        return f"lies under {margin}"
    corrected = f"by Holm's correction over {family} slices" if family > 1 else ""
    if outcome is Outcome.REJECT:
        return f"lies over {margin} {corrected}".rstrip()
    if held.low > one.margin:
        return f"lies over {margin}, but not {corrected}"
    return f"reaches across {margin}"


def _margin(one: _Measured) -> str:
    """Return the margin, and what it is made of where that is more than the rule says."""
    rule, held = one.rule, one.held
    assert rule is not None
    if not isinstance(held, Allowed):
        return f"{rule.margin:g}"
    whose = "floor" if one.excess else "source"
    return (
        f"{one.margin:.4g} ({rule.margin:g}, and {rule.relative:g} of the {held.rate:.1%} that the "
        f"{whose} has itself)"
    )


def _would_decide(
    one: _Measured, held: Interval, outcome: Outcome | None, needed: int | None
) -> str:
    if outcome is not Outcome.INCONCLUSIVE or not one.enough:
        return ""
    if blind := _blind(one, held):
        return blind
    if needed is None:
        return "; it is too near to decide by more items"
    value = f"{one.held.value:.4g}"
    return f"; were the true figure {value}, about {needed:,} items would decide"


def _blind(one: _Measured, held: Interval) -> str:
    """Return that not even the same rate could be accepted on so many items, and how many could."""
    if one.slice.measure is not Measure.PROPORTION or held.high is None:
        return ""
    half = held.high - held.value
    if half < one.margin:
        return ""
    error = (1.0 - held.level) / 2.0
    needed = items_needed(
        one.estimates.items, one.margin / half * _NORMAL.inv_cdf(1 - error), error
    )
    could = "" if needed is None else f", about {needed:,} could"
    return f"; {one.estimates.items} items cannot accept even a candidate with the same rate{could}"


def _failed(one: _Measured) -> str:
    """Return how many items of a proportion failed; "0 of 200" with its bound, never as none."""
    if one.slice.measure is not Measure.PROPORTION:
        return ""
    items = one.slice.items
    worse = sum(item.candidate > item.source for item in items)
    better = sum(item.candidate < item.source for item in items)
    return (
        f" Failed: candidate {_share([i.candidate for i in items])}, "
        f"source {_share([i.source for i in items])}; {worse} by the candidate alone, {better} by "
        f"the source alone (exact McNemar p = {mcnemar(worse, better):.2g})."
    )


def _share(failed: Sequence[float]) -> str:
    count, of = int(sum(failed)), len(failed)
    if count:
        return f"{count} of {of}"
    return f"0 of {of} (under {most_of_none(of):.1%} at 95%, were items independent)"


def _unmeasured(gate: Gate, found: Sequence[_Measured]) -> list[_Said]:
    """Return a sentence for each rule that must be measured and was not, and one for the rest."""
    absent = [rule for rule in gate.slices if not any(one.rule is rule for one in found)]
    said = [
        (Outcome.INCONCLUSIVE, _of_absent(rule, [one.name for one in found]))
        for rule in absent
        if not rule.optional
    ]
    left = ", ".join(rule.match for rule in absent if rule.optional)
    if left:
        said.append((Outcome.ACCEPT, f"Declared, optional and not measured: {left}."))
    return said


def _of_absent(rule: SliceRule, names: Sequence[str]) -> str:
    taken = ", ".join(name for name in names if fnmatchcase(name, rule.match))
    if taken:
        return (
            f"Of what '{rule.match}' fits only what earlier rules judge was measured ({taken}), "
            "and its margin is not optional."
        )
    return f"Nothing that '{rule.match}' fits was measured, and its margin is not optional."


def _verdict(
    judgements: Sequence[Judgement], findings: Sequence[Finding], more: Sequence[_Said]
) -> Verdict:
    """Return the worst outcome, with its reasons first."""
    said = [(_of_finding(finding), _sentence(finding)) for finding in findings]
    said += [(j.outcome, j.reason) for j in judgements if j.outcome is not None]
    said += more
    if all(judgement.outcome is None for judgement in judgements):
        said.append((Outcome.INCONCLUSIVE, "No slice has a margin, so nothing was judged."))
    ordered = sorted(said, key=lambda one: BY_WEIGHT.index(one[0]))
    return Verdict(outcome=ordered[0][0], reasons=tuple(reason for _, reason in ordered))


def _of_finding(finding: Finding) -> Outcome:
    return Outcome.ACCEPT if finding.passed or finding.waived else Outcome.REJECT


def _sentence(finding: Finding) -> str:
    waived_for = f" (waived: {finding.waived.rstrip('.')})" if finding.waived else ""
    return f"{finding.name}: {finding.found.rstrip('.')}{waived_for}."
