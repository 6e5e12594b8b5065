"""Tasks as users declare them: a TOML file of about five lines beside a file of items."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from fewbit.errors import BadFileError, MissingError
from fewbit.evaluate.tasks.formats import FORMATS
from fewbit.evaluate.tasks.items import ChoiceItem, GenerationItem, Item, Line
from fewbit.evaluate.tasks.rules import last_number, normalized
from fewbit.records.kept import fingerprint
from fewbit.toml_file import read_toml, require_known_keys

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


class PromptKind(Enum):
    """How a prompt reaches the model."""

    TEXT = "text"
    """As a text that is continued."""
    CHAT = "chat"
    """As a user's message, through the model's chat template."""


RULES: dict[str, tuple[str, ...]] = {
    "choice": ("likelihood", "likelihood-per-byte"),
    "generation": ("exact", "contains", "number"),
    "instructions": ("strict", "loose"),
    "safety": ("refusal-phrases",),
}
"""The rules of judging that each kind of task may declare."""


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that decides a task's figures beside its items."""

    name: str
    file: str
    """From the folder of the TOML file."""
    kind: str
    rule: str
    format: str = "plain"
    prompt: PromptKind | None = None
    """None for text in choices and, where the model has a chat template, a conversation in all
    else."""
    max_tokens: int = 64
    """Generated at most."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer before that."""
    limit: int | None = None
    """So many items, spread evenly over the file; None for all."""
    leave_out: tuple[str, ...] = ()
    """Ids of instructions that are not checked."""

    @property
    def asked_as(self) -> PromptKind:
        """How prompts reach the model."""
        default = PromptKind.TEXT if self.kind == "choice" else PromptKind.CHAT
        return self.prompt or default


@dataclass(frozen=True)
class Task:
    """A task with its items."""

    spec: TaskSpec
    items: tuple[Item, ...]
    sha256: str
    """Of the file that the items are from; empty for what is built in."""
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """What decides the outcome of an arm on it, beside what each item asks (`key_of`)."""
        spec = self.spec
        choice = spec.kind == "choice"
        asked = (choice, spec.asked_as, None if choice else (spec.max_tokens, spec.stop))
        return fingerprint("tasks", *asked)

    def as_text(self) -> Task:
        """Return the same task, asked as texts."""
        return replace(self, spec=structs.replace(self.spec, prompt=PromptKind.TEXT))


def key_of(item: Item) -> str:
    """Return what an outcome is kept by: a hash of what is asked, whatever is right."""
    if isinstance(item, ChoiceItem):
        return fingerprint(item.contexts, item.continuations)
    return fingerprint(item.prompt)


def read_task(path: Path) -> Task:
    """Read a task from its TOML file and the file of items that it names.

    Raises:
        MissingError: one of the two files is not there.
        BadFileError: a key, a value or a line is wrong; the message names file and line.
        UnsupportedError: an instruction that cannot be checked.
    """
    where = f"The task {path}"
    table = read_toml(path, "task")
    require_known_keys(where, "a task", table, TaskSpec.__struct_fields__)
    spec = _spec(table, where)
    source = FORMATS[spec.kind][spec.format].read(path.parent / spec.file)
    left_out = frozenset(spec.leave_out)
    _require_named(where, spec, source.lines)
    parsed = [FORMATS[spec.kind][spec.format].parse(line, left_out) for line in source.lines]
    items = [item for item in parsed if item is not None]
    if not items:
        raise BadFileError(f"{where} leaves out every instruction of {spec.file}; leave out fewer.")
    _require_names(items, path.parent / spec.file)
    for item in items:
        _require_answerable(where, spec.rule, item)
    return Task(spec, spread(items, spec.limit), source.sha256, _notes(spec, parsed, items))


def read_tasks(folder: Path) -> tuple[Task, ...]:
    """Read every task of a folder, by the names of its TOML files.

    Raises:
        MissingError: there is no such folder, or no TOML file in it.
        BadFileError: two tasks of one name; and as `read_task`.
    """
    paths = sorted(folder.glob("*.toml"))
    if not paths:
        raise MissingError(
            f"The suite {folder} has no .toml file; give a folder with one for each task."
        )
    tasks = tuple(read_task(path) for path in paths)
    twice = [name for name, count in Counter(t.spec.name for t in tasks).items() if count > 1]
    if twice:
        raise BadFileError(f"The suite {folder} has two tasks named '{twice[0]}'; rename one.")
    return tasks


