"""What is asked of a candidate, declared before it is measured, and what came of it."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.interval import Interval
from fewbit.records.outcome import Outcome


class SliceRule(Record, frozen=True, kw_only=True):
    """The margin of the slices that a pattern fits; of several rules the first that fits counts."""

    match: str
    """A slice's name or a shell pattern, as `language/kl` or `tasks/*`. It begins with the name of
    an axis."""
    margin: float
    """What the figure must stay under, the whole interval of it: a difference for means and
    proportions, a ratio for perplexities and ratios."""
    relative: float = 0.0
    """Of a proportion: how much of the rate that the source (or the floor) has itself the margin
    grows by. A source that fails by itself does so elsewhere after any change, so that a difference
    of a few points in all cannot be told from none."""
    minimum_items: int = 50
    """With fewer items nothing is judged: intervals over a handful are not to be believed."""
    minimum_clusters: int = 12
    """The same of clusters, which are what is resampled; no more than the least number of items."""
    excess: bool = True
    """Judge the candidate against the floor where items have one, otherwise against the source."""
    pool: bool = False
    """Judge the items of all slices that fit as one, instead of each slice; clusters of one name
    are one, whatever slice they are in."""
    optional: bool = False
    """Whether a verdict can be ACCEPT where nothing that fits was measured."""


class Waiver(Record, frozen=True, kw_only=True):
    """A finding that does not hinder, and why."""

    finding: str
    """Its whole name; patterns do not waive."""
    reason: str


class Gate(Record, frozen=True, kw_only=True):
    """The margins. A margin is met when the whole interval lies under it."""

    name: str = "built-in"
    """Where it is from, as the path of a file."""
    level: float = 0.95
    """Confidence of the two-sided intervals, so that the bound that is held to a margin has an
    error of half the rest: 2.5% at 0.95."""
    slices: tuple[SliceRule, ...] = ()
    waive: tuple[Waiver, ...] = ()


class Judgement(Record, frozen=True, kw_only=True):
    """A figure with what the gate says of it."""

    slice: str
    """The name of a slice; of several that are judged as one, their pattern."""
    figure: Interval
    """The candidate against the source."""
    floor: Interval | None = None
    """The perturbed source against the source: what "the same" costs."""
    excess: Interval | None = None
    """The candidate against the perturbed source."""
    margin: float | None
    """None where none is declared: the figure is shown and not judged."""
    outcome: Outcome | None
    reason: str
    """One sentence."""
    items: int
    clusters: int
    items_needed: int | None = None
    """How many items would decide with a chance of 80%, were the true figure the one found; None
    where it is decided, and where no number would do."""


class Verdict(Record, frozen=True, kw_only=True):
    """What follows from all judgements and findings."""

    outcome: Outcome
    reasons: tuple[str, ...]
    """Sentences, the deciding ones first."""
