"""What a calibration file holds: passages, conversations, and tokens that others cut already.

A file that does not end in `.jsonl` is one passage. In a `.jsonl` file every line is an object with

- `text`: a passage;
- `messages`: a conversation, objects with `role` and `content`, for the model's own template;
- `input_ids`: token ids, with a mask of 0 and 1 under `attention_mask` where some are padding.

Padding is dropped, on whichever side it lies: a text is run as it would be alone, from position 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fewbit.calibrate.text import json_lines, read_file
from fewbit.errors import BadFileError


@dataclass(frozen=True)
class Passage:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Conversation:
    """Messages, oldest first, as a chat template takes them."""

    messages: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Tokens:
    """Token ids without padding."""

    ids: tuple[int, ...]


Entry: TypeAlias = Passage | Conversation | Tokens


def read_entries(path: Path) -> tuple[Entry, ...]:
    """Return a file's entries in order.

    Raises:
        MissingError: there is no such file.
        BadFileError: not UTF-8, a line that is none of the three, or nothing in it at all.
    """
    text = read_file(path)
    lines = _lines(path, text) if path.suffix == ".jsonl" else iter([Passage(text)])
    found = tuple(entry for entry in lines if not _empty(entry))
    if not found:
        raise BadFileError(f"text '{path}' contains no text; give a file with some.")
    return found


def _lines(path: Path, text: str) -> Iterator[Entry]:
    for value, where in json_lines(path, text):
        yield _entry(value, where)


def _entry(value: Any, where: str) -> Entry:
    fields = value if isinstance(value, dict) else {}
    if isinstance(fields.get("text"), str):
        return Passage(fields["text"])
    if "messages" in fields:
        return _conversation(fields["messages"], where)
    if "input_ids" in fields:
        return _tokens(fields["input_ids"], fields.get("attention_mask"), where)
    raise BadFileError(
        f'{where} has no string under "text", no "messages" and no "input_ids"; write lines such '
        'as {"text": "..."} or {"messages": [{"role": "user", "content": "..."}]}.'
    )


def _conversation(value: Any, where: str) -> Conversation:
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise BadFileError(
            f'{where}: "messages" is no list of objects; give each a role and a content.'
        )
    return Conversation(tuple(value))


def _tokens(ids: Any, mask: Any, where: str) -> Tokens:
    chosen = [1] * len(ids) if mask is None and isinstance(ids, list) else mask
    if not _are_integers(ids) or not _are_integers(chosen) or len(ids) != len(chosen):
        raise BadFileError(
            f'{where}: "input_ids" and "attention_mask" must be lists of integers of one length; '
            "write the ids as the tokenizer gives them."
        )
    return Tokens(tuple(itertools.compress(ids, chosen)))


def _are_integers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _empty(entry: Entry) -> bool:
    if isinstance(entry, Passage):
        return not entry.text.strip()
    return not (entry.messages if isinstance(entry, Conversation) else entry.ids)
