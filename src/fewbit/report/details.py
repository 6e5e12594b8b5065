"""What an axis keeps beside its slices, taken apart into blocks that any page can draw.

An axis needs no template of its own: numbers become a table, records of one kind become rows, and
curves, distributions and examples are what they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from fewbit.records.base import Record
from fewbit.records.drawn import Curve, Distribution, Example
from fewbit.records.figures import describe, number, size
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.records.tasks import TaskFigures
from fewbit.report.charts import Bar
from fewbit.report.curves import amount, quantile
from fewbit.report.kernel_rows import kernel_rows

MOST_ROWS = 400
"""Rows of a table that are drawn; the record has all."""
MOST_COLUMNS = 8
"""A table of more columns is turned, or listed."""
_SIDE_BY_SIDE = 6
_FOLDED = 14
_SHARES = ("right", "chance", "clipped", "zeroed", "share", "ties", "unseen", "proposable")
"""Last words of fields that are shares of 1."""
_SHOWN: dict[type[Record], tuple[str, ...]] = {
    TaskFigures: (
        "task",
        "rule",
        "items",
        "chance",
        "source_right",
        "floor_right",
        "candidate_right",
        "lead_change",
    ),
}
"""The columns of records with too many for a table; the record has all."""
"""A longer table is folded."""


@dataclass(frozen=True)
class Facts:
    """Names and what they are."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """Records of one kind, a row each."""

    title: str
    headings: tuple[str, ...]
    numbers: tuple[bool, ...]
    """Which columns are numbers, and are aligned as such."""
    rows: tuple[tuple[str, ...], ...]
    left_out: int = 0

    @property
    def kinds(self) -> str:
        """A letter a column: n for numbers, t for text."""
        return "".join("n" if number else "t" for number in self.numbers)

    @property
    def shape(self) -> str:
        """Pairs, rows, or, of more columns than a page has room for, a list of names a row."""
        if self.headings == ("", ""):
            return "pairs"
        return "listed" if len(self.headings) > MOST_COLUMNS else "stacked"

    @property
    def folded(self) -> bool:
        """Whether it is too long to be read at once."""
        return len(self.rows) > _FOLDED


@dataclass(frozen=True)
class Curves:
    """Curves to be drawn beside each other."""

    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Distributions:
    """One quantity on each arm that it was measured on."""

    title: str
    arms: tuple[Distribution, ...]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Arm, count, median, 99th percentile and largest."""
        return tuple(
            (a.arm, f"{len(a.values):,}", *(amount(v, a.unit) for v in _summary(a.values)))
            for a in self.arms
            if a.values
        )


@dataclass(frozen=True)
class Examples:
    """Items with both answers, the worst first."""

    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Lines:
    """Sentences."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Bars:
    """Amounts of one kind, each a bar."""

    title: str
    bars: tuple[Bar, ...]


Block = Bars | Facts | Table | Curves | Distributions | Examples | Lines


def blocks_of(details: Record | None, without: Collection[str] = ()) -> list[Block]:
    """Return what a record of details holds as blocks: facts first, then in the record's order.

    Args:
        details: any record; None has no blocks.
        without: fields to leave out.
    """
    if details is None:
        return []
    facts: list[tuple[str, str]] = []
    blocks: list[Block] = []
    for name, value in _fields(details):
        if name in without:
            continue
        if isinstance(value, (Curve, Record)) and not isinstance(value, Interval):
            blocks += _of_record(name, value)
        elif isinstance(value, (tuple, list)):
            blocks += _of_many(name, list(value))
        elif isinstance(value, dict):
            blocks += [Table(words(name), ("", ""), (False, True), _pairs(value))] if value else []
        else:
            facts += [(words(name), said(name, value))] if _holds(value) else []
    return [*([Facts(tuple(facts))] if facts else []), *blocks]


def words(name: str) -> str:
    """Return a field's name as words, as `KV bytes per token`."""
    spoken = name.replace("_", " ").replace("kv ", "KV ").replace("kl ", "KL ")
    return spoken[:1].upper() + spoken[1:]


