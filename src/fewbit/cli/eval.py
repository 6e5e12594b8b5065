"""`fewbit eval`: a model measured against its exact source, with a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.endpoints import ENDPOINT, EndpointOptions, require_served
from fewbit.cli.measuring import MEASURING, ON_AXES, AxesOptions, MeasuringOptions
from fewbit.cli.output import HtmlOption, JsonOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fewbit.evaluate.axes import AxisOptions
    from fewbit.evaluate.axis import Axis
    from fewbit.evaluate.endpoint.client import Address
    from fewbit.evaluate.evaluation import EvaluationSettings
    from fewbit.records.evaluation import Evaluation


def eval(  # noqa: PLR0913
    candidate: Annotated[str, Parameter(name="CANDIDATE")],
    /,
    *,
    against: str,
    axes: AxesOptions = ON_AXES,
    gate: Path | None = None,
    work: Path | None = None,
    measuring: MeasuringOptions = MEASURING,
    endpoint: EndpointOptions = ENDPOINT,
    html: HtmlOption = None,
    json: JsonOption = None,
) -> int:
    """Measure a model against its exact source and give a verdict.

    Exit code 0 is ACCEPT, 3 REJECT, 4 INCONCLUSIVE; 75 is stopped, where --work keeps what was
    measured and the same command goes on.

    Args:
        candidate: The model to measure: a name, a GGUF file, a folder, or the URL of an
            OpenAI-compatible server, which has the axes endpoint, tasks, safety and tools.
        against: The exact source it was made from.
        axes: What the model is measured on.
        gate: A gate.toml with the margins; by default those that are built in.
        work: A folder that keeps what is measured; one run at a time uses it, and the outcomes of a
            source there serve many candidates.
        measuring: How the two models are run.
        endpoint: What is asked for at a URL.
        html: Write a report that opens offline to this file.
        json: Write the evaluation to this file; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import deliver_with_page
    from fewbit.cli.pull import locate
    from fewbit.evaluate.axes import axes_named
    from fewbit.evaluate.gating.file import find_gate
    from fewbit.report.html import evaluation_page
    from fewbit.report.terminal import print_evaluation

    settings = measuring.settings(find_gate(gate), work)
    options = axes.options(settings.gate, measuring.threads, measuring.executor)
    address = endpoint.address(candidate)
    if address is None:
        found = measured(
            locate(against), locate(candidate), axes_named(axes.names, options), settings
        )
    else:
        require_served(axes, measuring)
        found = _served(locate(against), address, axes.names, options, settings)
    deliver_with_page(found, json, print_evaluation, html, evaluation_page)
    return found.verdict.outcome.exit_code


def measured(
    source: Path, candidate: Path, axes: Sequence[Axis], settings: EvaluationSettings
) -> Evaluation:
    """Measure under a progress bar; raises as `evaluate`, and StoppedError as `resumable`."""
    from fewbit.cli.progress import watched
    from fewbit.cli.stopping import resumable
    from fewbit.evaluate.evaluation import evaluate

    with resumable(settings.work), watched() as progress:
        return evaluate(source, candidate, axes, settings, progress)


def _served(
    source: Path,
    address: Address,
    names: Sequence[str],
    options: AxisOptions,
    settings: EvaluationSettings,
) -> Evaluation:
    """Measure what a server runs, under a progress bar."""
    from fewbit.cli.progress import watched
    from fewbit.cli.stopping import resumable
    from fewbit.evaluate.endpoint.answerer import endpoint_party
    from fewbit.evaluate.endpoint.evaluation import endpoint_axes, evaluate_endpoint

    axes, party = endpoint_axes(names, options), endpoint_party(address)
    with resumable(settings.work), watched() as progress:
        return evaluate_endpoint(source, party, axes, settings, progress)
