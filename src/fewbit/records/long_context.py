"""What the axis of long context has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.drawn import Curve, Example


class Recalled(Record, frozen=True, kw_only=True):
    """How one arm answered a question behind a long text."""

    failed: bool
    said: str
    """The answer it found likeliest, or what it answered."""
    loss: float | None = None
    """Nats that the right answer's share of the probability of all choices is short of 1; None
    where no choices were given."""


class RecallRow(Record, frozen=True, kw_only=True):
    """Failures of one kind of question at one length of text."""

    kind: str
    tokens: int
    asked: int
    source: int
    floor: int | None = None
    candidate: int


class LongContextDetails(Record, frozen=True, kw_only=True, tag="long-context"):
    """What a reader may look up of long context."""

    judged: str
    """How an answer was judged, in words."""
    longest: int
    """Tokens of the longest text that was asked about."""
    document: int | None = None
    """Tokens of the document that divergence was measured along; None where it was not."""
    recalls: tuple[RecallRow, ...]
    """Failures by kind of question and length."""
    curves: tuple[Curve, ...] = ()
    examples: tuple[Example, ...] = ()
    """What the source answered rightly and the candidate did not, or the other way round."""