def said(name: str, value: object) -> str:
    """Return a value in words; its field's name says what it counts."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Interval):
        return describe(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (int, float)):
        return _number(name, value)
    if isinstance(value, (tuple, list)):
        return ", ".join(said(name, one) for one in value)
    return "" if value is None else str(value)


def _number(name: str, value: float) -> str:
    if "bytes" in name.split("_"):
        return size(int(value))
    if name.endswith(("seconds", "first_token")) or name.startswith("gap"):
        return amount(value, "seconds")
    if name.rpartition("_")[2] in _SHARES:
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else number(value)


def _fields(record: Record) -> Iterator[tuple[str, object]]:
    for field in msgspec.structs.fields(record):
        yield field.name, getattr(record, field.name)


def _of_record(name: str, value: Record) -> list[Block]:
    if isinstance(value, Curve):
        return [Curves((value,))]
    if isinstance(value, Distribution):
        return [Distributions(value.title, (value,))]
    if isinstance(value, Example):
        return [Examples((value,))]
    return _under(words(name), blocks_of(value))


def _under(title: str, blocks: Sequence[Block]) -> list[Block]:
    """Put a nested record's facts under its name."""
    return [
        Table(title, ("", ""), (False, False), b.rows) if isinstance(b, Facts) else b
        for b in blocks
    ]


def _of_many(name: str, values: list[object]) -> list[Block]:
    """Return values as what their kind is drawn as; all of a field are of one kind."""
    curves = tuple(v for v in values if isinstance(v, Curve))
    distributions = [v for v in values if isinstance(v, Distribution)]
    examples = [v for v in values if isinstance(v, Example)]
    kernels = [v for v in values if isinstance(v, KernelRecord)]
    records = [v for v in values if isinstance(v, Record)]
    if curves:
        found: list[Block] = [Curves(curves)]
    elif distributions:
        found = _by_title(distributions)
    elif examples:
        found = [Examples(tuple(sorted(examples, key=lambda e: (-e.harm, e.slice, e.name))))]
    elif kernels:
        found = [_kernels(words(name), kernels)]
    elif records:
        found = [_table(words(name), records)]
    elif values:
        found = [Lines(words(name), tuple(said(name, v) for v in values))]
    else:
        found = []
    return found


def _by_title(found: Sequence[Distribution]) -> list[Block]:
    titles = dict.fromkeys(d.title for d in found)
    return [Distributions(t, tuple(d for d in found if d.title == t)) for t in titles]


def _table(title: str, records: Sequence[Record]) -> Table:
    columns = _SHOWN.get(type(records[0])) or _names(records[0])
    columns = tuple(
        name for name in columns if any(_holds(getattr(r, name, None)) for r in records)
    )
    rows = tuple(
        tuple(said(name, getattr(record, name, None)) for name in columns)
        for record in records[:MOST_ROWS]
    )
    numeric = tuple(any(_is_number(getattr(r, n, None)) for r in records) for n in columns)
    headings = tuple(words(name) for name in columns)
    if len(columns) > MOST_COLUMNS and 1 < len(rows) <= _SIDE_BY_SIDE:
        return _turned(title, headings, rows)
    return Table(title, headings, numeric, rows, max(0, len(records) - MOST_ROWS))


def _names(record: Record) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(record))


def _turned(title: str, headings: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Table:
    """Return a table with a column for each record: few of them, with many fields."""
    first, *others = zip(headings, *rows, strict=True)
    return Table(title, first, (False, *(True for _ in rows)), tuple(others))


def _kernels(title: str, kernels: Sequence[KernelRecord]) -> Table:
    """Return each kernel once: a row a matrix would be hundreds."""
    rows = tuple(
        (row.format, row.kernel, row.activations, f"{row.count:,}", row.note)
        for row in kernel_rows(kernels)
    )
    headings = ("Format", "Kernel", "Inputs", "Layers", "Note")
    return Table(title, headings, (False, False, False, True, False), rows)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Interval)) and not isinstance(value, bool)


def _holds(value: object) -> bool:
    return value is not None and not (isinstance(value, (str, tuple)) and not value)


def _pairs(found: dict[object, object]) -> tuple[tuple[str, str], ...]:
    return tuple((str(key), said(str(key), value)) for key, value in found.items())


def _summary(values: Sequence[float]) -> tuple[float, float, float]:
    return quantile(values, 0.5), quantile(values, 0.99), max(values)
