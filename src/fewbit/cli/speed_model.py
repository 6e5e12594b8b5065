"""`fewbit speed-model`: what speculation is worth, before anything is run or of what was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.output import HtmlOption, JsonOption
from fewbit.errors import MissingError, UsageError

if TYPE_CHECKING:
    from fewbit.speculate.measured import Measured

DRAFT_COST = 0.1
CHANCES = "0.25,0.5,0.9"
LONGEST_RANGE = 64


def speed_model(  # noqa: PLR0913
    *,
    acceptance: str | None = None,
    draft_cost: float | None = None,
    row_cost: str | None = None,
    k: Annotated[str, Parameter(name=("--k", "-k"))] = "1..8",
    from_run: Path | None = None,
    outputs: int = 200,
    tokens: int = 256,
    seed: int = 0,
    html: HtmlOption = None,
    json: JsonOption = None,
) -> int:
    """Compute what speculation is worth: formula and simulation, also for a measured run.

    Speed over plain decoding by draft length K (Leviathan et al. 2023, theorem 3.8, with the cost
    of scoring several rows at once), and beside it outputs simulated with the real rule.

    Example: fewbit speed-model --acceptance 0.25,0.5,0.9 --draft-cost 0.1 --k 1..8

    Args:
        acceptance: Chances that a drafted token is accepted, with commas; by default
            0.25,0.5,0.9, or those of the run.
        draft_cost: Of a drafted token, in plain steps of the target; 0.1, or the run's.
        row_cost: What each row after the first adds to a step of the target, such as 0.05; or the
            costs of whole steps by rows, such as 4=1.15,8=1.5. By default 0, or the run's.
        k: Draft lengths: 1..8, or numbers with commas.
        from_run: The record of `fewbit generate --draft ... --json FILE` or of
            `fewbit bench --draft ... --json FILE`: acceptance by position, costs, and what was
            measured.
        outputs: Simulated for each acceptance and K.
        tokens: Of each simulated output.
        seed: Of the simulation.
        html: Write a plot that opens offline to this file.
        json: Write the record to this file; - prints it on stdout instead of the table.
    """
    from fewbit.atomic import write_bytes
    from fewbit.cli.output import deliver
    from fewbit.report.speed_model import print_speed_model, speed_model_page
    from fewbit.speculate.speed_model import SpeedModel, speed_curve
    from fewbit.speculate.speed_model import speed_model as report_of

    measured = None if from_run is None else _read(from_run)
    runs = () if measured is None else measured.runs
    model = SpeedModel(
        draft_cost=_draft_cost(draft_cost, measured),
        step_costs=_step_costs(row_cost, measured),
        lengths=_lengths(k),
        outputs=outputs,
        output_tokens=tokens,
        seed=seed,
    )
    curves = [speed_curve(model, name, chances) for name, chances in _wanted(acceptance, measured)]
    found = report_of(model, curves, runs)
    if html is not None:
        write_bytes(html, speed_model_page(found).encode())
    deliver(found, json, print_speed_model)
    return 0


def _read(path: Path) -> Measured:
    from fewbit.records.base import from_json
    from fewbit.records.generation import GenerationReport
    from fewbit.records.speculation import SpeculationReport
    from fewbit.speculate.measured import measured_bench, measured_generation

    try:
        text = path.read_bytes()
    except OSError as error:
        raise MissingError(
            f"{path} cannot be read ({error.strerror}); give what "
            "'fewbit generate --draft ... --json FILE' or 'bench --draft' wrote."
        ) from error
    if b'"runs"' in text:
        return measured_bench(from_json(SpeculationReport, text, name=str(path)))
    return measured_generation(from_json(GenerationReport, text, name=str(path)))


def _wanted(text: str | None, measured: Measured | None) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield name and acceptance of each curve: of the runs, by position, and those asked for."""
    if measured is not None:
        for run, chances in zip(measured.runs, measured.acceptance, strict=True):
            yield f"{run.name}, by position", chances
    elif text is None:
        text = CHANCES
    if text is not None:
        yield from ((f"{chance:.4g}", (chance,)) for chance in _chances(text))


def _chances(text: str) -> Iterator[float]:
    try:
        return iter([float(part) for part in text.split(",")])
    except ValueError:
        raise UsageError(
            f"--acceptance is {text!r}; write numbers in [0, 1] with commas, such as {CHANCES}."
        ) from None


def _draft_cost(given: float | None, measured: Measured | None) -> float:
    if given is not None:
        return given
    return DRAFT_COST if measured is None else measured.draft_cost


def _step_costs(text: str | None, measured: Measured | None) -> tuple[tuple[int, float], ...]:
    from fewbit.speculate.speed_model import linear_costs

    if text is None:
        return ((1, 1.0),) if measured is None else measured.step_costs
    try:
        if "=" not in text:
            return linear_costs(float(text))
        pairs = [entry.split("=", 1) for entry in text.split(",")]
        return (1, 1.0), *((int(rows), float(cost)) for rows, cost in pairs)
    except ValueError:
        raise UsageError(
            f"--row-cost is {text!r}; write a number such as 0.05, or costs by rows such as "
            "4=1.15,8=1.5."
        ) from None


def _lengths(text: str) -> tuple[int, ...]:
    first, dots, last = text.partition("..")
    try:
        if dots and int(last) - int(first) < LONGEST_RANGE:
            return tuple(range(int(first), int(last) + 1))
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--k is {text!r}; write 1..8, or numbers such as 1,2,4.") from None
