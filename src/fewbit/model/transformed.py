"""A model whose weights are changed on the way out, so that its function stays what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.formats.registry import F32, decode, encoded_bytes
from fewbit.formats.spec import QuantTensor
from fewbit.model.transforms import Edit, RotateMlp, RotateResidual, Transform
from fewbit.model.weights import ModelSource
from fewbit.program import Slot


@dataclass(frozen=True)
class TransformedSource(ModelSource):
    """Reads like the source it was made from; slots that a transform touches come in float32.

    Float32 also where the source has bf16: a norm's weight w with Gemma's offset is (w + 1) / s - 1
    then, of which bf16 would keep few digits. Slots that no transform touches come through bit for
    bit. `config.mlp_rotation` has the op that a rotation inside the MLP needs. Where a table shared
    by input and output had to become two, `config.tied` is False and `slots` has `head.weight`,
    which lies where `embed.weight` lies.
    """

    transforms: tuple[Transform, ...] = ()
    """In the order they are applied."""
    edits: Mapping[Slot, tuple[Edit, ...]] = field(default_factory=dict)
    """What happens to the tensor of each touched slot."""
    origin: ModelSource | None = None
    """The source without transforms."""

    @property
    def edited(self) -> bool:
        """Whether a transform touches a slot."""
        return bool(self.edits)

    def info(self, slot: Slot) -> TensorInfo:
        """Return what is stored for a slot; format and size of a touched one are those it gets."""
        info = super().info(slot)
        if slot not in self.edits:
            return info
        return replace(info, format=F32, nbytes=encoded_bytes(F32, info.matrix_shape))

    def read(self, slot: Slot) -> QuantTensor:
        """Return a slot's tensor as the source has it, or changed and in float32."""
        tensor = super().read(slot)
        if slot not in self.edits:
            return tensor
        values = decode(tensor)
        for edit in self.edits[slot]:
            values = edit.apply(values)
        return QuantTensor(F32, tensor.shape, np.ascontiguousarray(values).view(np.uint8))


def transformed(source: ModelSource, transforms: Sequence[Transform]) -> TransformedSource:
    """Return the source with transforms applied to what is read from it, in order.

    A source that is transformed already keeps its transforms; these come after them. Closing
    either closes both.
    """
    before = source.transforms if isinstance(source, TransformedSource) else ()
    edits = dict(source.edits) if isinstance(source, TransformedSource) else {}
    origin = source.origin if isinstance(source, TransformedSource) else source
    plain = {f.name: getattr(source, f.name) for f in fields(ModelSource)}
    for transform in transforms:
        if isinstance(transform, RotateResidual) and transform.untied:
            plain["config"] = replace(plain["config"], tied=False)
            plain["slots"] = {**plain["slots"], "head.weight": plain["slots"]["embed.weight"]}
            edits["head.weight"] = edits.get("embed.weight", ())
        if isinstance(transform, RotateMlp):
            plain["config"] = replace(plain["config"], mlp_rotation=transform.size)
        for slot, new in transform.edits().items():
            edits[slot] = (*edits.get(slot, ()), *new)
    after = (*before, *transforms)
    return TransformedSource(**plain, transforms=after, edits=edits, origin=origin)
