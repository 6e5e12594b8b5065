"""JSON of a schema: how it is asked for, and whether an answer is it.

A schema is judged by the `jsonschema` library, by the draft that it names or else 2020-12. Nothing
is fetched: a schema that refers to another file cannot be judged, and is left out by who reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, UnknownDialect

from fewbit.tokens.grammar import Grammar, GrammarKind

_FENCED = re.compile(r"\A```[\w+-]*[ \t]*\n(.*?)\n?```\Z", re.DOTALL)

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose objects are schemas by names that are no keywords."""

_PLAIN = ("enum", "const", "default", "examples")
"""Keywords of values that are no schemas."""

_ASKED = "Answer with JSON that satisfies this schema, and with nothing else."

_NOTHING_ELSE: Registry[Any] = Registry()
"""Knows no other schema, and fetches none."""


@dataclass(frozen=True)
class SchemaItem:
    """One JSON document that is asked for."""

    name: str
    cluster: str
    schema: Mapping[str, Any]
    text: str
    """What the document is to say; empty where anything that is valid will do."""

    @property
    def question(self) -> str:
        """What the user says."""
        note = f"\n\n{self.text}" if self.text else ""
        return f"{_ASKED}\n\n{self.schema_text}{note}"

    @property
    def schema_text(self) -> str:
        """The schema as one line of JSON, its keys in their order."""
        return json.dumps(self.schema, ensure_ascii=False)

    @property
    def grammar(self) -> Grammar:
        """What holds while a constrained answer is generated."""
        return Grammar(GrammarKind.JSON_SCHEMA, self.schema_text)


def json_fault(text: str, schema: Mapping[str, Any]) -> str:
    """Return why an answer is not JSON of a schema, empty where it is.

    One code fence around the whole answer is taken off; anything else beside the JSON is a fault.
    """
    fenced = _FENCED.match(text.strip())
    try:
        value = json.loads(text if fenced is None else fenced[1], parse_constant=_refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    except RecursionError:
        return "no JSON: it is nested too deep"
    try:
        found = best_match(_validator(schema).iter_errors(value))
    except RecursionError:
        return "the schema and the JSON are nested without end"
    except OverflowError:
        return "a number of the JSON is too large to be judged"
    return "" if found is None else f"{found.json_path}: {found.message}"[:300]


def schema_fault(schema: Any) -> str:
    """Return why nothing can be judged by a schema, empty where it can."""
    if not isinstance(schema, dict):
        return "it is no object"
    try:
        _class_of(schema).check_schema(schema)
    except SchemaError as error:
        return f"it is no schema: {error.message}"[:300]
    for reference in _values(schema, "$ref"):
        if not _resolves(schema, reference):
            return f"it refers to {str(reference)[:80]!r}"
    for patterns in _values(schema, "patternProperties"):  # which older drafts do not check
        for pattern in patterns if isinstance(patterns, dict) else ():
            try:
                re.compile(pattern)
            except re.error as error:
                return f"the pattern {pattern[:80]!r} is none that Python reads ({error})"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def _class_of(schema: Mapping[str, Any]) -> Any:
    return validator_for(schema, default=Draft202012Validator)


def _validator(schema: Mapping[str, Any]) -> Any:
    return _class_of(schema)(schema, registry=_NOTHING_ELSE)


def _resolves(schema: Mapping[str, Any], reference: Any) -> bool:
    """Return whether a reference leads to something within the schema."""
    if not isinstance(reference, str):
        return False
    try:
        _NOTHING_ELSE.resolver_with_root(_resource(schema)).lookup(reference)
    except (Unresolvable, ValueError, TypeError):
        return False
    return True


def _resource(schema: Mapping[str, Any]) -> Resource[Any]:
    try:
        return Resource.from_contents(schema, default_specification=DRAFT202012)
    except UnknownDialect:
        return DRAFT202012.create_resource(schema)


def _values(schema: Any, key: str) -> Iterator[Any]:
    """Yield what stands under a keyword anywhere in a schema, properties of that name aside."""
    if isinstance(schema, list):
        for value in schema:
            yield from _values(value, key)
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        if name == key:
            yield value
        if name in _NAMED and isinstance(value, dict):
            yield from _values(list(value.values()), key)
        elif name not in _PLAIN:
            yield from _values(value, key)
