"""`fewbit chat`: a conversation, one line a turn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.options import CHAT_SAMPLING, RUN, ChatSamplingOptions, RunOptions

if TYPE_CHECKING:
    from fewbit.cli.streaming import Streamed
    from fewbit.engine.engine import Engine
    from fewbit.engine.request import Request
    from fewbit.records.generation import GenerationRecord

EXIT, NEW = "/exit", "/new"


def chat(
    model: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    system: str | None = None,
    sampling: ChatSamplingOptions = CHAT_SAMPLING,
    run: RunOptions = RUN,
) -> int:
    """Talk with a model, one line a turn; /new begins anew, /exit or the end of input leaves.

    Example: fewbit chat smollm2-135m

    Args:
        model: A name, a path to a GGUF file, or a folder; what is not here yet is fetched.
        system: A system message before the conversation.
        sampling: How tokens are chosen.
        run: How long an answer may be, with which draft, and how the model runs.
    """
    from fewbit.cli.costs import with_costs
    from fewbit.cli.drafts import draft_notes
    from fewbit.cli.log import logged
    from fewbit.cli.pull import locate
    from fewbit.engine.engine import Engine
    from fewbit.engine.loaded import load_model
    from fewbit.engine.request import Request
    from fewbit.records.kernels import kernel_fallbacks
    from fewbit.report.loading import describe_loading

    params, chosen = sampling.params(), run.drafting()
    settings = chosen.target_settings(run.settings())
    loaded = load_model(locate(model), settings)
    opened = chosen.opened(loaded, settings)
    draft, costs = with_costs(opened, loaded, run.draft_costs, run.conditions(loaded))
    fallbacks = kernel_fallbacks(loaded.runner.kernels)
    for note in (
        *describe_loading(loaded.runner.loading),
        *fallbacks,
        *draft_notes(draft),
        *filter(None, [costs]),
    ):
        print(note, file=sys.stderr)
    engine = Engine(loaded.served, draft.speculation)
    opening = [] if system is None else [{"role": "system", "content": system}]
    loaded.chat_prompt([*opening, {"role": "user", "content": ""}])
    print(f"Ctrl-C ends an answer, {NEW} begins anew, {EXIT} leaves.", file=sys.stderr)
    messages = opening
    with logged(run.log, loaded.runner.source.path, engine) as log:
        while (line := _ask()) is not None:
            if line == NEW:
                messages = opening
                continue
            asked = [*messages, {"role": "user", "content": line}]
            prompt = loaded.chat_prompt(asked)
            if _declined(len(prompt), engine.context, loaded.runner.config.context):
                continue
            answer = _answer(engine, Request(prompt, params, run.stop_condition(loaded.ends)), log)
            messages = [*asked, {"role": "assistant", "content": answer.text}]
    return 0


def _ask() -> str | None:
    """Return the next line that says something, or None where the conversation is over."""
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == EXIT:
            return None
        if line.strip():
            return line.strip()


def _declined(tokens: int, context: int, most: int) -> bool:
    """Whether a conversation leaves no room for an answer and somebody can choose how to go on.

    Nobody can where the lines come from a file; there the engine's refusal ends the command.

    Args:
        tokens: of the conversation.
        context: positions that there are.
        most: positions that the model was made for.
    """
    if tokens < context or not sys.stdin.isatty():
        return False
    longer = f" Another time --context {most} has more room." if most > context else ""
    print(
        f"Not answered: with this line the conversation has {tokens} tokens, and the context holds "
        f"{context}. The line is left out; {NEW} begins anew, {EXIT} leaves, a shorter line may "
        f"fit.{longer}",
        file=sys.stderr,
    )
    return True


def _answer(
    engine: Engine, request: Request, ended: Callable[[GenerationRecord], None]
) -> Streamed:
    """Answer the conversation; an answer that Ctrl-C cut short counts as far as it came."""
    from fewbit.cli.streaming import stream, write_out
    from fewbit.report.generation import describe_generation

    streamed = stream(engine, request, write_out, ended)
    write_out("\n")
    for line in describe_generation(streamed.record):
        print(line, file=sys.stderr)
    return streamed
