"""`fewbit quantize`: one recipe, one artefact, its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.allocation import TARGET, TargetOptions
from fewbit.cli.calibration import CALIBRATION, CalibrationOptions
from fewbit.cli.output import JsonOption
from fewbit.cli.tuning import TUNING, TuneOptions
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.calibrate.calibration import CalibrationSet
    from fewbit.calibrate.mix import Progress
    from fewbit.model.weights import ModelSource
    from fewbit.quantization import QuantizationPlan, QuantizeSettings
    from fewbit.records.recipe import Recipe


def quantize(  # noqa: PLR0913
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    recipe: str,
    out: Path,
    target: TargetOptions = TARGET,
    calibration: CalibrationOptions = CALIBRATION,
    tuning: TuneOptions = TUNING,
    threads: int | None = None,
    strict: Annotated[bool, Parameter(negative="")] = False,
    json: JsonOption = None,
) -> int:
    """Quantize a model by a recipe and write it with its manifest.

    A job that is stopped goes on where it was when the same command is given again.

    Args:
        source: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        target: A size to choose formats for; the recipe, or the name of a method, says how codes
            are found.
        calibration: What the model is calibrated on.
        tuning: What distillation changes after solving.
        recipe: A built-in recipe, rtn-int4-g32 or gptq-refined-q4_0 for example, or a .toml file.
        out: A new folder, or a file that ends in .gguf for recipes of GGUF types.
        threads: Of the model while it is calibrated; all cores.
        strict: Refuse a recipe that some tensors would need a fallback for.
        json: Write the manifest to this file too; - prints it on stdout instead of the table.
    """
    from fewbit.cli.allocation import allocated, base_recipe, require_kept
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.model.weights import open_model
    from fewbit.quantization import container_of, execute
    from fewbit.quantization.writing import require_output
    from fewbit.report.quantization import print_manifest

    size = target.target()
    found = tuning.of(base_recipe(recipe, size))
    with open_model(locate(source)) as opened, watched() as progress:
        require_output(opened, container_of(out), out)
        planned = None if size else _planned(opened, found, out, strict=strict)
        settings = _settings(opened, found, (calibration, tuning), threads, progress)
        if size is not None:
            text = calibration.settings(threads)
            found, settings = allocated(
                opened, found, size, out, text=text, settings=settings, progress=progress
            )
        planned = planned or _planned(opened, found, out, strict=strict)
        manifest = execute(planned, out, settings, progress)
        require_kept(manifest, out)
    deliver(manifest, json, print_manifest)
    if json != STDOUT:
        print(out)
    return 0


def _planned(source: ModelSource, recipe: Recipe, out: Path, *, strict: bool) -> QuantizationPlan:
    from fewbit.quantization import container_of, plan, require_no_fallback

    planned = plan(source, recipe, container_of(out))
    if strict:
        require_no_fallback(planned)
    return planned


def _settings(
    source: ModelSource,
    recipe: Recipe,
    options: tuple[CalibrationOptions, TuneOptions],
    threads: int | None,
    progress: Progress,
) -> QuantizeSettings:
    """Return the settings, with the calibration windows that the recipe needs."""
    from fewbit.calibrate.mix import calibration_windows
    from fewbit.quantization import QuantizeSettings, needs_text
    from fewbit.quantization.pipeline import runs_with_text

    calibration, tuning = options
    given, windows = calibration.importance(), None
    if given is not None and calibration.calibration and not runs_with_text(recipe):
        raise UsageError(
            "Both --imatrix and --calibration are given, and the recipe is solved with one of "
            "them; leave one out."
        )
    if needs_text(recipe) and (given is None or runs_with_text(recipe)):
        windows = calibration_windows(source, calibration.settings(threads), progress)
    return QuantizeSettings(
        calibration=windows,
        tuning_text=_tuning_text(source, recipe, options, threads, progress),
        inputs=calibration.inputs,
        importance=given,
        tuning=tuning.settings(recipe),
        threads=threads,
    )


def _tuning_text(
    source: ModelSource,
    recipe: Recipe,
    options: tuple[CalibrationOptions, TuneOptions],
    threads: int | None,
    progress: Progress,
) -> CalibrationSet | None:
    """Return the windows of the calibration's texts that tuning takes, where there is any."""
    from dataclasses import replace

    from fewbit.calibrate.mix import calibration_windows

    calibration, tuning = options
    if recipe.tune is None:
        return None
    wanted = replace(calibration.settings(threads), windows=tuning.tune_windows)
    return calibration_windows(source, wanted, progress)
