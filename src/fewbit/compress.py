"""The whole first loop: recipe after recipe, from small to large, until the gate accepts one.

Attempts are made beside the output. What appears there in the end is either the accepted artefact
with its report and the evidence of every attempt, or the report and the evidence alone: nothing
that was not accepted is left to be taken for a model.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fewbit.atomic import claimed, is_free, replacing_folder, require_apart, write_bytes
from fewbit.calibrate.mix import Progress
from fewbit.errors import BadFileError, OutputError, UsageError
from fewbit.evaluate.axis import Axis
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
from fewbit.model.facts import model_facts
from fewbit.model.weights import ModelSource, open_model
from fewbit.quantization import (
    QuantizationPlan,
    QuantizeSettings,
    execute,
    plan,
    require_no_fallback,
)
from fewbit.recipes import find
from fewbit.records.base import from_json, to_json
from fewbit.records.evaluation import Attempt, CompressReport, Evaluation, Untried
from fewbit.records.figures import describe, size
from fewbit.records.model import ModelFacts
from fewbit.records.outcome import Outcome
from fewbit.report.card import folder_card
from fewbit.report.html import compress_page

LADDER = (
    "rtn-int3-g32",
    "rtn-int4-g64",
    "rtn-int4-g32",
    "rtn-int4-g32-asym",
    "rtn-int5-g64",
    "rtn-int6-g64",
    "rtn-int8-g64",
)
"""The recipes tried where none are named; each is a step of quality at a step of size."""

REPORT = "report.json"
PAGE = "report.html"
ATTEMPTS = "attempts"
_CANDIDATE = "candidate"

SCREEN_WINDOWS = 12
"""A recipe that is already rejected on so many windows is not measured on more."""


@dataclass(frozen=True, kw_only=True)
class CompressSettings:
    """Which recipes are tried, and how each is measured."""

    recipes: tuple[str, ...] = LADDER
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    strict: bool = False
    """Leave out recipes that need a fallback; whether fallbacks of kernels are refused, too, is
    the evaluation's to say."""


def compress(
    source: Path,
    out: Path,
    axes: Sequence[Axis],
    settings: CompressSettings | None = None,
    progress: Progress = lambda _what, _done, _all: None,
) -> CompressReport:
    """Find the smallest recipe that the gate accepts, and write its artefact with the evidence.

    `out` becomes a folder with `report.html`, `report.json` and `attempts/`, and, where a recipe
    was accepted, the artefact. A folder that an earlier compression wrote is replaced.

    Raises:
        OutputError: `out` holds something else, lies in the source, or cannot be written; it is
            untouched then.
        UsageError: no recipe is named, or none would make the source smaller.
        BadFileError, MissingError, UnsupportedError, KernelError: the source cannot be used.
        NumericalError: the source's weights or logits are not finite.
    """
    chosen = settings or CompressSettings()
    started = time.perf_counter()
    _require_ours(out)
    require_apart(out, source)
    with open_model(source) as opened, claimed(out), replacing_folder(out) as work:
        plans, untried = ladder(opened, chosen.recipes, strict=chosen.strict)
        run = _Run(source, work, axes, chosen.evaluation, progress)
        attempts = _attempts(plans, run)
        report = conclude(model_facts(opened), attempts, untried, time.perf_counter() - started)
        _write(report, work)
        _require_ours(out)  # others had all this time to put something there
    return report


@dataclass(frozen=True)
class _Run:
    """What every attempt needs."""

    source: Path
    work: Path
    axes: Sequence[Axis]
    settings: EvaluationSettings
    progress: Progress


def ladder(
    source: ModelSource, names: Sequence[str], *, strict: bool = False
) -> tuple[list[QuantizationPlan], list[Untried]]:
    """Return the plans that make the source smaller, small to large, and why others do not.

    Args:
        source: the model.
        names: recipes.
        strict: leave out those that need a fallback for some tensor.

    Raises:
        UsageError: no name is given, or none is left.
        BadFileError, MissingError, UnsupportedError: a recipe is unknown or cannot be read.
    """
    if not names:
        raise UsageError("No recipe is named; leave --recipe out to try the usual ones.")
    plans: list[QuantizationPlan] = []
    untried: list[Untried] = []
    for name in dict.fromkeys(names):
        found = _planned(source, name, strict=strict)
        if isinstance(found, QuantizationPlan):
            reason = _why_not(found, plans)
            if not reason:
                plans.append(found)
                continue
            found = _untried(name, reason, found.promised_bytes)
        untried.append(found)
    if not plans:
        reasons = " ".join(f"{u.recipe}: {u.reason}" for u in untried[:3])
        raise UsageError(f"No recipe would make {source.path} smaller. {reasons}")
    return sorted(plans, key=lambda planned: planned.promised_bytes), untried


def conclude(
    source: ModelFacts, attempts: Sequence[Attempt], untried: Sequence[Untried], seconds: float
) -> CompressReport:
    """Return the report; at most the last attempt was accepted.

    Args:
        source: the model.
        attempts: at least one, small to large.
        untried: recipes left out before any attempt.
        seconds: how long all of it took.
    """
    outcomes = [attempt.evaluation.verdict.outcome for attempt in attempts]
    last = attempts[-1]
    if outcomes[-1] is Outcome.ACCEPT:
        outcome, accepted, reasons = Outcome.ACCEPT, last.recipe, _why_accepted(source, last)
    else:
        best = min(attempts, key=_divergence)
        outcome = Outcome.INCONCLUSIVE if Outcome.INCONCLUSIVE in outcomes else Outcome.REJECT
        accepted, reasons = None, _why_none(best)
    return CompressReport(
        source=source,
        attempts=tuple(attempts),
        untried=tuple(untried),
        accepted=accepted,
        outcome=outcome,
        reasons=reasons,
        seconds=seconds,
    )


