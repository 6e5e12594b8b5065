"""What an evaluation found: figures with intervals, their conditions, and the verdict."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.conditions import Conditions
from fewbit.records.gate import Gate, Judgement, Verdict
from fewbit.records.kernels import KernelRecord
from fewbit.records.language import LanguageDetails
from fewbit.records.measurement import AxisResult
from fewbit.records.model import ModelFacts
from fewbit.records.outcome import Outcome
from fewbit.records.scan import TensorError

EVALUATION_VERSION = 2


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
    source_sha256: str = ""
    """Of all tensors, as a manifest has it; empty where the model cannot be read."""
    candidate_sha256: str = ""
    source_revision: str = ""
    """The snapshot of a hub's repository that the source's path names, if it names one."""


class ArmFacts(Record, frozen=True, kw_only=True):
    """How one arm was run."""

    role: str
    """`source`, `floor` or `candidate`."""
    run: str
    """In words; of the floor, in what it differs from the source."""
    begins: str = ""
    """What is put before a text, in words; it is there once."""
    template: str = ""
    """The SHA-256 of the chat template; empty where there is none."""


class Evaluation(Record, frozen=True, kw_only=True):
    """A candidate measured against its exact source."""

    version: int = EVALUATION_VERSION
    source: ModelFacts
    candidate: ModelFacts
    """Of a model behind an endpoint little is known, and nothing of its bytes, which are 0."""
    identity: Identity
    arms: tuple[ArmFacts, ...]
    axes: tuple[AxisResult, ...]
    """In the order in which they ran."""
    gate: Gate
    """The margins as they were declared."""
    judgements: tuple[Judgement, ...]
    verdict: Verdict
    tensors: tuple[TensorError, ...]
    source_kernels: tuple[KernelRecord, ...]
    candidate_kernels: tuple[KernelRecord, ...]
    conditions: Conditions
    """The candidate's."""
    notes: tuple[str, ...] = ()
    """What a reader must know to read the figures rightly; the axes have their own."""
    seconds: float

    @property
    def language(self) -> LanguageDetails | None:
        """What the axis of language told, where it ran."""
        found = (axis.details for axis in self.axes)
        return next((d for d in found if isinstance(d, LanguageDetails)), None)

    def judgement(self, name: str) -> Judgement | None:
        """Return what was said of a slice, as `language/kl`; None where it was not measured."""
        return next((found for found in self.judgements if found.slice == name), None)


class Attempt(Record, frozen=True, kw_only=True):
    """One recipe that was tried: what it promised and what it gave."""

    recipe: str
    promised_bytes: int
    evaluation: Evaluation
    evidence: str
    """Path of the evaluation's JSON, relative to the report."""
    why: str = ""
    """What of earlier attempts it was made from; empty where it stood in the plan."""
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
    runtime: str = "fewbit"
    """What the artefact is for."""
    budget: str = ""
    """As it was asked for; empty where the smallest was looked for."""
    attempts: tuple[Attempt, ...]
    untried: tuple[Untried, ...]
    accepted: str | None
    """The recipe of the artefact, None where nothing was accepted."""
    closest: str | None = None
    """Where nothing was accepted within a budget, the recipe of the artefact in `closest/`."""
    nearest: str | None = None
    """Where nothing was accepted, the recipe that the reasons speak of."""
    outcome: Outcome
    reasons: tuple[str, ...]
    seconds: float
