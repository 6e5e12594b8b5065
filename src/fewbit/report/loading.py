"""How a model came into memory, in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from fewbit.records.loading import LoadRecord


def describe_loading(record: LoadRecord) -> Iterator[str]:
    """Yield what was decided about kept weights; nothing where there was nothing to decide."""
    if record.packed:
        yield f"weights: mapped from {record.packed} in {record.seconds:.2f} s"
    yield from record.notes
    if record.kept:
        yield f"weights: packed and kept in {record.kept} in {record.seconds:.2f} s"
