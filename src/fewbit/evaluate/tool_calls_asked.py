"""How questions about functions are put to a model: by its template, a message, or a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from fewbit.errors import TemplateError
from fewbit.evaluate.answers import Ask, Prompt
from fewbit.evaluate.structured import SchemaItem
from fewbit.evaluate.tool_calls_key import Message, ToolItem
from fewbit.tokens.chat_template import ChatTemplate

CALL_TOKENS = 96
"""A call of the built-in suite takes 20 to 40; what goes on past this does not end."""

CALLS_TOKENS = 192
"""Where several calls are right."""

JSON_TOKENS = 192

FREE, CONSTRAINED, TOOLS = "free", "constrained", "calls"
"""The first parts of the names of asks."""

_TAUGHT = (
    "You have these functions:\n{functions}\n\n"
    "If one or more of them do what the user wants, answer with the calls alone, each on its own "
    'line as JSON: {{"name": "...", "arguments": {{...}}}}. If none of them does, answer in one '
    "sentence, without a call."
)

_NEXT = "\nQuestion:"


class Presentation(Enum):
    """How functions are told to a model; the value is a sentence for a reader."""

    TEMPLATE = "The model's own chat template writes the functions into the prompt."
    MESSAGE = (
        "A system message of ours has the functions and the form of a call, since the chat "
        "template has no place for them."
    )
    TEXT = (
        "A text to be continued has the functions and the form of a call, since the model has no "
        "chat template."
    )
    ENDPOINT = "The server that runs the model is given the functions, and writes the prompt."


def presentation_of(template: ChatTemplate | None) -> Presentation:
    """Return how functions are told to a model with this chat template."""
    if template is None:
        return Presentation.TEXT
    asked = ({"role": "user", "content": "?"},)
    function = {"name": "f", "description": "?", "parameters": {"type": "object", "properties": {}}}
    try:
        written = template.render(asked, [{"type": "function", "function": function}])
    except TemplateError:
        return Presentation.MESSAGE
    told = written != template.render(asked)
    return Presentation.TEMPLATE if told else Presentation.MESSAGE


def tool_ask(item: ToolItem, presentation: Presentation) -> Ask:
    """Return what is asked for an item."""
    by_caller = presentation in (Presentation.TEMPLATE, Presentation.ENDPOINT)
    messages = item.messages if by_caller else _with_functions(item)
    return Ask(
        name=f"{TOOLS}/{item.name}",
        prompt=_prompt(messages, presentation),
        max_tokens=CALLS_TOKENS if len(item.expected) > 1 else CALL_TOKENS,
        tools=item.tools if by_caller else (),
        stop=_stop(presentation),
    )


def json_ask(item: SchemaItem, presentation: Presentation, *, constrained: bool) -> Ask:
    """Return what is asked for a schema, with a grammar of it or without."""
    return Ask(
        name=f"{CONSTRAINED if constrained else FREE}/{item.name}",
        prompt=question(item.question, presentation),
        max_tokens=JSON_TOKENS,
        grammar=item.grammar if constrained else None,
        stop=() if constrained else _stop(presentation),
    )


def question(text: str, presentation: Presentation) -> Prompt:
    """Return a question without functions as it is put to a model."""
    return _prompt(({"role": "user", "content": text},), presentation)


def _with_functions(item: ToolItem) -> tuple[Message, ...]:
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in item.tools)
    taught = _TAUGHT.format(functions=functions)
    first, *rest = item.messages
    if first["role"] == "system":
        return {"role": "system", "content": f"{first['content']}\n\n{taught}"}, *rest
    return {"role": "system", "content": taught}, *item.messages


def _prompt(messages: Sequence[Mapping[str, Any]], presentation: Presentation) -> Prompt:
    if presentation is not Presentation.TEXT:
        return tuple(messages)
    *before, last = (str(message["content"]) for message in messages)
    return "\n\n".join([*before, f"Question: {last}\nAnswer:"])


def _stop(presentation: Presentation) -> tuple[str, ...]:
    return (_NEXT,) if presentation is Presentation.TEXT else ()
