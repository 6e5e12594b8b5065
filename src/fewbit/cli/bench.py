"""`fewbit bench`: a model's speed beside what this machine can do, or plain beside a draft's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.activations import ActivationsOption, rounding
from fewbit.cli.bench_draft import DRAFT, DraftOptions, speculation_report
from fewbit.cli.cache import KvOption, RotateOption, cache_type
from fewbit.cli.output import JsonOption
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.evaluate.speed import SpeedSettings
    from fewbit.records.speed import SpeedReport


def bench(  # noqa: PLR0913
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    prompt: int = 512,
    tokens: int = 128,
    concurrency: str = "1,4,16",
    activations: ActivationsOption = None,
    kv: KvOption = "f16",
    rotate_keys: RotateOption = False,
    threads: int | None = None,
    keep_packed: Annotated[bool, Parameter(negative="")] = False,
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
        activations: How layers with integer weights round their inputs: int8, int8-token,
            int8-static or bf16; by default as the model says.
        kv: How keys and values are stored.
        rotate_keys: Rotate keys before they are stored.
        threads: Of the native executor; every core by default.
        keep_packed: Keep the weights as they are run in a file beside the model.
        draft: What drafts, and on which prompts it is measured.
        json: Write the record to this file; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.evaluate.speed import SpeedSettings
    from fewbit.report.speculation import print_speculation
    from fewbit.report.speed import print_speed

    settings = SpeedSettings(
        prompt=prompt,
        tokens=tokens,
        concurrency=_counts(concurrency),
        threads=threads,
        activations=rounding(activations),
        cache_type=cache_type(kv),
        rotate_keys=rotate_keys,
        keep_packed=keep_packed,
    )
    if draft.named:
        deliver(speculation_report(locate(model), settings, draft), json, print_speculation)
    else:
        deliver(_measured(locate(model), settings), json, print_speed)
    return 0


def _measured(path: Path, settings: SpeedSettings) -> SpeedReport:
    from fewbit.cli.progress import progress_bar
    from fewbit.evaluate.speed import measure_speed

    with progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        return measure_speed(path, settings, lambda what: bar.update(task, description=what))


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--concurrency is {text!r}; write numbers with commas, such as 1,4,16."
        ) from None
