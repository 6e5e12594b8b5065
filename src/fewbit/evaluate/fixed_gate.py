"""The gate: figures with intervals against margins, and the verdict that follows. No measuring.

A margin is met when the whole interval lies under it, missed when the whole interval lies above
it, and undecided in between; a rounded figure is never compared. One missed margin rejects, and
acceptance needs every margin met. On too little text nothing is judged, since intervals over a
handful of documents are too short to be believed: the verdict is INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Iterable

from fewbit.records.evaluation import Axis, Gate, Verdict
from fewbit.records.figures import describe
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.records.language import TextFacts
from fewbit.records.outcome import Outcome

FLOAT_FORMATS = frozenset({"f32", "f16", "bf16"})
_ORDER = (Outcome.REJECT, Outcome.INCONCLUSIVE, Outcome.ACCEPT)


def judge(
    gate: Gate,
    text: TextFacts,
    mean_divergence: Interval,
    perplexity_ratio: Interval,
    kernels: Iterable[KernelRecord],
) -> Verdict:
    """Return the verdict on a candidate.

    Args:
        gate: the margins.
        text: what was scored.
        mean_divergence: mean KL(source || candidate), nats.
        perplexity_ratio: candidate over source.
        kernels: what the candidate's layers ran on.
    """
    enough = judge_text(gate, text.documents, text.positions)
    figures: tuple[Axis, ...] = (
        judge_figure("mean KL(source || candidate)", "nats", mean_divergence, gate.mean_divergence),
        judge_figure("perplexity ratio", "", perplexity_ratio, gate.perplexity_ratio),
    )
    if enough.outcome is not Outcome.ACCEPT:
        figures = tuple(_unjudged(axis) for axis in figures)
    return conclude((*figures, enough, judge_kernels(kernels)))


def conclude(axes: tuple[Axis, ...]) -> Verdict:
    """Return the worst outcome of the axes, with its reasons first."""
    outcome = next(o for o in _ORDER if any(axis.outcome is o for axis in axes))
    ordered = sorted(axes, key=lambda axis: _ORDER.index(axis.outcome))
    return Verdict(outcome=outcome, axes=axes, reasons=tuple(axis.reason for axis in ordered))


def judge_figure(name: str, unit: str, figure: Interval, margin: float) -> Axis:
    """Judge a figure that must stay under a margin."""
    low, high = figure.low, figure.high
    if low is None or high is None:
        outcome, relation = Outcome.INCONCLUSIVE, "has no interval on this text, margin"
    elif high < margin:
        outcome, relation = Outcome.ACCEPT, "lies under the margin of"
    elif low > margin:
        outcome, relation = Outcome.REJECT, "lies over the margin of"
    else:
        outcome, relation = Outcome.INCONCLUSIVE, "reaches across the margin of"
    shown = describe(figure, margin) + (f" {unit}" if unit else "")
    reason = f"The {name}, {shown}, {relation} {margin:g}."
    return Axis(name=name, figure=figure, margin=margin, outcome=outcome, reason=reason)


def judge_text(gate: Gate, documents: int, positions: int) -> Axis:
    """Judge whether there is text enough for intervals to mean something."""
    found = f"{documents} documents with {positions:,} scored positions"
    needed = f"{gate.minimum_documents} documents and {gate.minimum_positions:,} positions"
    if documents >= gate.minimum_documents and positions >= gate.minimum_positions:
        outcome, reason = Outcome.ACCEPT, f"The text has {found}; at least {needed} are needed."
    else:
        outcome = Outcome.INCONCLUSIVE
        reason = f"The text has {found}; a verdict needs at least {needed}."
    return Axis(name="text", figure=None, margin=None, outcome=outcome, reason=reason)


def judge_kernels(kernels: Iterable[KernelRecord]) -> Axis:
    """Reject a candidate whose low-bit layers ran on float kernels: those are not its figures."""
    all_kernels = tuple(kernels)
    floats = [k for k in all_kernels if k.format not in FLOAT_FORMATS and _is_float(k.kernel)]
    if floats:
        first = floats[0]
        outcome = Outcome.REJECT
        reason = (
            f"{len(floats)} quantized layers ran on a float kernel, the first {first.slot} "
            f"({first.format} on {first.kernel})."
        )
    else:
        outcome = Outcome.ACCEPT
        reason = f"All {len(all_kernels)} matrices ran on the kernel of their own format."
    return Axis(name="kernels", figure=None, margin=None, outcome=outcome, reason=reason)


def _is_float(kernel: str) -> bool:
    return kernel.partition("/")[0].partition(".")[0] in FLOAT_FORMATS


def _unjudged(axis: Axis) -> Axis:
    reason = f"{axis.reason[:-1]}, which is not judged on so little text."
    return Axis(
        name=axis.name,
        figure=axis.figure,
        margin=axis.margin,
        outcome=Outcome.INCONCLUSIVE,
        reason=reason,
    )
