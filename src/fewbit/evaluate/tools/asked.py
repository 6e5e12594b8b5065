"""How questions about functions are put to a model: by its template, a message, or a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum

from fewbit.errors import TemplateError
from fewbit.evaluate.answers import Ask, Prompt, conversation
from fewbit.evaluate.tools.key import Message, ToolItem
from fewbit.evaluate.tools.structured import SchemaItem
from fewbit.tokens.chat_template import ChatTemplate

CALL_TOKENS = 64
"""A call of the built-in suite takes 20 to 45; what goes on past this does not end."""

CALLS_TOKENS = 128
"""Where several calls are right."""

JSON_TOKENS = 128

FREE, CONSTRAINED, TOOLS = "free", "constrained", "calls"
"""The first parts of the names of asks."""

_TAUGHT = (
    "You have these functions:\n{functions}\n\n"
    "If one or more of them do what the user wants, answer with the calls alone, each on its own "
    'line as JSON: {{"name": "...", "arguments": {{...}}}}. If none of them does, answer in one '
    "sentence, without a call."
)

_SHOWN_FUNCTION = {
    "name": "feed_animal",
    "description": "Give food to an animal.",
    "parameters": {
        "type": "object",
        "properties": {"animal": {"type": "string"}, "grams": {"type": "integer"}},
        "required": ["animal", "grams"],
    },
}
_SHOWN_CALL = (
    {"role": "user", "content": "Give the goat 250 grams of food."},
    {
        "role": "assistant",
        "content": '{"name": "feed_animal", "arguments": {"animal": "goat", "grams": 250}}',
    },
)
"""What a model that was not taught to call functions is shown first."""

_SHOWN_NOTE = SchemaItem(
    "shown",
    "shown",
    {
        "type": "object",
        "properties": {"river": {"type": "string"}, "kilometres": {"type": "integer"}},
        "required": ["river", "kilometres"],
        "additionalProperties": False,
    },
    "Note: The Severn is 354 kilometres long.",
)
_SHOWN_JSON = (
    {"role": "user", "content": _SHOWN_NOTE.question},
    {"role": "assistant", "content": '{"river": "Severn", "kilometres": 354}'},
)
"""One note and its JSON, shown before each of a schema."""

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
        prompt=_prompt((*_SHOWN_JSON, *conversation(item.question)), presentation),
        max_tokens=JSON_TOKENS,
        grammar=item.grammar if constrained else None,
        stop=() if constrained else _stop(presentation),
    )


def question(text: str, presentation: Presentation) -> Prompt:
    """Return a question without functions as it is put to a model."""
    return _prompt(conversation(text), presentation)


def _with_functions(item: ToolItem) -> tuple[Message, ...]:
    functions = [_SHOWN_FUNCTION, *(tool["function"] for tool in item.tools)]
    listed = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    system = [m["content"] for m in item.messages if m["role"] == "system"]
    taught = "\n\n".join([*system, _TAUGHT.format(functions=listed)])
    others = (m for m in item.messages if m["role"] != "system")
    return {"role": "system", "content": taught}, *_SHOWN_CALL, *others


def _prompt(messages: Sequence[Message], presentation: Presentation) -> Prompt:
    if presentation is not Presentation.TEXT:
        return tuple(messages)
    heads = {"user": "Question: ", "assistant": "Answer: "}
    lines = [f"{heads.get(m['role'], '')}{m['content']}" for m in messages]
    return "\n\n".join(lines) + "\n\nAnswer:"


def _stop(presentation: Presentation) -> tuple[str, ...]:
    return (_NEXT,) if presentation is Presentation.TEXT else ()
