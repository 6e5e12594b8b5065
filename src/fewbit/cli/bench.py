"""`fewbit bench`: a model's speed beside what this machine can do, or plain beside a draft's."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.activations import ActivationsOption, rounding
from fewbit.cli.cache import KvOption, RotateOption, cache_type
from fewbit.cli.costs import DraftCostsOption
from fewbit.cli.output import JsonOption
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.evaluate.speculation import SpeculationSettings
    from fewbit.model.runner import RunSettings
    from fewbit.records.speculation import SpeculationReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The draft whose worth is measured, and on what."""

    draft: Annotated[
        str,
        Parameter(
            help="Measure with and without this draft: ngram, suffix, a model, or as in "
            "ngram+MODEL."
        ),
    ] = "none"
    draft_tokens: Annotated[int, Parameter(help="Tokens drafted at once, at most.")] = 8
    draft_costs: DraftCostsOption = "kept"
    prompts: Annotated[
        Path | None,
        Parameter(
            help="JSON lines with `prompt` and perhaps `kind`, or Spec-Bench's; by default code to "
            "write, files to rewrite and questions, our own."
        ),
    ] = None
    turns: Annotated[
        int, Parameter(help="Turns of each kind and concurrency, plain and with the draft.")
    ] = 4
    temperature: Annotated[float, Parameter(help="0 takes the likeliest token each time.")] = 0.0
    seed: Annotated[
        int | None, Parameter(help="Of what is drawn; without one drafts may be rejected.")
    ] = None

    def settings(self, tokens: int, concurrency: tuple[int, ...]) -> SpeculationSettings:
        """Return what is measured; raises UsageError or BadFileError."""
        from fewbit.evaluate.prompts import builtin_prompts, read_prompts
        from fewbit.evaluate.speculation import SpeculationSettings

        return SpeculationSettings(
            prompts=builtin_prompts() if self.prompts is None else read_prompts(self.prompts),
            tokens=tokens,
            concurrency=concurrency,
            turns=self.turns,
            temperature=self.temperature,
            seed=self.seed,
        )


DRAFT = DraftOptions()


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
    from fewbit.cli.drafts import NESTED
    from fewbit.cli.output import deliver
    from fewbit.cli.progress import progress_bar
    from fewbit.cli.pull import locate
    from fewbit.evaluate.speed import SpeedSettings, measure_speed
    from fewbit.model.runner import RunSettings
    from fewbit.report.speculation import print_speculation
    from fewbit.report.speed import print_speed

    if draft.draft != "none":
        run = RunSettings(
            threads=threads,
            sequences=max(_counts(concurrency), default=1),
            activations=rounding(activations),
            cache_type=cache_type(kv),
            rotate_keys=rotate_keys,
            keep_packed=keep_packed,
            nested=NESTED in draft.draft.split("+"),
        )
        deliver(
            _speculation(locate(model), run, draft, tokens, concurrency), json, print_speculation
        )
        return 0
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
    path = locate(model)
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        report = measure_speed(path, settings, lambda what: bar.update(task, description=what))
    deliver(report, json, print_speed)
    return 0


def _speculation(
    path: Path, run: RunSettings, draft: DraftOptions, tokens: int, concurrency: str
) -> SpeculationReport:
    """Measure a model with a draft; the costs and what is measured are told on stderr."""
    from fewbit.cli.costs import with_costs
    from fewbit.cli.drafts import chosen_draft
    from fewbit.cli.progress import progress_bar
    from fewbit.engine.loaded import load_model
    from fewbit.evaluate.conditions import conditions
    from fewbit.evaluate.speculation import measure_speculation
    from fewbit.evaluate.speed import peak_memory
    from fewbit.model.facts import model_facts
    from fewbit.records.speculation import SpeculationReport
    from fewbit.runtime.native import available_cores

    settings = draft.settings(tokens, _counts(concurrency))
    chosen = chosen_draft(draft.draft, draft.draft_tokens)
    loaded = load_model(path, run)
    ran = conditions(
        loaded.runner.kernels,
        run.threads or available_cores(),
        "native",
        kv=run.cache_type.value,
        rotated_keys=run.rotate_keys,
    )
    plain_memory = peak_memory()
    opened, line = with_costs(
        chosen.opened(loaded, run), loaded, draft.draft_costs, ran, run.sequences
    )
    for note in (*opened.notes, *filter(None, [line])):
        print(note, file=sys.stderr)
    assert opened.speculation is not None
    speculation = opened.speculation
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        runs = tuple(
            measure_speculation(
                loaded, speculation, settings, lambda what: bar.update(task, description=what)
            )
        )
    return SpeculationReport(
        model=model_facts(loaded.runner.source),
        kernels=loaded.runner.kernels,
        conditions=ran,
        loading=loaded.runner.loading,
        draft=speculation.draft.name,
        draft_model=opened.record,
        longest=speculation.longest,
        tokens=tokens,
        costs=runs[-1].speculation[-1].costs,
        peak_memory_bytes=peak_memory(),
        plain_memory_bytes=plain_memory,
        runs=runs,
    )


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--concurrency is {text!r}; write numbers with commas, such as 1,4,16."
        ) from None
