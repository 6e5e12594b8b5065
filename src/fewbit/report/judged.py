"""Judgements beside the slices they are of, ready to be drawn as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fewbit.records.evaluation import Attempt, CompressReport, Evaluation
from fewbit.records.figures import describe, most_of_none, number, points, ratio_of, size
from fewbit.records.gate import Judgement, SliceRule
from fewbit.records.interval import Interval
from fewbit.records.measurement import Item, Measure, Slice
from fewbit.records.outcome import Outcome
from fewbit.report.curves import amount
from fewbit.report.strips import Flips, Strip, flips_of


@dataclass(frozen=True)
class Row:
    """One judgement with the slices that it is of; of several, the first stands for all."""

    judgement: Judgement
    slices: tuple[Slice, ...]
    rule: SliceRule | None = None
    """The gate's, None where none fits."""

    @property
    def axis(self) -> str:
        """The axis that it belongs to."""
        return self.judgement.slice.partition("/")[0]

    @property
    def title(self) -> str:
        """What a reader sees."""
        if len(self.slices) == 1:
            return self.slices[0].title
        return f"{self.judgement.slice}, {len(self.slices)} slices as one"

    @property
    def measure(self) -> Measure:
        """How the items became a figure."""
        return self.slices[0].measure if self.slices else Measure.MEAN

    @property
    def unit(self) -> str:
        """The figure's unit, `×` of a ratio and empty of a rate."""
        return unit_of(self.measure, self.slices[0].unit if self.slices else "")

    @property
    def judged(self) -> Interval:
        """What is held against the margin: the excess over the floor, unless the gate says not."""
        excess = self.judgement.excess
        return excess if self.is_excess and excess is not None else self.judgement.figure

    @property
    def is_excess(self) -> bool:
        """Whether what is held against the margin is the excess over the floor."""
        wanted = self.rule is None or self.rule.excess
        return wanted and self.judgement.excess is not None

    @property
    def word(self) -> str:
        """The outcome, or that there is none."""
        outcome = self.judgement.outcome
        return "NOT JUDGED" if outcome is None else outcome.value

    @property
    def strip(self) -> Strip | None:
        """What is drawn; None of what is not judged."""
        judgement = self.judgement
        if judgement.margin is None or judgement.outcome is None:
            return None
        return Strip(
            name=self.title,
            figure=self.judged,
            floor=judgement.floor,
            margin=judgement.margin,
            origin=self.measure.origin,
            outcome=judgement.outcome.value,
        )

    @property
    def flips(self) -> Flips | None:
        """How items went, where each passes or fails."""
        if self.measure is not Measure.PROPORTION:
            return None
        return flips_of([(i.source, i.candidate) for s in self.slices for i in s.items])

    def arm(self, arm: str) -> str:
        """Return the figure of one arm by itself, `source`, `floor` or `candidate`, in words.

        Where no item failed the rate has its bound beside it.
        """
        items = [item for s in self.slices for item in s.items]
        values = [getattr(item, arm) for item in items]
        if not items or None in values:
            return ""
        words = shown(_mean(items, values), self.measure, self.slices[0].unit)
        if self.measure is Measure.PROPORTION and not any(values):
            return f"{words} (under {most_of_none(len(items)):.1%} at 95%)"
        return words

    def words(self, figure: Interval | None) -> str:
        """Return a figure with its bounds in words; percentage points of a difference of rates."""
        if figure is None:
            return ""
        return in_words(figure, self.measure, self.unit, self.judgement.margin)

    @property
    def margin(self) -> str:
        """The margin in words."""
        margin = self.judgement.margin
        if margin is None:
            return ""
        if self.measure is Measure.PROPORTION:
            return f"{100 * margin:g} points"
        return f"{margin:g} {self.unit}".strip()


def rows_of(evaluation: Evaluation) -> list[Row]:
    """Return a row for each judgement, in their order."""
    slices = [found for axis in evaluation.axes for found in axis.slices]
    rules = evaluation.gate.slices
    return [
        Row(judgement, _slices(judgement.slice, slices, rules), _rule(judgement.slice, rules))
        for judgement in evaluation.judgements
    ]


def _slices(name: str, slices: Sequence[Slice], rules: Sequence[SliceRule]) -> tuple[Slice, ...]:
    """Return the slice of a name, or those that are pooled under a pattern.

    A slice belongs to the first rule that fits it, as the gate has it.
    """
    named = tuple(found for found in slices if found.name == name)
    return named or tuple(s for s in slices if (r := _rule(s.name, rules)) and r.match == name)


def _rule(name: str, rules: Sequence[SliceRule]) -> SliceRule | None:
    fits = (rule for rule in rules if rule.match == name or fnmatchcase(name, rule.match))
    return next(fits, None)


def shown_attempt(report: CompressReport) -> Attempt | None:
    """Return the attempt that was written, or that the reasons speak of; None without any.

    Records that do not say which that is have the one of least divergence.
    """
    wanted = report.accepted or report.closest or report.nearest
    named = [a for a in report.attempts if a.recipe == wanted]
    by_divergence = sorted(report.attempts, key=_divergence)
    return next(iter([*named, *by_divergence]), None)


def _divergence(attempt: Attempt) -> float:
    kl = attempt.evaluation.judgement("language/kl")
    return float("inf") if kl is None else kl.figure.value


def deciding(reasons: Sequence[str], evaluation: Evaluation | None) -> tuple[str, ...]:
    """Return the reasons that a reader needs: not what passed, which is listed by itself.

    Of slices all are told where the verdict is ACCEPT, and otherwise those that stood in the way.

    Args:
        reasons: of a verdict, the deciding ones first.
        evaluation: whose slices they speak of; None leaves all.
    """
    if evaluation is None:
        return tuple(reasons)
    findings = (finding for axis in evaluation.axes for finding in axis.findings)
    told = {f"{f.name}: {f.found.rstrip('.')}." for f in findings if f.passed}
    if evaluation.verdict.outcome is not Outcome.ACCEPT:
        told |= {j.reason for j in evaluation.judgements if j.outcome is Outcome.ACCEPT}
    return tuple(reason for reason in reasons if reason not in told)


def in_words(figure: Interval, measure: Measure, unit: str, margin: float | None = None) -> str:
    """Return a figure with its bounds and unit; a difference of rates in percentage points."""
    if measure is not Measure.PROPORTION:
        return f"{describe(figure, margin)} {unit}".strip()
    value, bounds = points(figure.value, margin), ""
    if figure.low is not None and figure.high is not None:
        bounds = f" [{points(figure.low, margin)}, {points(figure.high, margin)}]"
    return f"{value}{bounds} points"


def unit_of(measure: Measure, unit: str) -> str:
    """Return the unit of a figure of a slice whose items have `unit`: ratios are `×`."""
    return "×" if measure.is_ratio else unit


def shown(value: float, measure: Measure, unit: str) -> str:
    """Return one arm's mean in words: a rate, a perplexity, or an amount in its unit."""
    if measure is Measure.PROPORTION:
        return f"{value:.1%}"
    if measure is Measure.PERPLEXITY:
        return number(ratio_of(value))
    return size(int(value)) if unit == "bytes" else amount(value, unit)


def _mean(items: Sequence[Item], values: Sequence[float]) -> float:
    total = sum(item.weight for item in items)
    return sum(i.weight * v for i, v in zip(items, values, strict=True)) / total if total else 0.0
