"""The quantized model as weights of the torch executor, and everything of it that is trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fewbit.errors import UnsupportedError
from fewbit.formats.grid import layout
from fewbit.formats.registry import BF16, F16, F32, decode
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import is_vector
from fewbit.program import Slot
from fewbit.records.tuning import FixedTensor
from fewbit.runtime.torch_executor import DecodedWeights
from fewbit.tune.latent import Latent, Rounding, as_bfloat16, as_float32, as_half, latent
from fewbit.tune.matrix import GridMatrix

_FLOATS: Mapping[str, Rounding] = {
    F32.name: as_float32,
    F16.name: as_half,
    BF16.name: as_bfloat16,
}


class Student:
    """Fills every slot from its tensor: on a grid or as a vector with latents, else fixed."""

    def __init__(self, start: Mapping[Slot, QuantTensor], arithmetic: torch.dtype) -> None:
        self._start = start
        self._arithmetic = arithmetic
        self.matrices: dict[Slot, GridMatrix] = {}
        self.vectors: dict[Slot, Latent] = {}
        self.fixed: list[FixedTensor] = []
        """What is not trained, and why."""
        self.exact = 0
        """Weights of the matrices among it."""
        for slot, tensor in start.items():
            self._take(slot, tensor)
        left = {entry.slot: start[entry.slot] for entry in self.fixed}
        self._decoded = DecodedWeights(left, arithmetic)

    def matrix(self, slot: Slot) -> Tensor:
        """Return [outputs, inputs] in the executor's arithmetic."""
        if slot in self.matrices:
            return self.matrices[slot].values(self._arithmetic)
        return self._decoded.matrix(slot)

    def rows(self, slot: Slot, tokens: Tensor) -> Tensor:
        """Return rows of a table, float32 [.., width]."""
        if slot in self.matrices:
            return self.matrices[slot].rows(tokens)
        return self._decoded.rows(slot, tokens)

    def vector(self, slot: Slot) -> Tensor:
        """Return float32 [n]."""
        return self.vectors[slot].stored()[0]

    def latents(self) -> Iterator[tuple[str, Latent]]:
        """Yield every latent with a name of its own, always in the same order."""
        for slot, matrix in self.matrices.items():
            for name, part in matrix.latents.items():
                yield f"{slot}/{name}", part
        yield from self.vectors.items()

    def tuned(self) -> tuple[Slot, ...]:
        """Return the slots with something to train, in the start's order."""
        return tuple(slot for slot in self._start if slot in self.matrices or slot in self.vectors)

    def exported(self) -> dict[Slot, QuantTensor]:
        """Return every slot's tensor as it stands, in the format it came in."""
        return {slot: self._exported(slot) for slot in self._start}

    def _exported(self, slot: Slot) -> QuantTensor:
        if slot in self.matrices:
            return self.matrices[slot].exported()
        if slot in self.vectors:
            return _vector_tensor(self._start[slot], self.vectors[slot].exported())
        return self._start[slot]

    def _take(self, slot: Slot, tensor: QuantTensor) -> None:
        if is_vector(slot):
            self.vectors[slot] = _vector_latent(tensor)
            return
        try:
            layout(tensor.spec, tensor.shape[1])
        except UnsupportedError:
            reason = f"{tensor.spec.name} has no scales per row or group to train"
            self.fixed.append(FixedTensor(slot=slot, reason=reason))
            self.exact += math.prod(tensor.shape)
            return
        self.matrices[slot] = GridMatrix(tensor)


def _vector_latent(tensor: QuantTensor) -> Latent:
    """Return a norm's weights or a bias; small elements move relative to the root mean square."""
    values = torch.from_numpy(decode(tensor).copy())
    return latent(values, _FLOATS[tensor.spec.name], values.square().mean().sqrt())


def _vector_tensor(like: QuantTensor, values: Tensor) -> QuantTensor:
    kind = {F32.name: torch.float32, F16.name: torch.float16, BF16.name: torch.bfloat16}
    stored = values.to(kind[like.spec.name]).contiguous().view(torch.uint8)
    return QuantTensor(like.spec, like.shape, stored.numpy())
