"""Questions and schemas from files: BFCL's categories of one turn, and JSON lines of schemas.

A folder may have both: `tools/` with BFCL files as they are published (`possible_answer/` beside
them), and `schemas/` with files of JSONSchemaBench's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.evaluate.tools.key import Expected, ToolItem
from fewbit.evaluate.tools.structured import SchemaItem, schema_fault
from fewbit.records.tools import LeftOut

KEYS = "possible_answer"
"""The folder of the answer keys, beside the questions."""

MOST_SCHEMA = 4000
"""Characters of a schema; longer ones are left out, since a prompt of them is mostly schema."""

_OTHER_LANGUAGES = ("java", "javascript")
_UNANSWERABLE = "irrelevance"
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "any": None}

_LineT = TypeVar("_LineT")


class _Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any]
    description: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str


class _Question(msgspec.Struct):
    id: str
    question: list[list[_Message]]
    function: list[_Function]


class _Key(msgspec.Struct):
    id: str
    ground_truth: list[dict[str, dict[str, list[Any]]]]


class _Schema(msgspec.Struct):
    id: str
    schema: Any


def read_bfcl(path: Path) -> tuple[ToolItem, ...]:
    """Read the questions of a BFCL file, and their key from the folder beside it.

    Files of `irrelevance` have no key: nothing is to be called.

    Raises:
        MissingError: the file or its key cannot be read, or a question has no key.
        BadFileError: a line is none of BFCL's.
        UnsupportedError: the questions are of several turns, or expect another language's values.
    """
    kind = _kind(path)
    keys = {} if kind == _UNANSWERABLE else _keys(path.parent / KEYS / path.name)
    items = []
    for where, line in _lines(path, _Question):
        if len(line.question) != 1:
            raise UnsupportedError(f"{where} has {len(line.question)} turns; give files of one.")
        if kind != _UNANSWERABLE and line.id not in keys:
            raise MissingError(f"{where} is {line.id}, for which there is no key; add its key.")
        items.append(_item(kind, line, keys.get(line.id, ())))
    if not items:
        raise BadFileError(f"{path} has no questions; give one of BFCL's files.")
    return tuple(items)


def read_schemas(path: Path) -> tuple[tuple[SchemaItem, ...], tuple[LeftOut, ...]]:
    """Read a file of schemas, and say which of them cannot be used and why.

    Raises:
        MissingError: the file cannot be read.
        BadFileError: a line is no object with `id` and `schema`, or there is none.
    """
    items, left = [], []
    for _, line in _lines(path, _Schema):
        item = SchemaItem(line.id, line.id, line.schema, "")
        fault = schema_fault(line.schema)
        if not fault and len(item.schema_text) > MOST_SCHEMA:
            fault = f"it has {len(item.schema_text):,} characters, and {MOST_SCHEMA:,} are the most"
        if fault:
            left.append(LeftOut(name=line.id, why=fault))
        else:
            items.append(item)
    if not items and not left:
        raise BadFileError(f"{path} has no schemas; write objects with `id` and `schema`.")
    return tuple(items), tuple(left)


def _kind(path: Path) -> str:
    """Return a file's category, as `parallel-multiple`, from its name."""
    words = path.stem.removeprefix("BFCL_").split("_")[1:]
    if not words or words[-1] in _OTHER_LANGUAGES or "multi" in words:
        raise UnsupportedError(
            f"{path.name} is not among BFCL's files that can be judged here; give one of "
            "simple_python, multiple, parallel, parallel_multiple and irrelevance."
        )
    return "-".join(word for word in words if word not in ("python", "live"))


def _keys(path: Path) -> Mapping[str, tuple[Expected, ...]]:
    return {
        line.id: tuple(
            Expected(name, accepted)
            for call in line.ground_truth
            for name, accepted in call.items()
        )
        for _, line in _lines(path, _Key)
    }


def _item(kind: str, line: _Question, expected: tuple[Expected, ...]) -> ToolItem:
    return ToolItem(
        name=line.id,
        kind=kind,
        cluster=line.id,
        messages=tuple({"role": m.role, "content": m.content} for m in line.question[0]),
        tools=tuple(_tool(function) for function in line.function),
        expected=expected,
    )


def _tool(function: _Function) -> Mapping[str, Any]:
    described = {
        "name": function.name,
        "description": function.description,
        "parameters": _json_schema(function.parameters),
    }
    return {"type": "function", "function": described}


def _json_schema(found: Any) -> Any:
    """Return a schema with JSON's names of types in place of BFCL's, which are Python's."""
    if isinstance(found, list):
        return [_json_schema(one) for one in found]
    if not isinstance(found, dict):
        return found
    mapped = {name: _json_schema(value) for name, value in found.items()}
    kind = mapped.get("type")
    if isinstance(kind, str) and kind in _TYPES:
        mapped["type"] = _TYPES[kind]
        if mapped["type"] is None:
            del mapped["type"]
    return mapped


def _lines(path: Path, kind: type[_LineT]) -> Iterator[tuple[str, _LineT]]:
    """Yield what each line is called in messages, and its content."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise MissingError(f"{path} cannot be read ({error.strerror}); give a file.") from error
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        where = f"Line {number} of {path}"
        try:
            yield where, msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFileError(f"{where} is not what is expected there: {error}.") from error
