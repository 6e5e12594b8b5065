"""`fewbit eval`: a model measured against its exact source, with a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.measuring import MEASURING, MeasuringOptions
from fewbit.cli.output import HtmlOption, JsonOption


def eval(  # noqa: PLR0913
    candidate: Annotated[str, Parameter(name="CANDIDATE")],
    /,
    *,
    against: str,
    text: Path | None = None,
    windows: int = 40,
    measuring: MeasuringOptions = MEASURING,
    html: HtmlOption = None,
    json: JsonOption = None,
) -> int:
    """Measure a model against its exact source and give a verdict.

    Exit code 0 is ACCEPT, 3 REJECT, 4 INCONCLUSIVE. The margins: mean KL(source || candidate) under
    0.05 nats and perplexity within 3%, each with its whole 95% interval.

    Args:
        candidate: The model to measure: a name, a GGUF file or a folder.
        against: The exact source it was made from.
        text: A UTF-8 file: plain, or .jsonl with "text" in each line. By default text that this
            Python carries: pydoc topics and the standard library.
        windows: Windows of 512 tokens to score, at most, spread over the documents.
        measuring: How the two models are run.
        html: Write a report that opens offline to this file.
        json: Write the evaluation to this file; - prints it on stdout instead of the table.
    """
    from fewbit.atomic import write_bytes
    from fewbit.calibrate.text import evaluation_text
    from fewbit.cli.output import deliver
    from fewbit.cli.progress import progress_bar
    from fewbit.cli.pull import locate
    from fewbit.evaluate.evaluation import evaluate
    from fewbit.report.html import evaluation_page
    from fewbit.report.terminal import print_evaluation

    settings = measuring.settings(windows)
    source, measured = locate(against), locate(candidate)
    documents = evaluation_text(text)
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        found = evaluate(
            source,
            measured,
            documents,
            settings,
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if html is not None:
        write_bytes(html, evaluation_page(found).encode())
    deliver(found, json, print_evaluation)
    return found.verdict.outcome.exit_code
