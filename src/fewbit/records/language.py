"""What the axis of language has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.interval import Interval


class TextFacts(Record, frozen=True, kw_only=True):
    """The text, and how it was cut into scored positions."""

    name: str
    sha256: str
    documents: int
    windows: int
    window_tokens: int
    tokens: int
    """Tokens run, BOS included."""
    positions: int
    """Predictions compared."""
    bos: str
    """How each window begins, in words."""


class DocumentScore(Record, frozen=True, kw_only=True):
    """The sums over one document from which every mean and interval is made again."""

    name: str
    sha256: str
    positions: int
    divergence: float
    """Sum of KL(source || candidate) in nats."""
    reverse_divergence: float
    """Sum of KL(candidate || source) in nats."""
    source_loss: float
    """Sum of the source's negative log-likelihood in nats."""
    candidate_loss: float
    agreements: int
    """Positions at which both models rank the same token first."""


class Divergence(Record, frozen=True, kw_only=True):
    """The KL divergence per position, in nats, over all positions."""

    mean: Interval
    median: Interval
    p99: Interval
    maximum: float


class HistogramBin(Record, frozen=True, kw_only=True):
    """Positions whose divergence lies in [low, high) nats; `high` is None for the last bin."""

    low: float
    high: float | None
    count: int


class Perplexity(Record, frozen=True, kw_only=True):
    """exp of the mean negative log-likelihood per token, of both models on the same tokens."""

    source: Interval
    candidate: Interval
    ratio: Interval
    """Candidate over source; the interval is of the ratio itself, document by document."""


class WindowScores(Record, frozen=True, kw_only=True):
    """Every scored position of one window, in order; kept, and no part of a report."""

    divergence: tuple[float, ...]
    """As all that follow, what `evaluate.divergence.Comparison` says of its arrays."""
    reverse_divergence: tuple[float, ...]
    source_loss: tuple[float, ...]
    candidate_loss: tuple[float, ...]
    """As all of `candidate`, of whichever arm was run beside the source."""
    source_first: tuple[int, ...]
    candidate_first: tuple[int, ...]
    source_chance: tuple[float, ...]
    candidate_chance: tuple[float, ...]
    lead: tuple[float, ...]
    candidate_lead: tuple[float, ...]


class LanguageDetails(Record, frozen=True, kw_only=True, tag="language"):
    """What a reader may look up of the divergence on a text."""

    text: TextFacts
    divergence: Divergence
    reverse_divergence: Divergence
    histogram: tuple[HistogramBin, ...]
    perplexity: Perplexity
    agreement: Interval
    """Share of positions at which both rank the same token first."""
    documents: tuple[DocumentScore, ...]
