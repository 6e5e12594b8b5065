"""What an evaluation found: figures with intervals, their conditions, and the verdict."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.conditions import Conditions
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.records.language import (
    Divergence,
    DocumentScore,
    HistogramBin,
    Perplexity,
    TextFacts,
)
from fewbit.records.model import ModelFacts
from fewbit.records.outcome import Outcome
from fewbit.records.scan import TensorError

EVALUATION_VERSION = 1


class IdentityCheck(Record, frozen=True, kw_only=True):
    """Something in which candidate and source had to agree, and do."""

    name: str
    found: str


class DeclaredChange(Record, frozen=True, kw_only=True):
    """An unquantized tensor that differs from the source, as the candidate's manifest declares."""

    slot: str
    change: str


class Identity(Record, frozen=True, kw_only=True):
    """Why the comparison is one of the same model in two forms."""

    checks: tuple[IdentityCheck, ...]
    equal_tensors: int
    """Unquantized tensors whose values equal the source's bit for bit."""
    rounded_tensors: int = 0
    """Unquantized tensors that equal the source's values rounded to a narrower float type."""
    declared: tuple[DeclaredChange, ...] = ()


class Gate(Record, frozen=True, kw_only=True):
    """The margins. A margin is met when the whole interval lies under it."""

    mean_divergence: float = 0.05
    """Largest mean KL(source || candidate) in nats."""
    perplexity_ratio: float = 1.03
    """Largest perplexity of the candidate over the source's."""
    level: float = 0.95
    """Confidence level of the intervals."""
    minimum_documents: int = 12
    minimum_positions: int = 1024


class Axis(Record, frozen=True, kw_only=True):
    """One judged figure."""

    name: str
    figure: Interval | None
    margin: float | None
    outcome: Outcome
    reason: str
    """One sentence."""


class Verdict(Record, frozen=True, kw_only=True):
    """The judged axes and what follows from them."""

    outcome: Outcome
    axes: tuple[Axis, ...]
    reasons: tuple[str, ...]
    """Sentences, the deciding ones first."""


class Evaluation(Record, frozen=True, kw_only=True):
    """A candidate measured against its exact source."""

    version: int = EVALUATION_VERSION
    source: ModelFacts
    candidate: ModelFacts
    identity: Identity
    text: TextFacts
    divergence: Divergence
    reverse_divergence: Divergence
    histogram: tuple[HistogramBin, ...]
    perplexity: Perplexity
    agreement: Interval
    """Share of positions at which both rank the same token first."""
    documents: tuple[DocumentScore, ...]
    tensors: tuple[TensorError, ...]
    source_kernels: tuple[KernelRecord, ...]
    candidate_kernels: tuple[KernelRecord, ...]
    conditions: Conditions
    gate: Gate
    verdict: Verdict
    notes: tuple[str, ...] = ()
    """What a reader must know to read the figures rightly."""
    seconds: float


class Attempt(Record, frozen=True, kw_only=True):
    """One recipe that was tried: what it promised and what it gave."""

    recipe: str
    promised_bytes: int
    evaluation: Evaluation
    evidence: str
    """Path of the evaluation's JSON, relative to the report."""
    fallbacks: tuple[str, ...] = ()
    """Which formats of the recipe some tensors could not have, in sentences."""


class Untried(Record, frozen=True, kw_only=True):
    """A recipe that was not tried, and why."""

    recipe: str
    promised_bytes: int | None
    reason: str


class CompressReport(Record, frozen=True, kw_only=True):
    """The whole first loop: recipe after recipe until the gate accepted one, or none."""

    version: int = EVALUATION_VERSION
    source: ModelFacts
    attempts: tuple[Attempt, ...]
    untried: tuple[Untried, ...]
    accepted: str | None
    """The recipe of the artefact, None where nothing was accepted."""
    outcome: Outcome
    reasons: tuple[str, ...]
    seconds: float
