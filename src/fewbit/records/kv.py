"""Static scales of stored keys and values, one form for every container that has a place for them.

They are measured per layer and key head, so both of a container's granularities can be had:

- per tensor, as compressed-tensors (`strategy: "tensor"`) and vLLM have it: `KvScales.of_tensors()`
  gives a pair of numbers per layer, to be stored as `k_scale` and `v_scale` of each attention, with
  the `kv_cache_scheme` that `KvForm` describes;
- per head: `keys[layer][head]` and `values[layer][head]` as they are.

The manifest of an artefact has them as `kv_scales` (None where the recipe asks for none), its
`config.json` in `quantization_config`, and an opened model as `ModelSource.kv_scales`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from fewbit.records.base import Record


class KvForm(Enum):
    """What keys and values are rounded to; a code times its scale is what is read."""

    INT8 = "int8-static"
    """Integers from -127 to 127."""
    FP8 = "fp8-static"
    """fp8_e4m3, whose largest number is 448."""

    @property
    def largest(self) -> float:
        """The largest magnitude of a code: a scale is the largest magnitude met over it."""
        return 127.0 if self is KvForm.INT8 else 448.0

    @property
    def is_integer(self) -> bool:
        """Whether codes are integers (`type: "int"` of a scheme, otherwise `"float"`)."""
        return self is KvForm.INT8


class LayerScales(NamedTuple):
    """The scales of a layer's keys and of its values."""

    key: float
    value: float


class KvScales(Record, frozen=True, kw_only=True):
    """Scales of the keys, behind rope, and values of every layer; all are above 0.

    Layers are those of the decoder in order, heads the key heads of a layer in order.
    """

    form: KvForm
    keys: tuple[tuple[float, ...], ...]
    values: tuple[tuple[float, ...], ...]

    def of_tensors(self) -> tuple[LayerScales, ...]:
        """Return one scale for all keys of a layer and one for all its values: the largest."""
        return tuple(
            LayerScales(max(k), max(v)) for k, v in zip(self.keys, self.values, strict=True)
        )

    def fits(self, layers: int, heads: int) -> bool:
        """Return whether there is a positive scale for every head of so many layers."""
        sides = (self.keys, self.values)
        return all(
            len(side) == layers and all(len(row) == heads and min(row) > 0 for row in side)
            for side in sides
        )
