"""Quantizing a checkpoint by a recipe: plan everything, then write tensor by tensor."""

from fewbit.quantize.planning import Container, PlannedTensor, QuantizationPlan, plan
from fewbit.quantize.writing import container_of, execute, quantize

__all__ = [
    "Container",
    "PlannedTensor",
    "QuantizationPlan",
    "container_of",
    "execute",
    "plan",
    "quantize",
]
