"""Two evaluations beside each other, slice by slice."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.gate import Judgement
from fewbit.records.interval import Interval
from fewbit.records.measurement import Finding, Measure
from fewbit.records.model import ModelFacts
from fewbit.records.outcome import Outcome

COMPARISON_VERSION = 1


class ComparedSide(Record, frozen=True, kw_only=True):
    """One of the two evaluations."""

    name: str
    """Where it was read from."""
    source: ModelFacts
    candidate: ModelFacts
    outcome: Outcome
    seconds: float


class ComparedSlice(Record, frozen=True, kw_only=True):
    """One slice in both; larger is worse."""

    slice: str
    title: str
    measure: Measure
    unit: str
    first: Judgement | None
    """None where the first has no such slice."""
    second: Judgement | None
    difference: Interval | None = None
    """The second candidate against the first, over items that both have; None where they cannot
    be paired."""
    items: int = 0
    """Those that were paired."""
    why_not: str = ""
    """Why nothing was paired, in one sentence; empty where it was."""


class ComparedFinding(Record, frozen=True, kw_only=True):
    """A finding that is not the same in both; None where one of them has none of that name."""

    name: str
    first: Finding | None
    second: Finding | None


class Comparison(Record, frozen=True, kw_only=True):
    """What `fewbit report` says of two evaluations."""

    version: int = COMPARISON_VERSION
    first: ComparedSide
    second: ComparedSide
    differences: tuple[str, ...]
    """What else differs between the two runs, in sentences: source, text, gate, machine."""
    slices: tuple[ComparedSlice, ...]
    findings: tuple[ComparedFinding, ...]
    level: float
    """Confidence of the paired intervals."""
