"""Judgements beside the slices they are of, ready to be drawn as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fewbit.records.figures import describe, number
from fewbit.records.gate import Judgement
from fewbit.records.interval import Interval
from fewbit.records.measurement import AxisResult, Item, Measure, Slice
from fewbit.report.strips import Flips, Strip, flips_of

_RATIOS = (Measure.PERPLEXITY, Measure.RATIO)


@dataclass(frozen=True)
class Row:
    """One judgement with the slices that it is of; of several, the first stands for all."""

    judgement: Judgement
    slices: tuple[Slice, ...]

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
        if self.measure in _RATIOS:
            return "×"
        return self.slices[0].unit if self.slices else ""

    @property
    def judged(self) -> Interval:
        """What is held against the margin: the excess over the floor where there is one."""
        return self.judgement.excess or self.judgement.figure

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
            origin=1.0 if self.measure in _RATIOS else 0.0,
            outcome=judgement.outcome.value,
        )

    @property
    def flips(self) -> Flips | None:
        """How items went, where each passes or fails."""
        if self.measure is not Measure.PROPORTION:
            return None
        return flips_of([(i.source, i.candidate) for s in self.slices for i in s.items])

    def arm(self, arm: str) -> str:
        """Return the figure of one arm by itself, `source`, `floor` or `candidate`, in words."""
        items = [item for s in self.slices for item in s.items]
        values = [getattr(item, arm) for item in items]
        if not items or None in values:
            return ""
        return shown(_mean(items, values), self.measure, self.unit)

    def words(self, figure: Interval | None) -> str:
        """Return a figure with its bounds in words; percentage points of a difference of rates."""
        if figure is None:
            return ""
        if self.measure is Measure.PROPORTION:
            return points(figure)
        said = describe(figure, self.judgement.margin)
        return f"{said} {self.unit}".strip()

    @property
    def margin(self) -> str:
        """The margin in words."""
        margin = self.judgement.margin
        if margin is None:
            return ""
        if self.measure is Measure.PROPORTION:
            return f"{100 * margin:g} points"
        return f"{margin:g} {self.unit}".strip()


def rows_of(judgements: Iterable[Judgement], axes: Sequence[AxisResult]) -> list[Row]:
    """Return a row for each judgement, in their order."""
    slices = [found for axis in axes for found in axis.slices]
    return [Row(j, tuple(s for s in slices if _fits(j.slice, s.name))) for j in judgements]


def points(figure: Interval) -> str:
    """Return a difference of rates with its bounds in percentage points."""
    if figure.low is None or figure.high is None:
        return f"{100 * figure.value:+.1f}"
    return f"{100 * figure.value:+.1f} [{100 * figure.low:+.1f}, {100 * figure.high:+.1f}]"


def shown(value: float, measure: Measure, unit: str) -> str:
    """Return one arm's figure in words."""
    if measure is Measure.PROPORTION:
        return f"{value:.1%}"
    return f"{number(value)} {'' if measure in _RATIOS else unit}".strip()


def _fits(pattern: str, name: str) -> bool:
    return pattern == name or fnmatchcase(name, pattern)


def _mean(items: Sequence[Item], values: Sequence[float]) -> float:
    total = sum(item.weight for item in items)
    return sum(i.weight * v for i, v in zip(items, values, strict=True)) / total if total else 0.0
