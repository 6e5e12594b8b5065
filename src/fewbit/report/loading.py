"""How a model came into memory, in a few lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fewbit.records.kernels import KernelRecord
from fewbit.records.loading import LoadRecord


def describe_loading(record: LoadRecord) -> Iterator[str]:
    """Yield what was decided about kept weights; nothing where there was nothing to decide."""
    if record.packed:
        yield f"weights: mapped from {record.packed} in {record.seconds:.2f} s"
    yield from record.notes
    if record.kept:
        yield f"weights: packed and kept in {record.kept} in {record.seconds:.2f} s"


def describe_draft_kernels(kernels: Iterable[KernelRecord], where: str) -> Iterator[str]:
    """Yield which weights a draft reads that is no model by itself, and on which KV cache."""
    counts = Counter(kernel.kernel for kernel in kernels)
    if counts:
        listed = ", ".join(
            f"{count} {'matrix' if count == 1 else 'matrices'} by {kernel}"
            for kernel, count in counts.items()
        )
        yield f"{where}, {listed}"
