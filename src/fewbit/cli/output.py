"""Where a command's record goes: drawn on stdout, into a file as JSON, or as JSON on stdout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.console import Console

    from fewbit.records.base import Record

RecordT = TypeVar("RecordT", bound="Record")

JsonOption: TypeAlias = Annotated[Path | None, Parameter(name="--json", allow_leading_hyphen=True)]
"""`--json FILE`; `-` is stdout."""

STDOUT = Path("-")


def deliver(record: RecordT, json: Path | None, draw: Callable[[RecordT, Console], None]) -> None:
    """Write the record as JSON where that is asked for, and draw it unless stdout has the JSON.

    Raises:
        OutputError: the file cannot be written.
    """
    from rich.console import Console

    from fewbit.atomic import write_bytes
    from fewbit.records.base import to_json

    if json == STDOUT:
        print(to_json(record).decode(), end="")
        return
    if json is not None:
        write_bytes(json, to_json(record))
    draw(record, Console(highlight=False))
