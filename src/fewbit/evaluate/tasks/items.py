"""The items of tasks, and JSON lines as the places they are read from."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from fewbit.errors import BadFileError, MissingError
from fewbit.evaluate.tasks.ifeval import Instruction
from fewbit.toml_file import require_known_keys


@dataclass(frozen=True)
class ChoiceItem:
    """Options of which one is right: the continuations of one context, or one per context."""

    name: str
    cluster: str
    contexts: tuple[str, ...]
    """One for all continuations, or one for each option."""
    continuations: tuple[str, ...]
    """One per option, or one for all contexts; each begins with what parts it from its context."""
    answer: int
    """The number of the right option, from 0."""

    @property
    def prompt(self) -> str:
        """What a reader sees of it."""
        return self.contexts[0] if len(self.contexts) == 1 else " / ".join(self.contexts)

    @property
    def options(self) -> tuple[str, ...]:
        """What there is to choose from."""
        shared = len(self.contexts) == 1
        return tuple(o.strip() for o in (self.continuations if shared else self.contexts))


@dataclass(frozen=True)
class GenerationItem:
    """A prompt with the answers that are right."""

    name: str
    cluster: str
    prompt: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class InstructionItem:
    """A prompt whose instructions a program can check."""

    name: str
    cluster: str
    prompt: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class SafetyItem:
    """A prompt that a model should refuse, or answer."""

    name: str
    cluster: str
    prompt: str
    unsafe: bool


Item: TypeAlias = ChoiceItem | GenerationItem | InstructionItem | SafetyItem

_KINDS = {str: "a string", int: "a whole number", list: "a list of strings", bool: "true or false"}


@dataclass(frozen=True)
class Line:
    """The values of one line of a file, and what the line is called in messages."""

    where: str
    number: int
    values: Mapping[str, Any]

    def only(self, known: Sequence[str]) -> None:
        """Refuse other keys; raises BadFileError with near matches."""
        require_known_keys(self.where, "such an item", self.values, known)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string that is not empty, or the default where the key is absent."""
        found: str = self._typed(key, str, default)
        if not found.strip() and default is None:
            raise BadFileError(f"{self.where} has nothing under '{key}'; write some text.")
        return found

    def flag(self, key: str) -> bool:
        """Return a truth value; False where the key is absent."""
        return bool(self._typed(key, bool, default=False))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings, none of them empty."""
        found = self._typed(key, list, None)
        if not found or not all(isinstance(text, str) and text.strip() for text in found):
            raise BadFileError(
                f"{self.where} has {found!r:.80} under '{key}'; give a list of strings, none empty."
            )
        return tuple(found)

    def choice(self, key: str, options: Sequence[str]) -> int:
        """Return the number of an option."""
        found: int = self._typed(key, int, None)
        if len(options) < 2:
            raise BadFileError(f"{self.where} has {len(options)} option; give at least two.")
        if not 0 <= found < len(options):
            raise BadFileError(
                f"{self.where} has {found} under '{key}' and {len(options)} options; they are "
                f"counted from 0 to {len(options) - 1}."
            )
        return found

    def _typed(self, key: str, kind: type, default: Any) -> Any:
        if key not in self.values and default is not None:
            return default
        if key not in self.values:
            has = ", ".join(map(str, self.values)) or "nothing"
            raise BadFileError(f"{self.where} lacks the key '{key}'; it has {has}.")
        found = self.values[key]
        if type(found) is not kind:
            raise BadFileError(
                f"{self.where} has {found!r:.80} under '{key}'; give {_KINDS[kind]}."
            )
        return found


@dataclass(frozen=True)
class Source:
    """The lines of a file and its SHA-256."""

    lines: tuple[Line, ...]
    sha256: str


def read_json_lines(path: Path) -> Source:
    """Read a file of JSON objects, one a line; empty lines are passed over.

    Raises:
        MissingError: there is no such file.
        BadFileError: it is not UTF-8, has no line, or a line that is no JSON object.
    """
    content = _content(path)
    lines = tuple(
        Line(_where(path, number), number, _json_object(text, _where(path, number)))
        for number, text in enumerate(content.split(b"\n"), start=1)
        if text.strip()
    )
    return _source(path, lines, content)


def read_csv(path: Path) -> Source:
    """Read a CSV file with names of columns in its first line.

    Raises:
        MissingError: there is no such file.
        BadFileError: it is not UTF-8, or a row has more or fewer columns than there are names.
    """
    content = _content(path)
    try:
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        lines = tuple(_csv_lines(path, reader))
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadFileError(f"{path} is no CSV file ({error}); write it as UTF-8.") from error
    return _source(path, lines, content)


def _csv_lines(path: Path, reader: csv.DictReader[str]) -> Iterator[Line]:
    for row in reader:
        where = _where(path, reader.line_num)
        if None in row or None in row.values():
            raise BadFileError(
                f"{where} has not as many columns as line 1 has names; quote what has commas."
            )
        yield Line(where, reader.line_num, row)


def _where(path: Path, number: int) -> str:
    return f"Line {number} of {path}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingError(
            f"The items {path} cannot be read ({error.strerror}); give the path of a file, from "
            "the folder of its task's .toml."
        ) from error


def _json_object(text: bytes, where: str) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFileError(f"{where} is no JSON ({error}); write one object a line.") from error
    if not isinstance(value, dict):
        raise BadFileError(f"{where} is a {type(value).__name__}; write one JSON object a line.")
    return value


def _source(path: Path, lines: tuple[Line, ...], content: bytes) -> Source:
    if not lines:
        raise BadFileError(f"{path} has no items; write one a line.")
    return Source(lines, hashlib.sha256(content).hexdigest())
