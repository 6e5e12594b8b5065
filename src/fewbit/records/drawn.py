"""Evidence that several axes bring and a report draws alike: curves, distributions, examples.

An axis keeps them in its details; whoever draws needs no more than these to know how.
"""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.interval import Interval


class Band(Record, frozen=True, kw_only=True):
    """What was found where something lies in [low, high)."""

    low: float
    high: float | None
    """None of a last band without an end."""
    count: int
    figure: Interval
    """The mean over the band."""
    floor: float | None = None
    """The same on the perturbed source; None where that arm was not run."""


class Curve(Record, frozen=True, kw_only=True):
    """A figure along something, as divergence along the position in the window."""

    title: str
    """What a reader sees, as "Divergence by position"."""
    across: str
    """What runs along, with its unit, as `position, tokens`."""
    unit: str
    """Of the figure, as `nats`; empty for rates and ratios."""
    bands: tuple[Band, ...]
    logarithmic: bool = False
    """The bands' edges are spread over several powers of ten or two."""
    note: str = ""


class Distribution(Record, frozen=True, kw_only=True):
    """All values of one kind on one arm, none left out, as every gap between tokens."""

    title: str
    """What was measured, as "Gap between tokens, 4 requests at once"; both arms have the same."""
    arm: str
    """`source`, `candidate`, or what else was measured."""
    unit: str
    values: tuple[float, ...]
    """In the order in which they were met."""


class Example(Record, frozen=True, kw_only=True):
    """One item with what source and candidate answered, to be read side by side."""

    name: str
    """The item's name in its slice."""
    slice: str
    asked: str
    """The prompt, or the text before."""
    source: str
    candidate: str
    source_says: str = ""
    """How the source's answer was judged, in a few words, as `right` or `refused`."""
    candidate_says: str = ""
    expected: str = ""
    """What would have been right; empty where nothing is."""
    harm: float
    """The candidate's value minus the source's; the worst come first."""
