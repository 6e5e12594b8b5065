"""Records kept as they come, so that nothing is measured twice: outcomes, parts of a certificate.

A file of JSON lines, `{"name": ..., "record": ...}`, is appended to and never rewritten: whatever
kills the writer leaves at worst a last line that is cut, which is dropped when the file is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

from fewbit.errors import BadFileError, OutputError
from fewbit.records.base import Record, RecordT


def fingerprint(*parts: object) -> str:
    """Return the SHA-256 of values: numbers, text, records, frozen dataclasses, and lists of them.

    Whatever decides an outcome belongs in here; what does not, as a folder's name, must not.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(msgspec.json.encode(part, enc_hook=str, order="sorted"))
        digest.update(b"\n")
    return digest.hexdigest()


@cache
def program_digest() -> str:
    """Return what tells this very program from others of its version: `folder_digest` of it."""
    return folder_digest(Path(__file__).parents[1])


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of a package's files and their names, but for what Python compiled."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{content} {path.relative_to(folder).as_posix()}\n".encode())
    return digest.hexdigest()


class _Line(msgspec.Struct):
    name: str
    record: msgspec.Raw


@dataclass(frozen=True)
class Kept:
    """Records by name; in memory alone where there is no file."""

    path: Path | None
    _lines: dict[str, bytes] = field(default_factory=dict, repr=False)

    def names(self) -> frozenset[str]:
        """Return the names of what is kept."""
        return frozenset(self._lines)

    def add(self, name: str, record: Record) -> None:
        """Keep a record; one of the same name is replaced.

        Raises:
            OutputError: the file cannot be written.
        """
        text = msgspec.json.encode(record)
        if self.path is not None:
            _append(self.path, msgspec.json.encode({"name": name, "record": msgspec.Raw(text)}))
        self._lines[name] = text

    def read(self, kind: type[RecordT]) -> dict[str, RecordT]:
        """Return all that is kept, as records of one kind, in the order in which it came.

        Raises:
            BadFileError: something kept is no such record.
        """
        return {name: self._record(kind, name, text) for name, text in self._lines.items()}

    def once(self, name: str, kind: type[RecordT], make: Callable[[], RecordT]) -> RecordT:
        """Return the record of a name; where none is kept, make it and keep it.

        Raises:
            BadFileError: what is kept is no such record.
            OutputError: the file cannot be written.
        """
        if name not in self._lines:
            self.add(name, make())
        return self._record(kind, name, self._lines[name])

    def _record(self, kind: type[RecordT], name: str, text: bytes) -> RecordT:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadFileError(
                f"{self.path} has '{name}', which is no {kind.__name__} ({error}); remove the file "
                "to measure again."
            ) from error


def open_kept(path: Path | None) -> Kept:
    """Return what a file keeps, and keep in it what is added.

    Raises:
        BadFileError: a line but the last is damaged.
        OutputError: the file cannot be read, or its last line not be mended.
    """
    if path is None:
        return Kept(None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with path.open("r+b") as file:
                file.truncate(len(whole))
    except OSError as error:
        raise OutputError(
            f"{path} cannot be kept ({error.strerror}); choose another --work."
        ) from error
    return Kept(path, dict(_entry(path, i, line) for i, line in enumerate(whole.splitlines(), 1)))


def _entry(path: Path, number: int, line: bytes) -> tuple[str, bytes]:
    try:
        entry = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFileError(
            f"Line {number} of {path} is damaged ({error}); remove the file to measure again."
        ) from error
    return entry.name, bytes(entry.record)


def _append(path: Path, line: bytes) -> None:
    try:
        with path.open("ab") as file:
            file.write(line + b"\n")
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror}); make room.") from error


def file_of(work: Path | None, arm: str, axis: str) -> Path | None:
    """Return where a work folder keeps the outcomes of an arm on an axis, by their fingerprints."""
    return None if work is None else work / "outcomes" / arm[:16] / f"{axis[:16]}.jsonl"
