"""`--log FILE`: a line of JSON for each request that ends, and one for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from fewbit.cli.output import writable

if TYPE_CHECKING:
    from fewbit.engine.engine import Engine
    from fewbit.records.generation import GenerationRecord

LogOption: TypeAlias = Annotated[
    Path | None,
    Parameter(
        name="--log",
        validator=writable,
        help="Add a line of JSON to this file for each request that ends, and one for the engine.",
    ),
]


@contextmanager
def logged(
    path: Path | None, model: Path, engine: Engine
) -> Iterator[Callable[[GenerationRecord], None]]:
    """Yield what a request's record is given to; the engine's own is added at the end, always.

    Lines are added to a file that is there, each whole and at once. Nothing is done without a path.

    Raises:
        OutputError: a line cannot be written.
    """
    import msgspec

    from fewbit.errors import OutputError
    from fewbit.records.log import LogLine

    def add(line: LogLine) -> None:
        if path is None:
            return
        try:
            with path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise OutputError(
                f"The log {path} cannot be written ({error.strerror}); free space, or choose "
                "another file."
            ) from error

    def note(record: GenerationRecord) -> None:
        add(LogLine(time=_now(), model=str(model), generation=record))

    try:
        yield note
    finally:
        add(LogLine(time=_now(), model=str(model), engine=engine.record))


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")
