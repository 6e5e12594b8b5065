"""Filling a Program's slots: the tensor of each, and the kernel that will run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fewbit.errors import KernelError
from fewbit.formats.spec import QuantTensor
from fewbit.model.weights import ModelSource
from fewbit.program import Program, Slot
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.executor import Binding

Choose: TypeAlias = Callable[[Slot, QuantTensor], KernelRecord]
"""Returns the kernel for a matrix, or raises KernelError."""


def bind(source: ModelSource, program: Program, choose: Choose) -> Binding:
    """Return the Program with its slots filled from `source`; tensors are read when asked for.

    Raises:
        KernelError: no kernel can run a matrix; the message covers every such matrix, each reason
            once.
    """
    kernels: dict[Slot, KernelRecord] = {}
    orders: dict[Slot, NDArray[np.int32]] = {}
    refused: dict[str, list[str]] = {}
    for slot in program.slots():
        if is_vector(slot):
            continue
        outline = source.outline(slot)
        if outline.order is not None:
            orders[slot] = outline.order
        try:
            kernels[slot] = _noted(choose(slot, outline), source.note(slot))
        except KernelError as error:
            refused.setdefault(str(error).replace(slot, "", 1), []).append(str(error))
    if refused:
        raise KernelError(" ".join(same[0] + _more(len(same) - 1) for same in refused.values()))
    return Binding(program, _LazyTensors(source), kernels, source.release, orders=orders)


def is_vector(slot: Slot) -> bool:
    """Return whether a slot holds a norm's weight or a bias, which no kernel multiplies by."""
    site, kind = slot.split(".")[-2:]
    return kind == "bias" or site.endswith("_norm")


def _noted(record: KernelRecord, note: str) -> KernelRecord:
    """Add to a record what of the weights is read otherwise than it is stored."""
    notes = "; ".join(filter(None, (note, record.note)))
    return msgspec.structs.replace(record, note=notes)


class _LazyTensors(Mapping[Slot, QuantTensor]):
    """Reads a slot's tensor each time it is asked for."""

    def __init__(self, source: ModelSource) -> None:
        self._source = source

    def __getitem__(self, slot: Slot) -> QuantTensor:
        return self._source.read(slot)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._source.slots)

    def __len__(self) -> int:
        return len(self._source.slots)


def _more(count: int) -> str:
    if count == 0:
        return ""
    return f" The same holds for {count} more {'matrices' if count > 1 else 'matrix'}."
