"""Quantizing from a script: a source and a recipe in, an artefact out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from fewbit.api.model import RUN_SETTINGS, Model, load, located
from fewbit.calibrate.calibration import CalibrationSet
from fewbit.calibrate.mix import CalibrationSettings, Ingredient, calibration_windows
from fewbit.checkpoint.own_manifest import manifest_of
from fewbit.errors import UsageError
from fewbit.model.runner import RunSettings
from fewbit.model.weights import ModelSource, open_model
from fewbit.progress import Progress, unwatched
from fewbit.quantization import (
    QuantizeSettings,
    container_of,
    execute,
    needs_text,
    plan,
    require_no_fallback,
)
from fewbit.quantization.job import Job, Resume, asked, claimed_job
from fewbit.quantization.kept_samples import kept_samples
from fewbit.quantization.planning import require_rules_used
from fewbit.quantization.runnable import require_runnable
from fewbit.quantization.writing import require_output
from fewbit.recipes import checked, find, read_recipe
from fewbit.records.manifest import Manifest
from fewbit.records.recipe import Recipe
from fewbit.report.card import folder_card

Calibration: TypeAlias = str | Path | Sequence[str | Path] | CalibrationSettings
"""One text file or several, `.txt` or `.jsonl`, or what to read of what in detail."""


@dataclass(frozen=True)
class Artefact:
    """A quantized model on disk."""

    path: Path
    """The folder, or the GGUF file."""
    manifest: Manifest
    """What became of every tensor, and the hash of everything that went in."""

    @classmethod
    def open(cls, path: str | Path) -> Artefact:
        """Return an artefact that was written before.

        Raises:
            MissingError: there is none, or it has no manifest.
            BadFileError: it or its manifest is damaged, or that is of another artefact.
            UnsupportedError: it is a model of a kind that is not read.
        """
        return cls(Path(path), manifest_of(Path(path)))

    def load(self, settings: RunSettings = RUN_SETTINGS) -> Model:
        """Make it ready to generate; arguments and errors are those of `fewbit.load`."""
        return load(self.path, settings)


def quantize(  # noqa: PLR0913
    source: str | Path,
    recipe: str | Path | Recipe,
    calibration: Calibration | None = None,
    *,
    out: str | Path | None = None,
    threads: int | None = None,
    strict: bool = False,
    resume: Literal["auto", "required", "never"] = "auto",
    progress: Progress = unwatched,
) -> Artefact:
    """Quantize a model by a recipe and write it with its manifest.

    A job that was stopped goes on where it was when the same call is made again.

    Args:
        source: what `fewbit.load` takes: a file, a folder, or a name.
        recipe: a built-in recipe's name, such as `gptq-refined-q4_0`; a TOML file; or a `Recipe`.
        calibration: what a recipe that looks at text is calibrated on. None for samples of the
            model and the text that Python carries.
        out: a new folder, or a file that ends in .gguf; `<source>-<recipe>` in the current folder
            where nothing is said.
        threads: of the model while it is calibrated; None for every core.
        strict: refuse a recipe that some tensors would need a fallback for.
        resume: whether a job that was stopped goes on, where there is one; `required` refuses to
            begin anew, `never` deletes what is there and does.
        progress: called with what is being done, how much of it is done, and how much there is.

    Returns:
        The artefact: its path and its manifest.

    Raises:
        MissingError, DownloadError, BadFileError, UnsupportedError: the source, the recipe or the
            text is not there or cannot be used.
        UsageError: an argument that cannot be, such as a text for a recipe that looks at none, or
            a matrix that a format does not divide; it is named.
        NumericalError: a weight is not finite; the message says where.
        OutputError: `out` exists, or could not be written.
        StoppedError: an interrupt came when part of the work was kept.
    """
    found, chosen = _recipe(recipe), _resume(resume)
    if out is not None and not isinstance(out, str | Path):
        raise UsageError(f"out is of type {type(out).__name__}; give the path of a new folder.")
    with open_model(located(source)) as opened:
        target = Path(f"{_stem(opened.path)}-{found.name}") if out is None else Path(out)
        container = container_of(target)
        require_output(opened, container, target)
        planned = plan(opened, found, container)
        require_rules_used(planned)
        require_runnable(planned)
        if strict:
            require_no_fallback(planned)
        text = _text(found, calibration, threads)
        with claimed_job(target, chosen) as job:
            windows = None if text is None else _windows(opened, found, text, job, progress)
            settings = QuantizeSettings(calibration=windows, threads=threads, card=folder_card)
            return Artefact(target, execute(planned, target, settings, progress, job))


def _recipe(recipe: object) -> Recipe:
    if isinstance(recipe, Recipe):
        return checked(recipe)
    if isinstance(recipe, Path):
        return read_recipe(recipe)
    if isinstance(recipe, str):
        return find(recipe)
    raise UsageError(
        f"The recipe is of type {type(recipe).__name__}; give a name such as rtn-int4-g32, a .toml "
        "file, or a fewbit.Recipe."
    )


def _resume(resume: str) -> Resume:
    try:
        return Resume(resume)
    except ValueError as error:
        choices = ", ".join(choice.value for choice in Resume)
        raise UsageError(f"resume is {resume!r}; choose from {choices}.") from error


def _windows(
    source: ModelSource,
    recipe: Recipe,
    text: CalibrationSettings,
    job: Job,
    progress: Progress,
) -> CalibrationSet:
    """Read the text; what the model writes of it is kept, as all else of the job."""
    options = str(replace(text, threads=None))  # which change no bit
    job.begin(asked(source, recipe, container_of(job.out), options))
    return calibration_windows(source, text, progress, keep=kept_samples(job))


def _text(
    recipe: Recipe, calibration: Calibration | None, threads: int | None
) -> CalibrationSettings | None:
    """Return what to calibrate on; None for a recipe that looks at no text."""
    if needs_text(recipe):
        return _settings(calibration, threads)
    if calibration is not None:
        raise UsageError(
            f"The recipe '{recipe.name}' looks at no text; leave calibration out, or take a recipe "
            "such as gptq-refined-q4_0."
        )
    return None


def _settings(calibration: Calibration | None, threads: int | None) -> CalibrationSettings:
    if calibration is None:
        return CalibrationSettings(threads=threads)
    if isinstance(calibration, CalibrationSettings):
        return calibration
    files = [calibration] if isinstance(calibration, str | os.PathLike) else calibration
    if not isinstance(files, Sequence) or not all(
        isinstance(file, str | os.PathLike) for file in files
    ):
        raise UsageError(
            f"calibration is of type {type(calibration).__name__}; give a path, a list of paths, "
            "or a fewbit.CalibrationSettings."
        )
    return CalibrationSettings(mix=tuple(Ingredient(str(f)) for f in files), threads=threads)


def _stem(path: Path) -> str:
    return path.stem if path.is_file() else path.resolve().name
