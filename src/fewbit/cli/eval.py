"""`fewbit eval`: a model measured against its exact source, with a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.activations import ActivationsOption, rounding
from fewbit.cli.cache import KvOption, RotateOption, cache_type
from fewbit.cli.output import HtmlOption, JsonOption


def eval(  # noqa: PLR0913
    candidate: Annotated[str, Parameter(name="CANDIDATE")],
    /,
    *,
    against: str,
    text: Path | None = None,
    windows: int = 40,
    threads: int | None = None,
    executor: str = "native",
    isa: str | None = None,
    activations: ActivationsOption = None,
    kv: KvOption = "f16",
    rotate_keys: RotateOption = False,
    strict: Annotated[bool, Parameter(negative="")] = False,
    keep_packed: Annotated[bool, Parameter(negative="")] = False,
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
        threads: Threads of the native executor; every core by default.
        executor: native, or reference (slow, the truth in tests).
        isa: An instruction set to force.
        activations: How the candidate's layers with integer weights round their inputs: int8,
            int8-token, int8-static or bf16; by default as the model says. A model against itself
            shows the effect of that alone.
        strict: Refuse models that would not be run in their own formats.
        keep_packed: Keep both models' weights as they are run in files beside them.
        kv: How the candidate stores keys and values; the source keeps f16. A model against itself
            shows the effect of the KV cache alone.
        rotate_keys: Rotate the candidate's keys before they are stored.
        html: Write a report that opens offline to this file.
        json: Write the evaluation to this file; - prints it on stdout instead of the table.
    """
    from fewbit.atomic import write_bytes
    from fewbit.calibrate.text import evaluation_text
    from fewbit.cli.output import deliver
    from fewbit.cli.progress import progress_bar
    from fewbit.cli.pull import locate
    from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
    from fewbit.report.html import evaluation_page
    from fewbit.report.terminal import print_evaluation

    settings = EvaluationSettings(
        windows=windows,
        threads=threads,
        executor=executor,
        isa=isa,
        activations=rounding(activations),
        strict=strict,
        keep_packed=keep_packed,
        kv=cache_type(kv),
        rotate_keys=rotate_keys,
    )
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
