"""Calls of functions as models write them, read from an answer's text.

Three forms are read: `<tool_call>` tags around JSON (Hermes, Qwen), JSON alone or in a code fence,
and Python calls with keyword arguments (as Llama and BFCL's prompting models write). What begins as
one of them and cannot be read is a failure of its own kind, not an answer without a call.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fewbit.records.tools import CallForm

MOST_CHARACTERS = 20_000
"""Longer answers are not read: Python's parser takes memory without bound."""

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL)
_NAMED = re.compile(r'[\[{]\s*(?:\{\s*)?"(?:name|function|type)"\s*:')
_BETWEEN = re.compile(r"[\s,;]*")
_WORDS = {"true": True, "false": False, "null": None}


class Call(NamedTuple):
    """One call."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The call as one line of JSON, the same for equal calls."""
        return json.dumps({"name": self.name, "arguments": self.arguments}, sort_keys=True)


@dataclass(frozen=True)
class Parsed:
    """What an answer calls."""

    calls: tuple[Call, ...] = ()
    form: CallForm | None = None
    """None where the answer has no call."""
    fault: str = ""
    """Why what looks like a call cannot be read."""


class _UnreadableError(ValueError):
    """What looks like a call is none; the message says why."""


def form_of(template: str | None) -> CallForm:
    """Return the form of calls that a chat template teaches; JSON where it teaches none."""
    return CallForm.TAGGED if template is not None and _OPEN in template else CallForm.JSON


def read_calls(text: str, offered: Collection[str]) -> Parsed:
    """Return the calls of an answer.

    Args:
        text: the answer.
        offered: the names of functions that there were; one of them before a parenthesis makes a
            Python call.
    """
    if len(text) > MOST_CHARACTERS:
        return Parsed(fault=f"the answer has {len(text):,} characters")
    form, body = _form_in(text.strip(), offered)
    if form is None:
        return Parsed()
    readers = {CallForm.TAGGED: _tagged, CallForm.JSON: _json, CallForm.PYTHON: _python}
    try:
        calls = tuple(readers[form](body))
    except (_UnreadableError, RecursionError, MemoryError) as error:
        return Parsed(form=form, fault=str(error) or "it is nested too deep")
    return Parsed(calls, form)


def _form_in(text: str, offered: Collection[str]) -> tuple[CallForm | None, str]:
    """Return the form that a text is written in, and the part of it that is."""
    if _OPEN in text:
        return CallForm.TAGGED, text
    fenced = _FENCE.search(text)
    body = text if fenced is None else fenced[1].strip()
    if _begins_python(body, offered):
        return CallForm.PYTHON, body
    if body[:1] in ("{", "["):
        return CallForm.JSON, body
    named = _NAMED.search(text)
    return (None, "") if named is None else (CallForm.JSON, text[named.start() :])


def _begins_python(text: str, offered: Collection[str]) -> bool:
    head = text.removeprefix("[").lstrip()
    return any(head.startswith(name) and head[len(name) :][:1] == "(" for name in offered)


def _tagged(text: str) -> Iterator[Call]:
    """Yield the calls between tags; the last tag may be left open, as at the end of an answer."""
    for part in text.split(_OPEN)[1:]:
        inside = part.partition(_CLOSE)[0].strip()
        yield from _called(_value(inside, 0)[0])


def _json(text: str) -> Iterator[Call]:
    """Yield the calls of JSON values, one behind the other; what follows them is not looked at."""
    at = 0
    while text[at : at + 1] in ("{", "["):
        value, end = _value(text, at)
        yield from _called(value)
        between = _BETWEEN.match(text, end)
        at = end if between is None else between.end()


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except ValueError as error:
        raise _UnreadableError(f"no JSON: {error}") from error


def _called(value: Any) -> Iterator[Call]:
    """Yield the calls that a JSON value describes."""
    if isinstance(value, list):
        for one in value:
            yield from _called(one)
        return
    if not isinstance(value, dict):
        raise _UnreadableError(f"{str(value)[:60]!r} is no object with a name")
    described = value["function"] if isinstance(value.get("function"), dict) else value
    name = described.get("name")
    arguments = described.get("arguments", described.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _value(arguments, 0)[0]
    if not isinstance(name, str):
        raise _UnreadableError("the JSON has no name of a function")
    if not isinstance(arguments, dict):
        raise _UnreadableError(f"the arguments of {name} are no object")
    yield Call(name, arguments)


def _python(text: str) -> Iterator[Call]:
    """Yield calls written in Python; nothing of them is run."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python deprecates
            body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise _UnreadableError(f"no Python: {error}") from error
    for statement in body:
        if not isinstance(statement, ast.Expr):
            raise _UnreadableError("the Python is more than calls")
        node = statement.value
        for one in node.elts if isinstance(node, ast.List | ast.Tuple) else [node]:
            yield _python_call(one)


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call):
        raise _UnreadableError(f"{ast.unparse(node)[:60]!r} is no call")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise _UnreadableError("an argument of the Python call has no name")
    return Call(ast.unparse(node.func), {str(k.arg): _literal(k.value) for k in node.keywords})


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError) as error:
        raise _UnreadableError(f"{ast.unparse(node)[:60]!r} is no value") from error
    if not _is_json(found):
        raise _UnreadableError(f"{ast.unparse(node)[:60]!r} is no value that JSON has")
    return found


def _is_json(value: Any) -> bool:
    """Return whether JSON has such a value: no set, bytes or complex number, names as text."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float)
