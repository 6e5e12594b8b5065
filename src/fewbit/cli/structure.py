"""The grammar that `--json-schema` or `--grammar` names."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fewbit.cli.prompt import read_text
from fewbit.errors import BadFileError, UsageError
from fewbit.records.generation import GrammarRecord
from fewbit.tokens.grammar import Grammar, GrammarKind


def chosen_grammar(json_schema: Path | None, grammar: Path | None) -> Grammar | None:
    """Return what the text must be, None for anything.

    Raises:
        UsageError: both were given.
        MissingError: a file cannot be read.
        BadFileError: the schema is no JSON.
    """
    if json_schema is not None and grammar is not None:
        raise UsageError("--json-schema and --grammar were both given; choose one.")
    if json_schema is not None:
        return Grammar(GrammarKind.JSON_SCHEMA, _schema(json_schema))
    return None if grammar is None else Grammar(GrammarKind.LARK, read_text(grammar))


def grammar_record(grammar: Grammar | None) -> GrammarRecord | None:
    """Return what a report says of it."""
    if grammar is None:
        return None
    return GrammarRecord(kind=grammar.kind.value, text=grammar.text)


def _schema(file: Path) -> str:
    text = read_text(file)
    try:
        msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFileError(f"{file} is no JSON: {error}; give a JSON schema.") from error
    return text
