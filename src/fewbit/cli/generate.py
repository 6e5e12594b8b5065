"""`fewbit generate`: text on stdout as it comes, statistics on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.options import (
    GENERATE_RUN,
    SAMPLING,
    GenerateRunOptions,
    RunOptions,
    SamplingOptions,
)
from fewbit.cli.output import JsonOption
from fewbit.cli.prompt import PROMPT, PromptOptions

if TYPE_CHECKING:
    from fewbit.cli.streaming import Streamed
    from fewbit.engine.loaded import LoadedModel
    from fewbit.records.generation import GenerationReport

EXIT_INTERRUPTED = 130


def generate(
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    prompt: PromptOptions = PROMPT,
    sampling: SamplingOptions = SAMPLING,
    run: GenerateRunOptions = GENERATE_RUN,
    json: JsonOption = None,
) -> int:
    """Generate text, with exact speculation where a draft is given.

    Example: fewbit generate smollm2-135m -p "Why is the sky blue?" --draft ngram

    Args:
        model: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        prompt: What the model reads.
        sampling: How tokens are chosen.
        run: How long to generate, with which draft, how the model runs, and what the text must be.
        json: Write text, tokens and record to this file; - prints them on stdout instead of the
            text.
    """
    from msgspec.structs import replace

    from fewbit.cli.costs import with_costs
    from fewbit.cli.drafts import draft_notes
    from fewbit.cli.log import logged
    from fewbit.cli.output import STDOUT, deliver
    from fewbit.cli.pull import locate
    from fewbit.cli.streaming import stream, write_out
    from fewbit.cli.structure import grammar_record
    from fewbit.engine.engine import Engine
    from fewbit.engine.loaded import load_model
    from fewbit.engine.request import Request
    from fewbit.records.generation import FinishReason
    from fewbit.report.generation import describe_generation

    text, params, chosen = prompt.text(), sampling.params(), run.drafting()
    settings, grammar = chosen.target_settings(run.settings()), run.structure()
    loaded = load_model(locate(model), settings)
    opened = chosen.opened(loaded, settings)
    draft, costs = with_costs(opened, loaded, run.draft_costs, run.conditions(loaded))
    for line in (*_notes(loaded), *draft_notes(draft), costs, prompt.choice(loaded)):
        _note(line)
    request = Request(
        prompt.ids(loaded, text), params, run.stop_condition(loaded.ends), grammar=grammar
    )
    engine = Engine(loaded.served, draft.speculation)
    shown = json != STDOUT
    with logged(run.log, loaded.runner.source.path, engine) as log:
        streamed = stream(engine, request, write_out if shown else lambda _: None, log)
    if shown and not streamed.text.endswith("\n"):
        write_out("\n")
    for line in describe_generation(streamed.record):
        _note(line)
    if json is not None:
        report = _report(loaded, run, prompt, text, streamed)
        report = replace(report, draft=draft.record, draft_kernels=draft.kernels)
        deliver(replace(report, grammar=grammar_record(grammar)), json, _drawn_already)
    return EXIT_INTERRUPTED if streamed.record.finish is FinishReason.CANCELLED else 0


def _notes(loaded: LoadedModel) -> tuple[str, ...]:
    from fewbit.records.kernels import kernel_fallbacks
    from fewbit.report.loading import describe_loading

    return *describe_loading(loaded.runner.loading), *kernel_fallbacks(loaded.runner.kernels)


def _note(line: str) -> None:
    if line:
        print(line, file=sys.stderr)


def _report(
    loaded: LoadedModel, run: RunOptions, prompt: PromptOptions, text: str, streamed: Streamed
) -> GenerationReport:
    from fewbit.model.facts import model_facts
    from fewbit.records.generation import GenerationReport

    return GenerationReport(
        model=model_facts(loaded.runner.source),
        kernels=loaded.runner.kernels,
        loading=loaded.runner.loading,
        conditions=run.conditions(loaded),
        prompt=text,
        chat_template=prompt.uses_template(loaded),
        text=streamed.text,
        tokens=streamed.tokens,
        generation=streamed.record,
    )


def _drawn_already(*_: object) -> None:
    """Draw nothing: the text was streamed as it came."""
