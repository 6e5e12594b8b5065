"""Chat templates: a conversation as the text that a model was trained on.

Templates come with a model's files and are programs, so they run sandboxed and within a budget; a
failure is the request's error and never the process's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import CodeType
from typing import Any

import jinja2

from fewbit.errors import FewbitError, RequestError, TemplateError
from fewbit.tokens.template_budget import Budget, RenderLimits, limits_for
from fewbit.tokens.template_sandbox import RefusedError, TemplateSandbox

MAX_SOURCE = 1 << 16
"""Characters of a template's source; the longest in use have about 2^14."""

MAX_NESTING = 48
"""Nesting of messages and tools; under what a template may nest itself."""

_ADVICE = "use another template, or the text without one"


class ChatTemplate:
    """One template. It is compiled at its first use, so that a bad one hinders only chats."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Keep a template.

        Args:
            source: the Jinja text, as stored with the model.
            special_tokens: variables such as `bos_token`; `Tokenizer.special_texts` has them.
            clock: what `strftime_now` tells; give a fixed one for output that repeats.
        """
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._clock = clock

    @property
    def digest(self) -> str:
        """SHA-256 of the source, hexadecimal."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        limits: RenderLimits | None = None,
        **variables: Any,
    ) -> str:
        """Return the conversation as text, special tokens included by name.

        Encode the result with `add_special=False, parse_special=True`.

        Args:
            messages: objects with `role` and `content`, oldest first. Keys whose value is None are
                left out, as transformers does: templates expect such keys to be absent.
            tools: JSON schemas of functions the model may call.
            add_generation_prompt: end with the opening of the assistant's turn.
            limits: bounds of the rendering; by default those for the conversation's size.
            **variables: anything else that the template reads, such as `enable_thinking`.

        Raises:
            TemplateError: the template is malformed, refuses the conversation (its own words are
                given), fails, reaches for what is not its own, or passes its bounds.
            RequestError: the conversation is empty or not plain JSON data.
        """
        data = _plain_variables(messages, tools, variables)
        bounds = limits or limits_for(_weight(data))
        sandbox = TemplateSandbox(Budget(bounds), self._clock)
        values = {**self._special_tokens, **data, "add_generation_prompt": add_generation_prompt}
        code = self._code
        text: str = _run(lambda: _collect(sandbox.template_of(code), values, bounds))
        return text

    @cached_property
    def _code(self) -> CodeType:
        if len(self.source) > MAX_SOURCE:
            raise TemplateError(
                f"The chat template has {len(self.source):,} characters and at most "
                f"{MAX_SOURCE:,} are supported; {_ADVICE}."
            )
        sandbox = TemplateSandbox(Budget(limits_for(0)))
        code: CodeType = _run(lambda: sandbox.compile(self.source))
        return code


def _collect(template: jinja2.Template, values: dict[str, Any], bounds: RenderLimits) -> str:
    parts: list[str] = []
    written = 0
    for part in template.generate(values):
        written += len(part)
        if written > bounds.written:
            raise TemplateError(f"The chat template wrote more than {bounds.written:,} characters.")
        parts.append(part)
    return "".join(parts)


def _run(action: Callable[[], Any]) -> Any:
    """Return what `action` returns; whatever goes wrong in a template is a TemplateError."""
    try:
        return action()
    except TemplateError as error:
        raise _failed(str(error).rstrip(".")) from error
    except FewbitError:
        raise
    except RefusedError as error:
        raise TemplateError(f"The chat template refuses this conversation: {error}") from None
    except jinja2.TemplateSyntaxError as error:
        place = f"in line {error.lineno}: {_short(error)}"
        raise _failed(f"The chat template is malformed {place}") from error
    except RecursionError as error:
        raise _failed("The chat template calls itself, or nests, without end") from error
    except MemoryError as error:
        raise _failed("The chat template asked for more memory than there is") from error
    except Exception as error:
        name = type(error).__name__
        raise _failed(f"The chat template failed ({name}): {_short(error)}") from error


def _failed(what: str) -> TemplateError:
    return TemplateError(f"{what}; {_ADVICE}.")


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else "no reason given"


def _plain_variables(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> dict[str, Any]:
    if not messages:
        raise RequestError("The conversation is empty; give at least one message.")
    listed = [_plain(message, f"messages[{i}]", 0) for i, message in enumerate(messages)]
    for index, message in enumerate(listed):
        if not isinstance(message, dict):
            raise RequestError(f"messages[{index}] is no object; give it a role and a content.")
    given = {"documents": None, **variables, "tools": tools}
    plain = {name: _plain(value, name, 0) for name, value in given.items()}
    plain["messages"] = [
        {key: value for key, value in message.items() if value is not None} for message in listed
    ]
    return plain


def _plain(value: Any, where: str, depth: int) -> Any:
    """Return JSON data rebuilt from plain types, so that no method of another type is in reach."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if depth > MAX_NESTING:
        raise RequestError(f"{where[:80]} is nested more than {MAX_NESTING} deep; flatten it.")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise RequestError(
        f"{where[:80]} is a {type(value).__name__}; a conversation is made of text, numbers, lists "
        "and objects."
    )


def _weight(value: Any) -> int:
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, dict):
        return sum(_weight(key) + _weight(item) for key, item in value.items())
    if isinstance(value, list):
        return sum(_weight(item) for item in value) + len(value)
    return 8
