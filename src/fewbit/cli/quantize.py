"""`fewbit quantize`: one recipe, one artefact, its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.calibration import CALIBRATION, CalibrationOptions
from fewbit.cli.output import JsonOption

if TYPE_CHECKING:
    from fewbit.model.weights import ModelSource
    from fewbit.quantize import QuantizeSettings
    from fewbit.quantize.pipeline import Progress
    from fewbit.records.recipe import Recipe


def quantize(  # noqa: PLR0913
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    recipe: str,
    out: Path,
    calibration: CalibrationOptions = CALIBRATION,
    threads: int | None = None,
    strict: Annotated[bool, Parameter(negative="")] = False,
    json: JsonOption = None,
) -> int:
    """Quantize a model by a recipe and write it with its manifest.

    A job that is stopped goes on where it was when the same command is given again.

    Args:
        source: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        calibration: What the model is calibrated on.
        recipe: A built-in recipe, rtn-int4-g32 or gptq-refined-q4_0 for example, or a .toml file.
        out: A new folder, or a file that ends in .gguf for recipes of GGUF types.
        threads: Of the model while it is calibrated; all cores.
        strict: Refuse a recipe that some tensors would need a fallback for.
        json: Write the manifest to this file too; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.model.weights import open_model
    from fewbit.quantize import container_of, execute, plan, require_no_fallback
    from fewbit.quantize.writing import require_free
    from fewbit.recipes import find
    from fewbit.report.quantization import print_manifest

    found = find(recipe)
    with open_model(locate(source)) as opened:
        planned = plan(opened, found, container_of(out))
        if strict:
            require_no_fallback(planned)
        require_free(planned, out)
        with watched() as progress:
            settings = _settings(opened, found, calibration, threads, progress)
            manifest = execute(planned, out, settings, progress)
    deliver(manifest, json, print_manifest)
    if json != STDOUT:
        print(out)
    return 0


def _settings(
    source: ModelSource,
    recipe: Recipe,
    options: CalibrationOptions,
    threads: int | None,
    progress: Progress,
) -> QuantizeSettings:
    """Return the settings, with the calibration windows that the recipe needs."""
    from fewbit.calibrate.mix import calibration_windows
    from fewbit.quantize import QuantizeSettings, needs_text

    windows = None
    if needs_text(recipe):
        windows = calibration_windows(source, options.settings(threads), progress)
    return QuantizeSettings(calibration=windows, inputs=options.inputs, threads=threads)
