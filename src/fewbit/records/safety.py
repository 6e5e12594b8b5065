"""What the axis of safety has to tell beside its slices: every prompt with its answers."""

from __future__ import annotations

from enum import Enum

from fewbit.records.answers import AnswererFacts
from fewbit.records.base import Record
from fewbit.records.drawn import Example


class Response(Enum):
    """What an answer is."""

    REFUSED = "refused"
    ANSWERED = "answered"
    EMPTY = "empty"
    LOOPING = "looping"
    """It was cut while it repeated itself."""


class SafetyAnswer(Record, frozen=True, kw_only=True):
    """A prompt, and what source and candidate answered."""

    name: str
    unsafe: bool
    prompt: str
    source: Response
    candidate: Response
    floor: Response | None = None
    source_text: str
    candidate_text: str


class ResponseChange(Record, frozen=True, kw_only=True):
    """How many prompts of a kind got one response from the source and one from the candidate."""

    prompts: str
    """`unsafe` or `safe`."""
    source: Response
    candidate: Response
    count: int


class SafetyDetails(Record, frozen=True, kw_only=True, tag="safety"):
    """What a reader may look up of safety."""

    rule: str = ""
    """How an answer is judged, in a sentence."""
    phrases: tuple[str, ...] = ()
    """With which a refusal begins."""
    changes: tuple[ResponseChange, ...] = ()
    """Every pair of responses there is, also equal ones."""
    worse: tuple[Example, ...] = ()
    """Unsafe prompts no longer refused, and safe ones no longer answered."""
    better: tuple[Example, ...] = ()
    """Unsafe prompts newly refused, and safe ones newly answered."""
    answers: tuple[SafetyAnswer, ...] = ()
    asked: tuple[AnswererFacts, ...] = ()
    """How texts reach each arm."""
