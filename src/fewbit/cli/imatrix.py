"""`fewbit imatrix`: an importance matrix in llama.cpp's form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.calibration import TEXT, TextOptions
from fewbit.errors import OutputError


def imatrix(
    source: Annotated[str, Parameter(name="SOURCE")],
    /,
    *,
    out: Path,
    calibration: TextOptions = TEXT,
    threads: int | None = None,
) -> int:
    """Measure the squares of every layer's inputs and write them as llama.cpp's tools read them.

    Args:
        source: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        out: A new file that ends in .gguf, or in .dat for the older form.
        calibration: What is run through the model.
        threads: Of the model; all cores.
    """
    from fewbit.atomic import claimed, is_free
    from fewbit.calibrate.importance import require_form, write_importance
    from fewbit.calibrate.mix import calibration_windows
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.model.weights import open_model
    from fewbit.quantization.measured_importance import measure_importance
    from fewbit.runtime.native import threads_of

    require_form(out)
    with claimed(out):
        if not is_free(out) or out.is_dir():
            raise OutputError(f"{out} exists already; remove it or choose another output.")
        with open_model(locate(source)) as opened, watched() as progress:
            text = calibration_windows(opened, calibration.settings(threads), progress)
            matrix = measure_importance(opened, text, threads_of(threads), progress)
        write_importance(out, matrix)
    print(out)
    return 0
