"""`fewbit bench`: a model's speed beside what this machine can do, or plain beside a draft's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.bench_draft import DRAFT, DraftOptions, speculation_report
from fewbit.cli.output import JsonOption
from fewbit.cli.running import RUNNING, RunningOptions, counts

if TYPE_CHECKING:
    from fewbit.evaluate.machine.speed import SpeedSettings
    from fewbit.records.speed import SpeedReport


def bench(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    prompt: int = 512,
    tokens: int = 128,
    concurrency: str = "1,4,16",
    running: RunningOptions = RUNNING,
    draft: DraftOptions = DRAFT,
    json: JsonOption = None,
) -> int:
    """Measure a model's speed beside what this machine can do, or plain beside with a draft.

    Example: fewbit bench smollm2-135m --concurrency 1,16

    Example: fewbit bench smollm2-135m --draft ngram --concurrency 1,4,16

    Args:
        model: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        prompt: Tokens of each request's prompt; with a draft prompts are texts.
        tokens: Tokens that each request generates.
        concurrency: How many requests at once; several numbers, separated by commas.
        running: How the model runs.
        draft: What drafts, and on which prompts it is measured.
        json: Write the record to this file; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.report.speculation import print_speculation
    from fewbit.report.speed import print_speed

    settings = running.speed(prompt, tokens, counts("concurrency", concurrency, "1,4,16"))
    if draft.named:
        deliver(speculation_report(locate(model), settings, draft), json, print_speculation)
    else:
        deliver(_measured(locate(model), settings), json, print_speed)
    return 0


def _measured(path: Path, settings: SpeedSettings) -> SpeedReport:
    from fewbit.cli.progress import progress_bar
    from fewbit.evaluate.machine.speed import measure_speed

    with progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        return measure_speed(path, settings, lambda what: bar.update(task, description=what))
