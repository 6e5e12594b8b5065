"""`fewbit report`: records drawn again, and two evaluations compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.output import HtmlOption, JsonOption
from fewbit.errors import MissingError, UsageError

if TYPE_CHECKING:
    from fewbit.records.base import Record
    from fewbit.report.kinds import Kind


def report(
    record: Annotated[Path | None, Parameter(name="RECORD")] = None,
    other: Annotated[Path | None, Parameter(name="OTHER")] = None,
    /,
    *,
    schema: Annotated[str | None, Parameter(show_default=False)] = None,
    html: HtmlOption = None,
    json: JsonOption = None,
) -> int:
    """Draw a record again, or compare two evaluations slice by slice.

    Example: fewbit report before.json after.json --html comparison.html

    Args:
        record: What a command wrote with --json: an evaluation, a compression's report.json, a
            certificate, a speed report and so on.
        other: A second evaluation, to be compared with the first.
        schema: Print the JSON Schema of a kind of record instead, such as evaluation.
        html: Write the page, which opens offline, to this file.
        json: Write the record (of two, their comparison) to this file; - prints it on stdout
            instead of the tables.
    """
    from fewbit.atomic import write_bytes
    from fewbit.cli.output import deliver

    if schema is not None:
        _print_schema(schema, record)
        return 0
    if record is None:
        raise UsageError("No record is named; give what a command wrote with --json.")
    kind, found = _read(record) if other is None else _compared(record, other)
    if html is not None:
        write_bytes(html, kind.page(found).encode())
    deliver(found, json, kind.draw)
    return 0


def _print_schema(name: str, record: Path | None) -> None:
    from fewbit.report.kinds import schema

    if record is not None:
        raise UsageError(f"--schema prints a schema and draws nothing; leave {record} out.")
    print(schema(name).decode(), end="")


def _read(path: Path) -> tuple[Kind, Record]:
    from fewbit.report.kinds import read_record

    try:
        content = path.read_bytes()
    except OSError as error:
        raise MissingError(
            f"{path} cannot be read ({error.strerror}); give what a command wrote with --json."
        ) from error
    return read_record(content, str(path))


def _compared(first: Path, second: Path) -> tuple[Kind, Record]:
    """Return the comparison of two evaluations."""
    from fewbit.evaluate.comparison import compare
    from fewbit.records.comparison import Comparison
    from fewbit.records.evaluation import Evaluation
    from fewbit.report.kinds import KINDS

    found = []
    for path in (first, second):
        kind, record = _read(path)
        if not isinstance(record, Evaluation):
            raise UsageError(f"{path} is a {kind.name} record; only two evaluations are compared.")
        found.append(record)
    kind = next(kind for kind in KINDS if kind.record is Comparison)
    return kind, compare(found[0], found[1], (str(first), str(second)))
