"""Quantizing a checkpoint by a recipe: plan everything, solve layer by layer, write, check."""

from fewbit.quantization.pipeline import QuantizeSettings, execute, needs_text, quantize
from fewbit.quantization.planned import (
    Container,
    PlannedTensor,
    QuantizationPlan,
    require_no_fallback,
)
from fewbit.quantization.planning import plan
from fewbit.quantization.writing import container_of

__all__ = [
    "Container",
    "PlannedTensor",
    "QuantizationPlan",
    "QuantizeSettings",
    "container_of",
    "execute",
    "needs_text",
    "plan",
    "quantize",
    "require_no_fallback",
]