def of_kinds(
    folder: Path | None, kinds: Sequence[str], built_in: Callable[[], tuple[Task, ...]]
) -> tuple[Task, ...]:
    """Return a folder's tasks of some kinds; where it has none, or there is none, the built-in.

    Raises:
        MissingError, BadFileError, UnsupportedError: as `read_tasks`.
    """
    if folder is None:
        return built_in()
    found = tuple(task for task in read_tasks(folder) if task.spec.kind in kinds)
    if found:
        return found
    note = f"{folder} has no task of the kind {' or '.join(kinds)}, so the built-in ones ran."
    return tuple(
        replace(task, notes=(note,) if i == 0 else ()) for i, task in enumerate(built_in())
    )


def spread(items: Sequence[Item], limit: int | None) -> tuple[Item, ...]:
    """Return so many items, evenly spaced, in their order; all where there are no more."""
    if limit is None or limit >= len(items):
        return tuple(items)
    return tuple(items[i * len(items) // limit] for i in range(limit))


def _spec(table: dict[str, Any], where: str) -> TaskSpec:
    try:
        spec = msgspec.convert(table, TaskSpec)
    except msgspec.ValidationError as error:
        raise BadFileError(f"{where} is not valid: {error}.") from error
    if not _NAME.fullmatch(spec.name):
        raise BadFileError(
            f"{where} has the name '{spec.name}'; use small letters, digits, '-' and '.'."
        )
    _require_one_of(where, "kind", spec.kind, RULES)
    _require_one_of(where, "rule", spec.rule, RULES[spec.kind])
    _require_one_of(where, "format", spec.format, FORMATS[spec.kind])
    for key, value in (("max_tokens", spec.max_tokens), ("limit", spec.limit)):
        if value is not None and value < 1:
            raise BadFileError(f"{where} has {key} = {value}; it must be at least 1.")
    if spec.leave_out and spec.kind != "instructions":
        raise BadFileError(
            f"{where} has leave_out, which only tasks of the kind instructions have; remove it."
        )
    return spec


def _require_one_of(where: str, key: str, value: str, known: Iterable[str]) -> None:
    names = tuple(known)
    if value not in names:
        near = difflib.get_close_matches(value, names, 1)
        offer = f"did you mean {near[0]}?" if near else f"choose from {', '.join(names)}."
        raise BadFileError(f"{where} has the {key} '{value}', which there is not; {offer}")


def _require_names(items: Sequence[Item], path: Path) -> None:
    twice = [name for name, count in Counter(item.name for item in items).items() if count > 1]
    if twice:
        raise BadFileError(f"{path} has two items with the id '{twice[0]}'; rename one.")


def _require_answerable(where: str, rule: str, item: Item) -> None:
    """Refuse an item that every answer, or none, would be right for."""
    if not isinstance(item, GenerationItem):
        return
    empty = [answer for answer in item.answers if not normalized(answer)]
    if empty and rule != "number":
        raise BadFileError(
            f"{where}: the answer {empty[0]!r} of the item '{item.name}' is nothing but marks, "
            "which are not compared; give one with a word or a number."
        )
    if rule == "number" and all(last_number(answer) is None for answer in item.answers):
        raise BadFileError(
            f"{where}: the answer {item.answers[0]!r} of the item '{item.name}' has no number; "
            "give one, or another rule."
        )


def _require_named(where: str, spec: TaskSpec, lines: Sequence[Line]) -> None:
    for id_ in spec.leave_out:
        if not any(f'"{id_}"' in msgspec.json.encode(line.values).decode() for line in lines):
            raise BadFileError(
                f"{where} leaves out '{id_}', which no line of {spec.file} has; remove it."
            )


def _notes(spec: TaskSpec, parsed: Sequence[Item | None], items: Sequence[Item]) -> tuple[str, ...]:
    notes = []
    if spec.leave_out:
        notes.append(
            f"{spec.name}: {', '.join(spec.leave_out)} left out, and with them "
            f"{len(parsed) - len(items)} of {len(parsed)} prompts."
        )
    if spec.limit is not None and spec.limit < len(items):
        notes.append(f"{spec.name}: {spec.limit} of {len(items)} items, evenly spaced.")
    return tuple(notes)
