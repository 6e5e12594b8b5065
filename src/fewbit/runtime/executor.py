"""What runs a bound Program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit._native import PackedMatrix
from fewbit.formats.spec import QuantTensor
from fewbit.program import Program, Slot
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.step import StepInput

Tap: TypeAlias = tuple[int, str]
"""The (layer, site) of an op whose result is kept."""


def keep(slot: Slot) -> None:
    """Release nothing: the tensors are in memory anyway."""


@dataclass(frozen=True)
class Binding:
    """A Program with its slots filled: the tensor of each slot, and the kernel chosen for it.

    Vectors (norm weights, biases) are QuantTensors of shape (1, n) in f32 or another float type
    and carry no kernel record. `tensors` may read a slot when it is asked for: an executor that
    packs weights takes one slot at a time and calls `release` with it once it is packed, so the
    bytes of the file and the packed ones never lie in memory together.
    """

    program: Program
    tensors: Mapping[Slot, QuantTensor]
    kernels: Mapping[Slot, KernelRecord]
    release: Callable[[Slot], None] = keep
    packed: Mapping[Slot, PackedMatrix] = field(default_factory=dict)
    """Matrices that are packed already; `tensors` is not asked for them."""
    orders: Mapping[Slot, NDArray[np.int32]] = field(default_factory=dict)
    """Of matrices whose columns lie in an order: that order, as in `QuantTensor`."""

    def order(self, slot: Slot) -> NDArray[np.int32] | None:
        """Return the order of a matrix's columns; None where it has none."""
        return self.orders[slot] if slot in self.orders else self.tensors[slot].order


class Executor(Protocol):
    """Runs steps of one bound Program over its own KV store.

    The store has `pages` pages of `PAGE` positions for every layer; who uses which page is the
    caller's business (`cache/`). A step writes the rows' keys and values before it reads any.
    """

    @property
    def pages(self) -> int:
        """Pages in the KV store."""
        ...

    def step(self, step: StepInput) -> NDArray[np.float32]:
        """Return the wanted rows' logits, float32 [wanted, vocabulary].

        The array may be a view of the executor's own memory, valid until the next step.
        """
        ...
