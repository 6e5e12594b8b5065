"""What an axis of an evaluation found: paired items, facts, and what a reader may look up.

Every figure is harm: larger is worse. An item carries what was found on each arm, so that each
mean, rate and interval can be made again, on other margins or by a better method.
"""

from __future__ import annotations

from enum import Enum

from fewbit.records.base import Record
from fewbit.records.endpoint import EndpointDetails
from fewbit.records.kernel_axis import KernelsDetails
from fewbit.records.language import LanguageDetails
from fewbit.records.long_context import LongContextDetails
from fewbit.records.memory_axis import MemoryDetails
from fewbit.records.numerics import NumericsDetails
from fewbit.records.safety import SafetyDetails
from fewbit.records.scan import ScanDetails
from fewbit.records.speed_axis import SpeedDetails
from fewbit.records.tasks import TasksDetails
from fewbit.records.tools import ToolsDetails


class Measure(Enum):
    """How the items of a slice become one figure; s, c and w are an item's values and weight."""

    MEAN = "mean"
    """sum of w (c - s) over the sum of w; of a divergence from the source, s is 0."""
    PROPORTION = "proportion"
    """The same of items that failed (1) or did not (0): a difference of two rates."""
    PERPLEXITY = "perplexity"
    """exp of the same, of losses in nats: a ratio of two perplexities."""
    RATIO = "ratio"
    """sum of c over the sum of s, as of seconds or bytes."""

    @property
    def is_ratio(self) -> bool:
        """Whether the figure is so many times the source's."""
        return self in (Measure.PERPLEXITY, Measure.RATIO)

    @property
    def origin(self) -> float:
        """The figure of no harm."""
        return 1.0 if self.is_ratio else 0.0


class Item(Record, frozen=True, kw_only=True):
    """One thing that was asked of every arm, and how badly each of them did."""

    name: str
    cluster: str
    """What resembles each other has the same, as the parts of one document; it is resampled
    together."""
    weight: float = 1.0
    source: float
    candidate: float
    floor: float | None = None
    """On the source perturbed within its own arithmetic; None where that arm was not run."""


class Slice(Record, frozen=True, kw_only=True):
    """Items that are judged together."""

    name: str
    """Its axis first, as `tasks/arithmetic`; margins are declared by it."""
    axis: str
    measure: Measure
    unit: str
    """As `nats`, `seconds`; empty for rates and ratios."""
    title: str
    """What a reader sees, as "wrong answers in arithmetic"."""
    items: tuple[Item, ...]
    note: str = ""


class Finding(Record, frozen=True, kw_only=True):
    """A fact that needs no statistics; one that neither passed nor is waived rejects."""

    name: str
    """As `kernels/float`; a gate waives it by this name."""
    axis: str
    passed: bool
    found: str
    """One sentence."""
    waived: str = ""
    """The reason that the gate gives, empty where it waives nothing."""


Details = (
    LanguageDetails
    | LongContextDetails
    | TasksDetails
    | SafetyDetails
    | ToolsDetails
    | SpeedDetails
    | MemoryDetails
    | KernelsDetails
    | NumericsDetails
    | EndpointDetails
    | ScanDetails
)
"""What a reader may look up, of each axis its own record."""


class AxisResult(Record, frozen=True, kw_only=True):
    """All that one axis brought."""

    axis: str
    slices: tuple[Slice, ...] = ()
    findings: tuple[Finding, ...] = ()
    details: Details | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know to read the figures rightly."""
    seconds: float
