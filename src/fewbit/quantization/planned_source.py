"""A model as a plan will leave it, known by its formats alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.records.kernels import Activations


@dataclass(frozen=True)
class PlannedSource(ModelSource):
    """Describes every slot as the artefact will; there is nothing to read yet."""

    planned: Mapping[Slot, PlannedTensor] = field(default_factory=dict)

    def info(self, slot: Slot) -> TensorInfo:
        """Return what will be stored for a slot."""
        info, tensor = super().info(slot), self.planned[slot]
        static = tensor.activations is Activations.STATIC
        return replace(
            info,
            format=tensor.format,
            nbytes=tensor.bytes,
            activations=tensor.activations,
            input_scale=1.0 if static else None,  # it will have one
        )


def planned_source(planned: QuantizationPlan) -> PlannedSource:
    """Return the model that a plan will make."""
    plain = {f.name: getattr(planned.source, f.name) for f in fields(ModelSource)}
    return PlannedSource(**plain, planned={t.slot: t for t in planned.tensors if t.slot})
