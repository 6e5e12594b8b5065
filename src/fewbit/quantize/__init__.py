"""Quantizing a checkpoint by a recipe: plan everything, then write tensor by tensor."""

from fewbit.quantize.planning import (
    Container,
    PlannedTensor,
    QuantizationPlan,
    plan,
    require_no_fallback,
)
from fewbit.quantize.writing import container_of, execute, quantize

__all__ = [
    "Container",
    "PlannedTensor",
    "QuantizationPlan",
    "container_of",
    "execute",
    "plan",
    "quantize",
    "require_no_fallback",
]
