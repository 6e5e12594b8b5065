"""`fewbit compress`: recipe after recipe until one is accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fewbit.cli.calibration import TEXT, TextOptions
from fewbit.cli.measuring import ON_AXES, AxesOptions
from fewbit.cli.output import JsonOption
from fewbit.records.runtime import Runtime

if TYPE_CHECKING:
    from fewbit.calibrate.mix import CalibrationSettings
    from fewbit.compress.loop import CompressSettings
    from fewbit.evaluate.axes import AxisOptions
    from fewbit.evaluate.evaluation import EvaluationSettings
    from fewbit.quantization.target import Target
    from fewbit.records.gate import Gate


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AttemptOptions:
    """How attempts are made and measured."""

    threads: Annotated[
        int | None, Parameter(help="Threads of the native executor; every core by default.")
    ] = None
    executor: Annotated[str, Parameter(help="native, or reference (slow, the truth in tests).")] = (
        "native"
    )
    tune_windows: Annotated[
        int,
        Parameter(
            help="Windows of calibration text that training takes, the last step within a budget "
            "where the extra torch is installed; 0 leaves it out."
        ),
    ] = 480
    strict: Annotated[
        bool,
        Parameter(
            negative="",
            help="Refuse what some tensor would need a fallback for: recipes are left out, and a "
            "model that some matrix would not be run as stored in ends the run.",
        ),
    ] = False
    resume: Annotated[
        Literal["auto", "required", "never"],
        Parameter(
            help="Go on with work that an earlier run left (auto), which must be there (required), "
            "or delete it (never). Work that was asked for otherwise is refused."
        ),
    ] = "auto"

    def settings(
        self, gate: Gate, options: AxisOptions, text: CalibrationSettings
    ) -> CompressSettings:
        """Return how attempts are made, on what text, and by what gate they are measured."""
        from fewbit.compress.loop import CompressSettings
        from fewbit.quantization.job import Resume

        return CompressSettings(
            evaluation=self._evaluation(gate, options),
            text=text,
            tune_windows=self.tune_windows,
            strict=self.strict,
            resume=Resume(self.resume),
        )

    def _evaluation(self, gate: Gate, options: AxisOptions) -> EvaluationSettings:
        """Return how an attempt is measured, with the look that spares hopeless ones the rest."""
        from fewbit.compress.loop import SCREEN_WINDOWS
        from fewbit.evaluate.axes import first_look
        from fewbit.evaluate.evaluation import EvaluationSettings
        from fewbit.evaluate.gating.sequential import has_room

        return EvaluationSettings(
            gate=gate,
            screen=first_look(options, SCREEN_WINDOWS) if has_room(gate.level) else (),
            threads=self.threads,
            executor=self.executor,
            strict=self.strict,
        )


ATTEMPT = AttemptOptions()


def compress(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    out: Path,
    recipe: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    budget: str | None = None,
    target: Annotated[Runtime, Parameter(name="--target")] = "fewbit",
    accept: Path | None = None,
    axes: AxesOptions = ON_AXES,
    calibration: TextOptions = TEXT,
    attempts: AttemptOptions = ATTEMPT,
    json: JsonOption = None,
) -> int:
    """Try recipes until one is accepted; keep the evidence.

    Exit code 0: an accepted artefact is in OUT. 3: nothing was accepted, 4: not enough evidence;
    OUT then holds report, evidence and, of a budget, the closest (OUT/closest). 75: run it again.

    Args:
        model: The source: a name, a GGUF file or a folder.
        out: The folder to write; one that an earlier run wrote is replaced.
        recipe: Try only these recipes, small to large (repeat the option); names or .toml files.
        budget: What the artefact may take, 4.5bpw or 90MB for example; methods are then tried in
            order of cost. Without it the smallest accepted artefact is looked for.
        target: The runtime that the artefact is for; it is written in that one's format.
        accept: A gate.toml with the margins; by default those that are built in.
        axes: What each attempt is measured on.
        calibration: What recipes that look at text are calibrated on.
        attempts: How attempts are made and measured.
        json: Write the report to this file too; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.progress import watched
    from fewbit.cli.pull import locate
    from fewbit.compress.delivery import PAGE
    from fewbit.compress.loop import compress as run
    from fewbit.evaluate.axes import axes_named
    from fewbit.evaluate.gating.file import find_gate
    from fewbit.report.terminal import print_compress

    gate = find_gate(accept)
    options = axes.options(gate, attempts.threads, attempts.executor)
    settings = replace(
        attempts.settings(gate, options, calibration.settings(attempts.threads)),
        recipes=recipe or None,
        budget=_budget(budget),
        runtime=target,
    )
    source, chosen = locate(model), axes_named(axes.names, options)
    with watched() as progress:
        report = run(source, out, chosen, settings, progress)
    deliver(report, json, print_compress)
    if json != STDOUT:
        print(out / PAGE)
    return report.outcome.exit_code


def _budget(text: str | None) -> Target | None:
    from fewbit.quantization.target import parse_budget

    return None if text is None else parse_budget(text)