def _planned(source: ModelSource, name: str, *, strict: bool) -> QuantizationPlan | Untried:
    recipe = find(name)
    try:
        planned = plan(source, recipe)
        if strict:
            require_no_fallback(planned)
    except UsageError as error:
        return _untried(recipe.name, str(error))
    return planned


def _untried(name: str, reason: str, promised_bytes: int | None = None) -> Untried:
    return Untried(recipe=name, promised_bytes=promised_bytes, reason=reason)


def _why_not(planned: QuantizationPlan, earlier: Sequence[QuantizationPlan]) -> str:
    """Return why a plan is not worth an attempt, or nothing."""
    if planned.promised_bytes >= planned.source_bytes:
        return (
            f"It promises {size(planned.promised_bytes)}, no less than the source's "
            f"{size(planned.source_bytes)}."
        )
    same = (other.recipe.name for other in earlier if _gives_the_same(planned, other))
    twin = next(same, None)
    return f"It gives every tensor the same format as {twin}." if twin else ""


def _gives_the_same(one: QuantizationPlan, other: QuantizationPlan) -> bool:
    made = [[(tensor.format, tensor.method) for tensor in p.tensors] for p in (one, other)]
    return made[0] == made[1]


def _attempts(plans: Sequence[QuantizationPlan], run: _Run) -> list[Attempt]:
    """Try plans until one is accepted; its artefact stays in the work folder, others do not."""
    (run.work / ATTEMPTS).mkdir()
    attempts: list[Attempt] = []
    for planned in plans:
        attempt = _attempt(planned, run)
        attempts.append(attempt)
        if attempt.evaluation.verdict.outcome is Outcome.ACCEPT:
            _adopt(run.work)
            break
        shutil.rmtree(run.work / _CANDIDATE)
    return attempts


def _attempt(planned: QuantizationPlan, run: _Run) -> Attempt:
    name, candidate = planned.recipe.name, run.work / _CANDIDATE
    execute(
        planned,
        candidate,
        QuantizeSettings(card=folder_card),
        progress=lambda what, done, all_: run.progress(f"{name}: {what}", done, all_),
    )
    found = evaluate(
        run.source,
        candidate,
        run.axes,
        run.settings,
        lambda what, done, all_: run.progress(f"{name}: {what}", done, all_),
    )
    evaluation = _named(found, name)
    evidence = f"{ATTEMPTS}/{name}.json"
    write_bytes(run.work / evidence, to_json(evaluation))
    return Attempt(
        recipe=name,
        promised_bytes=planned.promised_bytes,
        evaluation=evaluation,
        evidence=evidence,
        fallbacks=planned.fallbacks,
    )


def _named(evaluation: Evaluation, recipe: str) -> Evaluation:
    """Call the candidate by its recipe; the folder that it was measured in goes away."""
    candidate = msgspec.structs.replace(evaluation.candidate, name=recipe, path=recipe)
    return msgspec.structs.replace(evaluation, candidate=candidate)


def _adopt(work: Path) -> None:
    """Move the accepted artefact's files up beside the report."""
    candidate = work / _CANDIDATE
    for path in sorted(candidate.iterdir()):
        path.rename(work / path.name)
    candidate.rmdir()


def _write(report: CompressReport, work: Path) -> None:
    write_bytes(work / REPORT, to_json(report))
    write_bytes(work / PAGE, compress_page(report).encode())


def _why_accepted(source: ModelFacts, attempt: Attempt) -> tuple[str, ...]:
    found = attempt.evaluation
    share = found.candidate.bytes / source.bytes
    first = (
        f"{attempt.recipe} is the smallest recipe tried that the gate accepts: "
        f"{size(found.candidate.bytes)}, {share:.2f} of the source."
    )
    return (first, *found.verdict.reasons)


def _divergence(attempt: Attempt) -> float:
    """Return what tells attempts apart where none was accepted; without it, the bytes saved."""
    found = attempt.evaluation.judgement("language/kl")
    return -attempt.promised_bytes if found is None else found.figure.value


def _why_none(best: Attempt) -> tuple[str, ...]:
    found = best.evaluation.judgement("language/kl")
    shown = (
        "" if found is None else f", with a mean KL of {describe(found.figure, found.margin)} nats"
    )
    first = (
        "No recipe was accepted, so no model was written. The best attempt is "
        f"{best.recipe}{shown}."
    )
    return (first, *best.evaluation.verdict.reasons)


def _require_ours(out: Path) -> None:
    """Refuse to replace anything but an empty folder or an earlier compression's."""
    if is_free(out):
        return
    try:
        from_json(CompressReport, (out / REPORT).read_bytes(), name=str(out / REPORT))
    except (OSError, BadFileError) as error:
        raise OutputError(
            f"{out} exists and was not written by fewbit compress; remove it or choose another "
            "output."
        ) from error
