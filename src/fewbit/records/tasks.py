"""What the axis of tasks has to tell beside its slices."""

from __future__ import annotations

from fewbit.records.answers import Answer, AnswererFacts, Likelihood
from fewbit.records.base import Record
from fewbit.records.drawn import Example


class ChoiceOutcome(Record, frozen=True, kw_only=True):
    """How likely an arm found each option of an item, in order."""

    likelihoods: tuple[Likelihood, ...]


class TaskOutcome(Record, frozen=True, kw_only=True):
    """What an arm made of an item: likelihoods of options, or an answer."""

    choice: ChoiceOutcome | None = None
    answer: Answer | None = None


class TaskFigures(Record, frozen=True, kw_only=True):
    """One task: how many items each arm got right, and where they part."""

    task: str
    kind: str
    rule: str
    asked_as: str
    items: int
    clusters: int
    chance: float | None
    """The share that guessing gets right; None where there are no options to guess among."""
    source_right: float
    """A share of the items, as is the next."""
    candidate_right: float
    floor_right: float | None = None
    harmful: int
    """Items that the source gets right and the candidate wrong."""
    helpful: int
    """Items that the source gets wrong and the candidate right."""
    floor_harmful: int | None = None
    """The same of the perturbed source in place of the candidate."""
    floor_helpful: int | None = None
    lead_change: float | None = None
    """How much the right option's lead over the best other one's score shrinks, mean in the
    rule's nats; negative where it grows. None where there are no options."""
    capped: int = 0
    """Answers of the candidate that `max_tokens` cut."""
    sha256: str = ""
    """Of the file of items; empty for what is built in."""


class TasksDetails(Record, frozen=True, kw_only=True, tag="tasks"):
    """What a reader may look up of tasks."""

    tasks: tuple[TaskFigures, ...] = ()
    harmful: tuple[Example, ...] = ()
    """Items that went from right to wrong, the clearest losses first."""
    helpful: tuple[Example, ...] = ()
    """Items that went from wrong to right."""
    asked: tuple[AnswererFacts, ...] = ()
    """How texts reach each arm."""
