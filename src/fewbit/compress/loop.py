"""The whole first loop: step after step until the gate accepts one.

Without a budget recipes are tried from small to large, so that the first accepted is the smallest.
Within a budget the largest uniform format that fits is tried by methods in order of their cost, and
then formats of single matrices are raised or chosen, and the best is trained.

Attempts are made beside the output, in a folder that a stopped run leaves and the same call goes on
in. What appears at the output in the end is told in `delivery`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from fewbit.atomic import require_apart, require_short
from fewbit.calibrate.mix import CalibrationSettings
from fewbit.checkpoint.checkpoint import content_digest
from fewbit.compress.conclusion import Wanted, conclude, in_a_line
from fewbit.compress.delivery import ATTEMPTS, deliver, require_ours
from fewbit.compress.ladder import format_within, ladder, planned, untried, usual_recipes
from fewbit.compress.making import TUNE_WINDOWS, Workshop, is_tunable
from fewbit.compress.steps import (
    Kind,
    Step,
    Tried,
    all_steps,
    base_step,
    best_of,
    raised,
    reason_to_leave_out,
    reason_to_try,
    tuned,
)
from fewbit.compress.unseen import require_unseen
from fewbit.errors import NumericalError, UsageError
from fewbit.evaluate.axis import Axis
from fewbit.evaluate.evaluation import (
    EvaluationSettings,
    evaluate,
    require_decidable,
    require_judgeable,
)
from fewbit.model.facts import model_facts
from fewbit.model.weights import open_model
from fewbit.progress import Progress, unwatched
from fewbit.quantization import QuantizationPlan, QuantizeSettings
from fewbit.quantization.job import ASKED, Job, Resume, claimed_job
from fewbit.quantization.pipeline import needs_text
from fewbit.quantization.target import Budget, Target
from fewbit.recipes import find
from fewbit.records.base import Record
from fewbit.records.evaluation import Attempt, CompressReport, Evaluation, Untried
from fewbit.records.kept import fingerprint, program_digest
from fewbit.records.outcome import Outcome
from fewbit.records.recipe import Recipe
from fewbit.records.runtime import Runtime
from fewbit.runtime.chooser import choose_isa

LEAST_TUNED = 8
"""Windows that training can do with, those held out included."""

SCREEN_WINDOWS = 12
"""A recipe that is already rejected on so many windows is not measured on more."""


@dataclass(frozen=True, kw_only=True)
class CompressSettings:
    """What is tried, for what, and how it is measured."""

    recipes: tuple[str, ...] | None = None
    """Which recipes are tried, small to large; None for the usual ones."""
    budget: Target | None = None
    """What an artefact may take; None looks for the smallest that is accepted."""
    runtime: Runtime = "fewbit"
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    text: CalibrationSettings = field(default_factory=CalibrationSettings)
    """What is calibrated on, where a recipe looks at text."""
    tune_windows: int = TUNE_WINDOWS
    """Windows of those texts that training takes; 0 leaves it out."""
    strict: bool = False
    """Leave out recipes that need a fallback; whether fallbacks of kernels are refused, too, is
    the evaluation's to say."""
    resume: Resume = Resume.AUTO
    """What becomes of the work that an earlier run left."""

    def __post_init__(self) -> None:
        if 0 < self.tune_windows < LEAST_TUNED or self.tune_windows < 0:
            raise UsageError(
                f"tune_windows is {self.tune_windows}; give at least {LEAST_TUNED}, of which some "
                "are held out, or 0 for no training."
            )


class Loop(Record, frozen=True, kw_only=True):
    """What a run was asked for: another goes on only where all of it is the same."""

    build: str
    """Hash of fewbit's own files: what another build measured says nothing of this one."""
    numpy: str
    kernels: str
    source: str
    text: str
    """Hash of the files that are calibrated on."""
    settings: str
    axes: str


