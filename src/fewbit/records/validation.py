"""Six questions about a target with a draft: an answer to each, with where its evidence is."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.certificate import Certificate
from fewbit.records.evaluation import Evaluation
from fewbit.records.outcome import Outcome
from fewbit.records.pair import PairReport
from fewbit.records.speculation import SpeculationReport

VALIDATION_VERSION = 1


class Question(Record, frozen=True, kw_only=True):
    """One of the six, answered."""

    name: str
    """A few words, as `tokenizer identity`."""
    asked: str
    """The question as a sentence."""
    outcome: Outcome
    """ACCEPT is yes, REJECT is no."""
    evidence: tuple[str, ...]
    """Sentences with the figures that the answer rests on, the deciding ones first."""


class Validation(Record, frozen=True, kw_only=True):
    """All six, and the records that they were answered from."""

    version: int = VALIDATION_VERSION
    target: str
    draft: str
    source: str
    outcome: Outcome
    """ACCEPT if all six are, REJECT if one is, INCONCLUSIVE otherwise."""
    questions: tuple[Question, ...]
    pair: PairReport | None
    """None where the draft is no model of its own, and so has no tokenizer."""
    certificate: Certificate | None
    """None where the draft cannot be used."""
    evaluation: Evaluation | None
    """None where target and source are not one model in two forms."""
    refused: str = ""
    """Why there is no evaluation."""
    speculation: SpeculationReport | None
    """None where the draft cannot be used."""
    seconds: float
