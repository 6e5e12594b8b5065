"""What an attempt failed on, and what that says of the next: pure reckoning over records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fewbit.records.evaluation import Attempt, Evaluation
from fewbit.records.gate import Judgement
from fewbit.records.measurement import Measure
from fewbit.records.outcome import Outcome
from fewbit.records.scan import TensorError

KL = "language/kl"
"""The slice whose figure goes with the square of the rounding error, so that it can be foreseen."""

_OF_FORMATS = ("speed", "memory", "kernels")
"""Axes that depend on formats and kernels, and not on how codes were found."""

_NAMED = 3
"""Names of slices and findings in a sentence, at most."""

HOPELESS = 1.5
"""Of a margin; where a figure is foreseen beyond that, an attempt is not worth its time (practice:
ratios of methods differ between models)."""


@dataclass(frozen=True)
class Failure:
    """What hindered an attempt."""

    slices: tuple[str, ...]
    """Judged, and not accepted."""
    findings: tuple[str, ...]
    """Neither passed nor waived."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.slices, *self.findings)

    @property
    def of_formats(self) -> bool:
        """Whether nothing else than speed, memory or kernels hindered."""
        axes = {name.partition("/")[0] for name in self.names}
        return bool(axes) and axes.issubset(_OF_FORMATS)


def failure_of(evaluation: Evaluation) -> Failure:
    """Return what of an evaluation was not accepted."""
    slices = (j.slice for j in evaluation.judgements if j.outcome not in (None, Outcome.ACCEPT))
    findings = (
        finding.name
        for axis in evaluation.axes
        for finding in axis.findings
        if not finding.passed and not finding.waived
    )
    return Failure(tuple(slices), tuple(findings))


def hindering(evaluation: Evaluation) -> str:
    """Return the first names of what was not accepted, and how many more there are."""
    names = failure_of(evaluation).names or ("nothing that was judged",)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def distance(evaluation: Evaluation) -> tuple[int, float, float]:
    """Return how far an evaluation is from being accepted; less is nearer.

    The number of slices and findings that rejected, then the largest figure in units of its margin,
    then the bytes.
    """
    rejected = sum(j.outcome is Outcome.REJECT for j in evaluation.judgements)
    shares = [_share(evaluation, j) for j in evaluation.judgements if j.outcome is not None]
    hindering = rejected + len(failure_of(evaluation).findings)
    return hindering, max(shares, default=0.0), float(evaluation.candidate.bytes)


def _share(evaluation: Evaluation, judgement: Judgement) -> float:
    """Return a figure in units of its margin; of a ratio, what either exceeds 1 by."""
    measures = {found.name: found.measure for axis in evaluation.axes for found in axis.slices}
    origin = measures.get(judgement.slice, Measure.MEAN).origin
    held = judgement.excess or judgement.figure
    room = (judgement.margin or 0.0) - origin
    return (held.value - origin) / room if room > 0.0 else math.inf


def foreseen(attempts: Sequence[tuple[Attempt, float]], factor: float) -> float | None:
    """Return the divergence that a way of finding codes will bring, from those of others.

    Args:
        attempts: with the factor of each: its way's divergence beside other ways' at one format.
        factor: of the way in question.

    Returns:
        The least that any attempt speaks for; None where no divergence was measured.
    """
    known = [
        found.figure.value * factor / other
        for attempt, other in attempts
        if (found := attempt.evaluation.judgement(KL)) is not None
    ]
    return min(known, default=None)


def hopeless(attempts: Sequence[tuple[Attempt, float]], factor: float) -> str:
    """Return why an attempt is not worth its time, or nothing."""
    value = foreseen(attempts, factor)
    judged = next((j for a, _ in attempts if (j := a.evaluation.judgement(KL)) is not None), None)
    if value is None or judged is None or judged.margin is None:
        return ""
    if value <= HOPELESS * judged.margin:
        return ""
    return (
        f"By what was measured of the others its mean KL would be about {value:.3g} nats, over "
        f"{HOPELESS:g} times the margin of {judged.margin:g}."
    )


def worst_first(tensors: Sequence[TensorError]) -> list[TensorError]:
    """Return the matrices in decoder layers, those of the largest relative error first."""
    inside = [tensor for tensor in tensors if tensor.layer >= 0]
    return sorted(inside, key=lambda tensor: (-tensor.relative_error, tensor.slot))
