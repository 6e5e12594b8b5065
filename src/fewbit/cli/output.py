"""Where a command's record goes: drawn on stdout, into a file as JSON, or as JSON on stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from fewbit.records.base import Record

RecordT = TypeVar("RecordT", bound="Record")

STDOUT = Path("-")

_OF_A_MODEL = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""JSON that is no record."""
_HEAD = 64


def writable(_type: object, path: Path | None) -> None:
    """Refuse a file that cannot be written before the work whose record it is to hold.

    Raises:
        ValueError: it is a folder or a model, or it or its folder is absent or closed to us.
    """
    from fewbit.atomic import is_stream

    if path is None or path == STDOUT:
        return
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise ValueError(f"{path} cannot be written; choose another file.")
        return
    if os.path.isdir(path):  # noqa: PTH112 - unlike Path's own, it answers where we may not look
        raise ValueError(f"{path} is a folder; give a file.")
    folder = Path(os.path.realpath(path)).parent  # of a link the file behind it is replaced
    if not os.path.isdir(folder):  # noqa: PTH112
        raise ValueError(f"{folder} is no folder; make it, or choose another file.")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written; choose another file.")
    if not _may_go(path):
        raise ValueError(_holds_else(path))


def _may_go(path: Path) -> bool:
    """Whether what is there may be written over: nothing, an earlier record or page, or a pipe."""
    if path.name in _OF_A_MODEL and path.exists():
        return False
    if not os.path.isfile(path):  # noqa: PTH113
        return True
    with contextlib.suppress(OSError), path.open("rb") as file:
        head = file.read(_HEAD).lstrip()
        return not head or head.startswith((b"{", b"[", b"<"))
    return False


def _holds_else(path: Path) -> str:
    return f"{path} holds something other than a record or a page; remove it or choose another."


JsonOption: TypeAlias = Annotated[
    Path | None, Parameter(name="--json", allow_leading_hyphen=True, validator=writable)
]
"""`--json FILE`; `-` is stdout."""

HtmlOption: TypeAlias = Annotated[Path | None, Parameter(name="--html", validator=writable)]
"""`--html FILE`."""


def deliver(record: RecordT, json: Path | None, draw: Callable[[RecordT, Console], None]) -> None:
    """Write the record as JSON where that is asked for, and draw it unless stdout has the JSON.

    A reader of stdout that goes away, as `head` does, changes nothing of how the command ends.

    Raises:
        OutputError: the file cannot be written.
    """
    from fewbit.atomic import write_bytes
    from fewbit.cli.console import PipeConsole
    from fewbit.errors import OutputError
    from fewbit.records.base import to_json

    if json == STDOUT:
        try:
            print(to_json(record).decode(), end="", flush=True)
        except BrokenPipeError:
            abandon_stdout()
        return
    if json is not None:
        if not _may_go(json):  # it came since the options were read: the very output, perhaps
            raise OutputError(_holds_else(json))
        write_bytes(json, to_json(record))
    draw(record, PipeConsole(highlight=False))


def deliver_with_page(
    record: RecordT,
    json: Path | None,
    draw: Callable[[RecordT, Console], None],
    html: Path | None,
    page: Callable[[RecordT], str],
) -> None:
    """Deliver a record, and then write its page, which can be drawn again of the record.

    Raises:
        OutputError: a file cannot be written.
    """
    from fewbit.atomic import write_bytes

    deliver(record, json, draw)
    if html is not None:
        write_bytes(html, page(record).encode())


def abandon_stdout() -> None:
    """Point stdout at nothing, so that no later write or flush meets what cannot take it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
