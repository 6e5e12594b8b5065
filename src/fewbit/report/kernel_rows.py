"""Kernels in use, each once, for tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fewbit.records.kernels import KernelRecord


@dataclass(frozen=True)
class KernelRow:
    """Layers of one format that run on one kernel."""

    format: str
    kernel: str
    activations: str
    note: str
    count: int


def kernel_rows(kernels: Iterable[KernelRecord]) -> list[KernelRow]:
    """Return the kernels in use, each once, the most used first."""
    counts = Counter((k.format, k.kernel, k.activations, k.note) for k in kernels)
    return [KernelRow(*key, count) for key, count in counts.most_common()]
