"""What the axis of language has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.drawn import Curve, Example
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


class FirstChoices(Record, frozen=True, kw_only=True):
    """How often an arm ranks the same token first as the source.

    Where the source all but ties its first two tokens, rounding of any kind decides between them;
    that is told apart from a candidate that changes what the source is decided on.
    """

    arm: str
    all: Interval
    """Share of all positions."""
    decided: Interval | None
    """Share of the positions that are no near-ties; None where all are."""


class Part(Record, frozen=True, kw_only=True):
    """One domain, or one kind of protocol token."""

    name: str
    documents: int
    positions: int
    divergence: Interval
    """Mean KL(source || candidate) in nats."""
    floor: float | None = None
    """The same of the perturbed source."""
    excess: Interval | None = None
    """Of the candidate's mean over the floor's, in nats."""
    perplexity_ratio: Interval
    agreement: Interval
    """Share of positions at which both rank the same token first."""


class LanguageDetails(Record, frozen=True, kw_only=True, tag="language"):
    """What a reader may look up of the divergence on a text; all but `parts` is of that text."""

    text: TextFacts
    divergence: Divergence
    reverse_divergence: Divergence
    histogram: tuple[HistogramBin, ...]
    perplexity: Perplexity
    agreement: Interval
    """Share of positions at which both rank the same token first."""
    first_choices: tuple[FirstChoices, ...] = ()
    """Of the candidate, and of the floor where it was run."""
    near_ties: float = 0.0
    """Share of the positions at which the source's lead is no more than `tie_lead`."""
    tie_lead: float = 0.0
    """In nats, between the logits of the source's first and second token."""
    tie_rule: str = ""
    """Where `tie_lead` comes from, in words."""
    parts: tuple[Part, ...] = ()
    """Domains of the text, the built-in domains, and protocol tokens of the conversations."""
    curves: tuple[Curve, ...] = ()
    examples: tuple[Example, ...] = ()
    """Where the candidate diverges most, once a document."""
    documents: tuple[DocumentScore, ...]


class PassageScores(Record, frozen=True, kw_only=True):
    """What was found of one sequence on one arm: little-endian arrays, one entry a prediction.

    The fields are those of `evaluate.language.divergence.Comparison`: float64, but int32 for ids.
    """

    divergence: bytes
    reverse_divergence: bytes
    source_loss: bytes
    candidate_loss: bytes
    source_first: bytes
    candidate_first: bytes
    source_chance: bytes
    candidate_chance: bytes
    lead: bytes
    candidate_lead: bytes
