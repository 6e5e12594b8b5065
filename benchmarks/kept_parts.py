"""What each part of a benchmark found, in a file of its own, so that a stopped run goes on."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from table import Row, as_json


@dataclass(frozen=True)
class Part:
    """A part's rows, the conditions that it noted, and what it took."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    seconds: float
    cpu_seconds: float
    """Of the processes that it started, all threads together."""
    kept: bool = False
    """Whether an earlier run made it."""

    @property
    def failed(self) -> bool:
        """Whether a row says so."""
        return any(row.figure.startswith("failed") for row in self.rows)


def part_of(
    path: Path, asked: Mapping[str, Any], run: Callable[[], Iterable[Row]], notes: list[str]
) -> Part:
    """Return a part that is kept for just what is asked, or run it and keep it.

    One that failed is not kept.

    Args:
        path: the part's file.
        asked: all that decides its figures but this benchmark and the machine.
        run: measures, row after row.
        notes: what the run notes is appended here.
    """
    found = _read(path, asked)
    if found is not None:
        return found
    begun, cpu, noted = time.perf_counter(), _children(), len(notes)
    rows = tuple(run())
    part = Part(rows, tuple(notes[noted:]), time.perf_counter() - begun, _children() - cpu)
    if not part.failed:
        _write(path, asked, part)
    return part


def stamp(path: Path | None) -> list[Any] | None:
    """Return what tells a file from others: its name, size and time."""
    if path is None:
        return None
    state = path.stat()
    return [path.name, state.st_size, state.st_mtime_ns]


def _read(path: Path, asked: Mapping[str, Any]) -> Part | None:
    try:
        record = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    if record["asked"] != asked:
        return None
    rows = tuple(Row(**row) for row in record["rows"])
    return Part(rows, tuple(record["notes"]), record["seconds"], record["cpu_seconds"], kept=True)


def _write(path: Path, asked: Mapping[str, Any], part: Part) -> None:
    record = {
        "asked": asked,
        "rows": as_json(part.rows),
        "notes": part.notes,
        "seconds": part.seconds,
        "cpu_seconds": part.cpu_seconds,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    beside.replace(path)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