def compress(
    source: Path,
    out: Path,
    axes: Sequence[Axis],
    settings: CompressSettings | None = None,
    progress: Progress = unwatched,
) -> CompressReport:
    """Find a recipe that the gate accepts, and write its artefact with the evidence.

    `out` becomes a folder with `report.html`, `report.json` and `attempts/`, and, where a recipe
    was accepted, the artefact. A folder that an earlier compression wrote is replaced.

    Raises:
        OutputError: `out` holds something else, lies in the source, or cannot be written; it is
            untouched then.
        UsageError: no recipe is named, none would make the source smaller or fits the budget, one
            trains and is given no text, or there is work of another run on `out`; or the gate names
            what the axes cannot have, or asks for what none of them has.
        StoppedError: an interrupt came when part of the work was kept.
        BadFileError, MissingError, UnsupportedError, KernelError: the source cannot be used.
        NumericalError: the source's weights or logits are not finite.
    """
    chosen = settings or CompressSettings()
    started = time.perf_counter()
    require_judgeable(axes, chosen.evaluation.gate)
    require_decidable(axes, chosen.evaluation.gate)
    require_short(out)
    require_ours(out)
    require_apart(out, source)
    with open_model(source) as opened, claimed_job(out, chosen.resume) as job:
        workshop = Workshop(
            opened,
            job,
            chosen.runtime,
            chosen.text,
            chosen.strict,
            progress,
            chosen.tune_windows,
        )
        run = _Run(workshop, tuple(axes), chosen)
        steps, left_out = run.steps()
        job.require_same(ASKED, _asked(run))
        tried, skipped = _attempts(steps, run)
        report = conclude(
            model_facts(opened),
            [attempt for _, attempt in tried],
            [*left_out, *skipped],
            time.perf_counter() - started,
            run.wanted,
        )
        deliver(report, run.folder, out)
    return report


@dataclass(frozen=True)
class _Ready:
    """A step that can be made."""

    step: Step
    planned: QuantizationPlan
    settings: QuantizeSettings | None = None


@dataclass(frozen=True)
class _Run:
    """What every attempt needs."""

    workshop: Workshop
    axes: tuple[Axis, ...]
    settings: CompressSettings

    @property
    def wanted(self) -> Wanted:
        """What was asked for, in words."""
        budget = self.settings.budget
        return Wanted(runtime=self.settings.runtime, budget="" if budget is None else budget.text)

    @property
    def job(self) -> Job:
        """The claim on the output."""
        return self.workshop.job

    @cached_property
    def uniform(self) -> tuple[str, Budget]:
        """The largest format within the budget; raises as `format_within`."""
        assert self.settings.budget is not None
        return format_within(self.workshop, self.settings.budget)

    def steps(self) -> tuple[list[Step], list[Untried]]:
        """Return what is to be tried, and what of what was named is not worth it."""
        if self.settings.budget is not None and self.settings.recipes is None:
            require_unseen(self.axes, self.settings.text, self.workshop.source)
            form, _ = self.uniform
            text = self.settings.budget.text
            tuning = self.settings.tune_windows > 0 and is_tunable()
            return all_steps(form, self.settings.runtime, text, tuning=tuning), []
        names, runtime = self.settings.recipes, self.settings.runtime
        recipes = usual_recipes(runtime) if names is None else tuple(map(find, names))
        _require_text(recipes, self.settings.tune_windows)
        if any(map(needs_text, recipes)):
            require_unseen(self.axes, self.settings.text, self.workshop.source)
        plans, left_out = ladder(self.workshop, recipes)
        return [Step(p.recipe.name, Kind.NAMED, p.recipe, 1.0) for p in plans], left_out

    def ready(
        self, step: Step, tried: Tried, failed: Collection[str], *, last: bool
    ) -> _Ready | Untried:
        """Return a step with its recipe and plan, or why it is left out.

        Args:
            step: what it is.
            tried: what was measured so far.
            failed: the names of steps that gave no artefact.
            last: whether none comes after it.
        """
        if self.settings.budget is None:
            return self._planned(step, None)
        form, budget = self.uniform
        if self.settings.recipes is not None:  # of which nothing is foreseen
            return self._planned(step, budget)
        reason = reason_to_leave_out(step, tried, last=last)
        if reason:
            return untried(step.name, reason)
        told, runtime = replace(step, why=reason_to_try(step, tried)), self.settings.runtime
        found: Step | str = told
        settings = None
        if step.kind is Kind.ALLOCATED:
            found, settings = self.workshop.allocate(told, self.settings.budget, form)
        elif step.kind is Kind.TUNED:
            found = tuned(step, tried, self._base(failed))
        elif step.kind is Kind.RAISED:
            fits = self.workshop.fits(budget)
            found = raised(step, tried, self._base(failed), runtime, fits)
        if isinstance(found, str):
            return untried(step.name, found)
        return self._planned(found, budget, settings)

    def _base(self, failed: Collection[str]) -> Step | None:
        """Return the step that finds codes best, unless it failed, is refused or does not fit."""
        form, budget = self.uniform
        base = base_step(form, self.settings.runtime)
        usable = base.name not in failed and isinstance(self._planned(base, budget), _Ready)
        return base if usable else None

    def _planned(
        self, step: Step, budget: Budget | None, settings: QuantizeSettings | None = None
    ) -> _Ready | Untried:
        assert step.recipe is not None
        found = planned(self.workshop, step.recipe)
        if isinstance(found, Untried):
            return untried(step.name, found.reason)
        if budget is not None and found.promised_bytes > budget.tensors:
            return untried(step.name, "It does not fit the budget.", found.promised_bytes)
        return _Ready(step, found, settings)

    def tell(self, what: str) -> None:
        """Say something that stays on the screen."""
        self.workshop.progress(what, 0, 0)

    def folder(self, name: str) -> Path:
        """Return where the artefact of a step is made."""
        return self.job.folder / f"made-{name}"

    def attempt(self, ready: _Ready) -> Attempt:
        """Make and measure, or take what an earlier run kept of it."""
        name = ready.step.name
        evaluation = self.job.kept(f"{name}.json", Evaluation, lambda: self._measured(ready))
        return Attempt(
            recipe=name,
            promised_bytes=ready.planned.promised_bytes,
            evaluation=evaluation,
            evidence=f"{ATTEMPTS}/{name}.json",
            why=ready.step.why,
            fallbacks=ready.planned.fallbacks,
        )

    def _measured(self, ready: _Ready) -> Evaluation:
        name = ready.step.name
        told = replace(
            self.workshop,
            progress=lambda what, done, all_: self.workshop.progress(f"{what}, {name}", done, all_),
        )
        artefact = told.make(ready.planned, self.folder(name), ready.settings)
        found = evaluate(
            self.workshop.source.path,
            artefact,
            self.axes,
            replace(self.settings.evaluation, work=self.job.folder / "outcomes"),
            told.progress,
        )
        return _named(found, name)


