"""Writing folders whose matrices are several stored tensors each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.safetensors_write import Part
from fewbit.export.folder import write_folder
from fewbit.export.layers import float_part, module_of, packed_slots
from fewbit.export.target import Holding
from fewbit.formats.spec import QuantTensor
from fewbit.program import Slot

if TYPE_CHECKING:
    from fewbit.export.job import Job

Announce = Callable[[Slot, str], list[Part]]
"""Gives the entries of a matrix, from its slot and its module's name."""
Make = Callable[[Slot, str, QuantTensor], Iterator[tuple[str, NDArray[Any]]]]
"""Gives the data of each entry by its name within the module; the tensor is `job.read(slot)`."""


def as_stored(holding: Holding, parts: Iterable[Part]) -> Holding:
    """Return how a matrix is held, with the bytes of the entries that it is stored in."""
    return replace(holding, bytes=sum(part.nbytes for part in parts))


def write_packed(  # noqa: PLR0913
    job: Job,
    changes: Mapping[str, Any],
    announce: Announce,
    make: Make,
    *,
    metadata: Mapping[str, str] = MappingProxyType({}),
    extras: Mapping[str, NDArray[np.float32]] = MappingProxyType({}),
) -> None:
    """Write a folder: packed matrices as the target has them, everything else as floats.

    `metadata` is more free text for the file's header, `extras` are further tensors.

    Raises as `write_folder`.
    """
    packed = set(packed_slots(job.planned.formats))
    parts: list[Part] = []
    for slot, holding in job.planned.holdings.items():
        if slot in packed:
            parts += announce(slot, module_of(holding.stored))
        else:
            parts.append(float_part(job.source, slot, holding))
    parts += [Part(name, "F32", array.shape) for name, array in extras.items()]

    def content() -> Iterator[tuple[str, NDArray[Any]]]:
        for slot, holding in job.planned.holdings.items():
            tensor, module = job.read(slot), module_of(holding.stored)
            if slot not in packed:
                yield holding.stored, tensor.codes
                continue
            for name, array in make(slot, module, tensor):
                yield f"{module}.{name}", np.ascontiguousarray(array)
        yield from extras.items()

    write_folder(job, changes, parts, content(), metadata)
