"""`fewbit quantize`: one recipe, one artefact, its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import Parameter

from fewbit.cli.allocation import TARGET, TargetOptions
from fewbit.cli.calibration import CALIBRATION, CalibrationOptions
from fewbit.cli.output import JsonOption
from fewbit.cli.tuning import TUNING, TuneOptions
from fewbit.errors import UsageError
from fewbit.records.runtime import Runtime

if TYPE_CHECKING:
    from fewbit.calibrate.calibration import CalibrationSet
    from fewbit.calibrate.mix import Keep
    from fewbit.cli.again import Again
    from fewbit.model.weights import ModelSource
    from fewbit.progress import Progress
    from fewbit.quantization import QuantizationPlan, QuantizeSettings
    from fewbit.quantization.estimate import Workload
    from fewbit.quantization.job import Job, Stop
    from fewbit.quantization.making import Request
    from fewbit.quantization.target import Target
    from fewbit.records.manifest import Manifest
    from fewbit.records.recipe import Recipe


_Options: TypeAlias = tuple[TargetOptions, CalibrationOptions, TuneOptions]


def quantize(  # noqa: PLR0913
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    recipe: str | None = None,
    from_manifest: Path | None = None,
    out: Path | None = None,
    plan: Annotated[bool, Parameter(negative="")] = False,
    target: Annotated[Runtime | None, Parameter(name="--target")] = None,
    size: TargetOptions = TARGET,
    calibration: CalibrationOptions = CALIBRATION,
    tuning: TuneOptions = TUNING,
    threads: int | None = None,
    strict: Annotated[bool, Parameter(negative="")] = False,
    resume: Literal["auto", "required", "never"] = "auto",
    json: JsonOption = None,
) -> int:
    """Quantize a model by a recipe and write it with its manifest.

    A job that is stopped goes on where it was when the same command is given again. Ctrl-C ends
    it after the layer that is being solved, with exit code 75; once more ends it at once.

    Args:
        source: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        plan: Print tensors, sizes, memory, disk and time, and what the target would refuse, from
            headers alone, and do nothing.
        target: The runtime that the model is for; what that would refuse is refused.
        size: A size to choose formats for; the recipe, or the name of a method, says how codes
            are found.
        calibration: What the model is calibrated on.
        tuning: What distillation changes after solving.
        from_manifest: An artefact, or its manifest, to make again bit for bit from the same source,
            in place of a recipe.
        recipe: A built-in recipe, rtn-int4-g32 or gptq-refined-q4_0 for example, or a .toml file.
        out: A new folder, or a file that ends in .gguf for recipes of GGUF types.
        threads: Of the model while it is calibrated; all cores.
        strict: Refuse a recipe that some tensors would need a fallback for.
        resume: Go on with work that an earlier run left (auto), which must be there (required), or
            delete it (never). Work of another job is refused.
        json: Write the manifest to this file too; - prints it on stdout instead of the table.
    """
    from fewbit.cli.again import again
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.cli.stopping import stoppable
    from fewbit.model.weights import open_model

    options = size, calibration, tuning
    anew = again(from_manifest, recipe, options=options != (TARGET, CALIBRATION, TUNING))
    found, options = _wanted(recipe, options, anew)
    with open_model(locate(source)) as opened, watched() as progress, stoppable() as stop:
        asking = _Asking(opened, found, out, options, threads, target, strict, anew)
        if plan:
            return _show_plan(asking, json)
        manifest = _made(asking, resume, stop, progress)
    _show_made(manifest, out, json)
    return 0 if anew is None else anew.compare(manifest)


def _wanted(recipe: str | None, options: _Options, anew: Again | None) -> tuple[Recipe, _Options]:
    """Return recipe and options: as given, or those of an artefact that is made again."""
    from fewbit.quantization.allocating import base_recipe

    size, calibration, tuning = options
    if anew is not None:
        return anew.manifest.recipe, (size, anew.calibration, anew.tuning)
    found = calibration.of(tuning.of(base_recipe(recipe or "", size.target())))
    if size.target() is None:  # whose formats are chosen on text
        calibration.require_used(found)
    return found, options


@dataclass(frozen=True)
class _Asking:
    """What the command line asks for."""

    source: ModelSource
    recipe: Recipe
    out: Path | None
    options: _Options
    threads: int | None
    runtime: Runtime | None
    strict: bool
    anew: Again | None

    @property
    def target(self) -> Target | None:
        """The size to choose formats for."""
        return self.options[0].target()

    @property
    def workload(self) -> Workload:
        """How much text takes part."""
        from fewbit.cli.planning import workload

        _, calibration, tuning = self.options
        return workload(self.recipe, calibration, tuning, self.threads)

    def planned(self, recipe: Recipe, out: Path) -> QuantizationPlan:
        """Plan a recipe; refuses idle rules, what no kernel runs, and fallbacks where asked to."""
        from fewbit.quantization import container_of, plan, require_no_fallback
        from fewbit.quantization.planning import require_rules_used
        from fewbit.quantization.runnable import require_runnable

        planned = plan(self.source, recipe, container_of(out))
        require_rules_used(planned)
        require_runnable(planned)
        if self.strict:
            require_no_fallback(planned)
        return planned


def _show_plan(asking: _Asking, json: Path | None) -> int:
    from fewbit.cli.output import deliver
    from fewbit.cli.planning import plan_report
    from fewbit.report.plan import print_plan

    if asking.target is not None:
        raise UsageError(
            "--plan reads headers alone, and formats for a target size are chosen by measuring; "
            "give a recipe with formats."
        )
    planned = asking.planned(asking.recipe, asking.out or Path("model"))
    deliver(plan_report(planned, asking.workload, asking.out, asking.runtime), json, print_plan)
    return 0


def _show_made(manifest: Manifest, out: Path | None, json: Path | None) -> None:
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.report.quantization import print_manifest

    deliver(manifest, json, print_manifest)
    if json != STDOUT:
        print(out)


def _made(asking: _Asking, resume: str, stop: Stop, progress: Progress) -> Manifest:
    """Check what can be known before, then do it as a job that holds its output."""
    from fewbit.quantization import container_of
    from fewbit.quantization.job import Resume, claimed_job
    from fewbit.quantization.writing import require_output

    out = asking.out
    if out is None:
        raise UsageError("--out is missing; name what to write, or give --plan.")
    require_output(asking.source, container_of(out), out)
    if asking.anew is not None:
        asking.anew.check_source(asking.source, progress)
    planned = None if asking.target else _checked_plan(asking, out)
    with claimed_job(out, Resume(resume), stop) as job:
        return _carried_out(asking, planned, job, progress)


def _checked_plan(asking: _Asking, out: Path) -> QuantizationPlan:
    """Refuse, hours before, what the runtime would, and what the disk has no room for."""
    from fewbit.cli.planning import require_taken
    from fewbit.quantization.estimate import require_disk

    planned = asking.planned(asking.recipe, out)
    if asking.runtime is not None:
        require_taken(planned, asking.runtime)
    require_disk(planned, asking.workload, out)
    return planned


def _carried_out(
    asking: _Asking, planned: QuantizationPlan | None, job: Job, progress: Progress
) -> Manifest:
    """Read texts, choose formats where a size is asked for, and quantize."""
    from fewbit.cli.allocation import require_kept
    from fewbit.quantization import container_of, execute
    from fewbit.quantization.allocating import allocated

    settings, recipe = _settings(asking, job, progress), asking.recipe
    if asking.anew is not None:
        settings = asking.anew.settings(settings)
    if asking.target is not None:
        text = asking.options[1].settings(asking.threads)
        recipe, settings = allocated(
            asking.source,
            recipe,
            asking.target,
            job,
            container=container_of(job.out),
            text=text,
            settings=settings,
            progress=progress,
        )
    planned = planned or asking.planned(recipe, job.out)
    manifest = execute(planned, job.out, settings, progress, job)
    require_kept(manifest, job.out)
    return manifest


def _settings(asking: _Asking, job: Job, progress: Progress) -> QuantizeSettings:
    """Return the settings, with the calibration windows that the recipe needs."""
    from fewbit.calibrate.mix import calibration_windows
    from fewbit.quantization import QuantizeSettings, needs_text
    from fewbit.quantization.pipeline import runs_with_text
    from fewbit.report.card import folder_card

    recipe, (target, calibration, tuning) = asking.recipe, asking.options
    given, windows, tuning_text = calibration.importance(), None, None
    if given is not None and calibration.calibration and not runs_with_text(recipe):
        raise UsageError(
            "Both --imatrix and --calibration are given, and the recipe is solved with one of "
            "them; leave one out."
        )
    if needs_text(recipe) or target.target() is not None:
        _begin(asking, job)
    if recipe.tune is not None:  # before the other, whose samples are the first of these
        tuning_text = _tuning_text(asking, job, progress)
    if needs_text(recipe) and (given is None or runs_with_text(recipe)):
        chosen = calibration.settings(asking.threads)
        windows = calibration_windows(asking.source, chosen, progress, keep=_keep(job))
    return QuantizeSettings(
        calibration=windows,
        tuning_text=tuning_text,
        inputs=calibration.inputs,
        importance=given,
        tuning=tuning.settings(recipe),
        threads=asking.threads,
        request=_request(asking),
        card=folder_card,
    )


def _request(asking: _Asking) -> Request:
    """Return what of the options the manifest has to know."""
    from fewbit.quantization import needs_text
    from fewbit.quantization.making import Request

    _, calibration, tuning = asking.options
    tuned = asking.recipe.tune is not None
    return Request(
        text=calibration.request if needs_text(asking.recipe) else None,
        tune_windows=tuning.tune_windows if tuned else None,
        imatrix=None if calibration.imatrix is None else str(calibration.imatrix),
        torch=tuned,
    )


def _begin(asking: _Asking, job: Job) -> None:
    """Refuse work of another job before anything is done."""
    from fewbit.quantization import container_of
    from fewbit.quantization.job import asked

    options = " ".join(map(str, asking.options))
    job.begin(asked(asking.source, asking.recipe, container_of(job.out), options))


def _keep(job: Job) -> Keep:
    from fewbit.quantization.kept_samples import kept_samples

    return kept_samples(job)


def _tuning_text(asking: _Asking, job: Job, progress: Progress) -> CalibrationSet:
    """Return the windows of the calibration's texts that tuning takes."""
    from dataclasses import replace

    from fewbit.calibrate.mix import calibration_windows

    _, calibration, tuning = asking.options
    wanted = replace(calibration.settings(asking.threads), windows=tuning.tune_windows)
    return calibration_windows(asking.source, wanted, progress, keep=_keep(job))