def _attempts(steps: Sequence[Step], run: _Run) -> tuple[list[tuple[Step, Attempt]], list[Untried]]:
    """Try steps until one is accepted; of those that were not, the nearest one's artefact stays."""
    tried: list[tuple[Step, Attempt]] = []
    left_out: list[Untried] = []
    failed: dict[str, NumericalError] = {}
    for number, step in enumerate(steps, start=1):
        ready = run.ready(step, tried, failed, last=number == len(steps))
        if isinstance(ready, Untried):
            left_out.append(ready)
            run.tell(f"{step.name} is left out. {ready.reason}")
            continue
        run.tell(f"{step.name}, {number} of {len(steps)}. {ready.step.why}".strip())
        try:
            attempt = run.attempt(ready)
        except NumericalError as error:
            failed[ready.step.name] = error
            left_out.append(untried(ready.step.name, str(error), ready.planned.promised_bytes))
            run.tell(f"{ready.step.name}: {error}")
            shutil.rmtree(run.folder(ready.step.name), ignore_errors=True)
            continue
        tried.append((ready.step, attempt))
        run.tell(in_a_line(attempt))
        if attempt.evaluation.verdict.outcome is Outcome.ACCEPT:
            break
        _clear(run, tried)
    if failed and not tried:
        raise list(failed.values())[-1]
    if not tried:
        reasons = " ".join(f"{u.recipe}: {u.reason}" for u in left_out[:3])
        raise UsageError(f"None of the recipes lies within {run.wanted.budget}. {reasons}")
    return tried, left_out


def _require_text(recipes: Sequence[Recipe], tune_windows: int) -> None:
    """Refuse a recipe that trains where no text is left for it."""
    trained = next((recipe.name for recipe in recipes if recipe.tune is not None), None)
    if trained is not None and not tune_windows:
        raise UsageError(
            f"The recipe '{trained}' trains, and tune_windows is 0; give it at least "
            f"{LEAST_TUNED}, or leave the recipe out."
        )


def _clear(run: _Run, tried: Tried) -> None:
    """Remove artefacts that nobody will ask for."""
    kept = best_of(tried)[0].name if run.wanted.budget else ""
    for step, _ in tried:
        if step.name != kept:
            shutil.rmtree(run.folder(step.name), ignore_errors=True)


def _named(evaluation: Evaluation, recipe: str) -> Evaluation:
    """Call the candidate by its recipe; the folder that it was measured in goes away."""
    candidate = msgspec.structs.replace(evaluation.candidate, name=recipe, path=recipe)
    return msgspec.structs.replace(evaluation, candidate=candidate)


def _asked(run: _Run) -> Loop:
    settings = run.settings
    evaluation = replace(settings.evaluation, screen=(), work=None)
    return Loop(
        build=program_digest(),
        numpy=np.__version__,
        kernels=choose_isa(),
        source=content_digest(run.workshop.source.checkpoint),
        text=fingerprint(run.workshop.files),
        settings=fingerprint(
            None if settings.recipes is None else [find(name) for name in settings.recipes],
            run.wanted,
            settings.text,
            settings.tune_windows,
            settings.strict,
            msgspec.json.encode(evaluation.gate),
            replace(evaluation, keep_packed=False),
        ),
        axes=fingerprint(*run.axes, *settings.evaluation.screen),
    )
