"""`fewbit compress`: recipes from small to large until one is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.output import JsonOption


def compress(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    out: Path,
    recipe: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    text: Path | None = None,
    windows: int = 40,
    threads: int | None = None,
    executor: str = "native",
    strict: Annotated[bool, Parameter(negative="")] = False,
    json: JsonOption = None,
) -> int:
    """Try recipes from small to large until one is accepted; keep the evidence.

    Exit code 0: an accepted artefact is in OUT. 3: nothing was accepted, 4: not enough evidence;
    OUT then holds the report and the evidence, and no model.

    Args:
        model: The source: a name, a GGUF file or a folder.
        out: The folder to write; one that an earlier run wrote is replaced.
        recipe: Try only these recipes (repeat the option); names or .toml files.
        text: A UTF-8 file to measure on, as for fewbit eval.
        windows: Windows of 512 tokens to score for each recipe, at most.
        threads: Threads of the native executor; every core by default.
        executor: native, or reference (slow, the truth in tests).
        strict: Refuse what some tensor would need a fallback for: recipes are left out, and a
            model that some matrix would not be run as stored in ends the run.
        json: Write the report to this file too; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.compress import LADDER, PAGE, SCREEN_WINDOWS, CompressSettings
    from fewbit.compress import compress as run
    from fewbit.evaluate.axes import AxisOptions, axes_named
    from fewbit.evaluate.evaluation import EvaluationSettings
    from fewbit.report.terminal import print_compress

    look, whole = (
        AxisOptions(text=text, windows=n, executor=executor, threads=threads)
        for n in (SCREEN_WINDOWS, windows)
    )
    measuring = EvaluationSettings(
        screen=axes_named(["language"], look) if windows > SCREEN_WINDOWS else (),
        threads=threads,
        executor=executor,
        strict=strict,
    )
    settings = CompressSettings(recipes=recipe or LADDER, evaluation=measuring, strict=strict)
    source, axes = locate(model), axes_named([], whole)
    with watched() as progress:
        report = run(source, out, axes, settings, progress)
    deliver(report, json, print_compress)
    if json != STDOUT:
        print(out / PAGE)
    return report.outcome.exit_code
