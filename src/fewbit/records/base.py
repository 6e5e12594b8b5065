"""The base of all records, and reading and writing them as JSON."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

import msgspec

from fewbit.errors import BadFileError


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frozen value that can be written as JSON and read back; unknown keys are errors.

    Subclasses repeat `frozen=True`, which type checkers do not inherit.
    """


RecordT = TypeVar("RecordT", bound=Record)


def to_json(record: Record) -> bytes:
    """Return the record as indented UTF-8 JSON that ends with a newline.

    Bytes of a file's name that are no UTF-8 become U+FFFD.
    """
    try:
        text = msgspec.json.encode(record)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_readable(msgspec.to_builtins(record)))
    return msgspec.json.format(text, indent=2) + b"\n"


def _readable(value: Any) -> Any:
    """Return a value of JSON with what no UTF-8 can say replaced in all its texts."""
    if isinstance(value, dict):
        return {_readable(key): _readable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_readable(inner) for inner in value]
    return readable(value) if isinstance(value, str) else value


def readable(text: str) -> str:
    """Return a text in which what no UTF-8 can say is U+FFFD, as in names of files."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def from_json(kind: type[RecordT], text: bytes, *, name: str) -> RecordT:
    """Read a record of type `kind`.

    Args:
        kind: the record class.
        text: UTF-8 JSON.
        name: what the text is called in an error, usually its path.

    Raises:
        BadFileError: the JSON is malformed, lacks a field, or has one that `kind` does not know;
            of a record of another version, that it is one.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_other_version(kind, text, name)
        raise BadFileError(f"{name} is not a valid {kind.__name__} record: {error}.") from error


class _Versioned(msgspec.Struct):
    version: int


def _refuse_other_version(kind: type[Record], text: bytes, name: str) -> None:
    """Say of a record that cannot be read that another version of fewbit wrote it, if so."""
    wanted = next((f.default for f in msgspec.structs.fields(kind) if f.name == "version"), None)
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = msgspec.json.decode(text, type=_Versioned).version
        if wanted not in (None, found):
            raise BadFileError(
                f"{name} is a {kind.__name__} record of version {found}, and this fewbit reads "
                f"version {wanted}; make it again, or read it with the fewbit that wrote it."
            )
