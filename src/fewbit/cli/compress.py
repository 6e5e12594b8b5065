"""`fewbit compress`: recipe after recipe until one is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fewbit.cli.calibration import TEXT, TextOptions
from fewbit.cli.measuring import names_in
from fewbit.cli.output import JsonOption
from fewbit.records.runtime import Runtime

if TYPE_CHECKING:
    from fewbit.quantization.target import Target


def compress(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    out: Path,
    recipe: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    budget: str | None = None,
    target: Annotated[Runtime, Parameter(name="--target")] = "fewbit",
    accept: Path | None = None,
    axes: str = "",
    text: Path | None = None,
    windows: int = 40,
    calibration: TextOptions = TEXT,
    threads: int | None = None,
    executor: str = "native",
    strict: Annotated[bool, Parameter(negative="")] = False,
    resume: Literal["auto", "required", "never"] = "auto",
    json: JsonOption = None,
) -> int:
    """Try recipes until one is accepted; keep the evidence.

    Exit code 0: an accepted artefact is in OUT. 3: nothing was accepted, 4: not enough evidence;
    OUT then holds the report, the evidence and, of a budget, the closest in OUT/closest. 75: it was
    stopped, and the same command goes on.

    Args:
        model: The source: a name, a GGUF file or a folder.
        out: The folder to write; one that an earlier run wrote is replaced.
        recipe: Try only these recipes, small to large (repeat the option); names or .toml files.
        budget: What the artefact may take, 4.5bpw or 90MB for example; methods are then tried in
            order of cost. Without it the smallest accepted artefact is looked for.
        target: The runtime that the artefact is for; it is written in that one's format.
        accept: A gate.toml with the margins; by default those that are built in.
        axes: Which axes are measured, as for fewbit eval.
        text: A UTF-8 file to measure on, as for fewbit eval.
        windows: Windows of 512 tokens to score for each recipe, at most.
        calibration: What recipes that look at text are calibrated on.
        threads: Threads of the native executor; every core by default.
        executor: native, or reference (slow, the truth in tests).
        strict: Refuse what some tensor would need a fallback for: recipes are left out, and a
            model that some matrix would not be run as stored in ends the run.
        resume: Go on with work that an earlier run left (auto), which must be there (required), or
            delete it (never). Work that was asked for otherwise is refused.
        json: Write the report to this file too; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.compress.loop import PAGE, SCREEN_WINDOWS, CompressSettings
    from fewbit.compress.loop import compress as run
    from fewbit.evaluate.axes import AxisOptions, axes_named, first_look
    from fewbit.evaluate.evaluation import EvaluationSettings
    from fewbit.evaluate.gating.file import find_gate
    from fewbit.evaluate.gating.sequential import has_room
    from fewbit.quantization.job import Resume
    from fewbit.report.terminal import print_compress

    gate = find_gate(accept)
    options = AxisOptions(
        text=text, windows=windows, executor=executor, threads=threads, level=gate.level
    )
    measuring = EvaluationSettings(
        gate=gate,
        screen=first_look(options, SCREEN_WINDOWS) if has_room(gate.level) else (),
        threads=threads,
        executor=executor,
        strict=strict,
    )
    settings = CompressSettings(
        recipes=recipe or None,
        budget=_budget(budget),
        runtime=target,
        evaluation=measuring,
        text=calibration.settings(threads),
        strict=strict,
        resume=Resume(resume),
    )
    names = names_in(axes)
    source, chosen = locate(model), axes_named(names, options)
    with watched() as progress:
        report = run(source, out, chosen, settings, progress)
    deliver(report, json, print_compress)
    if json != STDOUT:
        print(out / PAGE)
    return report.outcome.exit_code


def _budget(text: str | None) -> Target | None:
    from fewbit.quantization.target import parse_budget

    return None if text is None else parse_budget(text)
