"""What a compression comes to: the report on all attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fewbit.compress.failures import KL, distance
from fewbit.records.evaluation import Attempt, CompressReport, Untried
from fewbit.records.figures import describe, size
from fewbit.records.model import ModelFacts
from fewbit.records.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for."""

    runtime: str = "fewbit"
    budget: str = ""
    """Empty where the smallest accepted artefact is looked for."""


SMALLEST = Wanted()


def conclude(
    source: ModelFacts,
    attempts: Sequence[Attempt],
    untried: Sequence[Untried],
    seconds: float,
    wanted: Wanted = SMALLEST,
) -> CompressReport:
    """Return the report; at most the last attempt was accepted.

    Args:
        source: the model.
        attempts: at least one, in the order in which they were made.
        untried: recipes left out.
        seconds: how long all of it took.
        wanted: what was asked for.
    """
    outcomes = [attempt.evaluation.verdict.outcome for attempt in attempts]
    last, best = attempts[-1], min(attempts, key=lambda a: distance(a.evaluation))
    accepted = outcomes[-1] is Outcome.ACCEPT
    if accepted:
        outcome = Outcome.ACCEPT
    else:
        outcome = Outcome.INCONCLUSIVE if Outcome.INCONCLUSIVE in outcomes else Outcome.REJECT
    return CompressReport(
        source=source,
        runtime=wanted.runtime,
        budget=wanted.budget,
        attempts=tuple(attempts),
        untried=tuple(untried),
        accepted=last.recipe if accepted else None,
        closest=best.recipe if wanted.budget and not accepted else None,
        nearest=None if accepted else best.recipe,
        outcome=outcome,
        reasons=_why_accepted(source, last, wanted) if accepted else _why_none(best, wanted),
        seconds=seconds,
    )


def in_a_line(attempt: Attempt) -> str:
    """Return what came of an attempt: its verdict, its size and the reason that decided."""
    found = attempt.evaluation
    kl = found.judgement(KL)
    divergence = "" if kl is None else f", mean KL {describe(kl.figure, kl.margin)} nats"
    return (
        f"{attempt.recipe}: {found.verdict.outcome.value}, {size(found.candidate.bytes)}"
        f"{divergence}. {found.verdict.reasons[0]}"
    )


def _why_accepted(source: ModelFacts, attempt: Attempt, wanted: Wanted) -> tuple[str, ...]:
    found = attempt.evaluation
    share = found.candidate.bytes / source.bytes
    which = (
        f"the first, by cost, that the gate accepts within {wanted.budget}"
        if wanted.budget
        else "the smallest recipe tried that the gate accepts"
    )
    first = (
        f"{attempt.recipe} is {which}: {size(found.candidate.bytes)}, {share:.2f} of the source."
    )
    return (first, *found.verdict.reasons)


def _why_none(best: Attempt, wanted: Wanted) -> tuple[str, ...]:
    found = best.evaluation.judgement(KL)
    kl = "" if found is None else f", with a mean KL of {describe(found.figure, found.margin)} nats"
    first = (
        f"No recipe was accepted within {wanted.budget}; the closest, {best.recipe}{kl}, lies in "
        "closest/."
        if wanted.budget
        else "No recipe was accepted, so no model was written. The best attempt is "
        f"{best.recipe}{kl}."
    )
    return (first, *best.evaluation.verdict.reasons)
