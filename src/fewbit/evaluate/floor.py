"""The source perturbed within its own arithmetic: what "the same" costs here.

Where the source rounds the inputs of integer layers, they are rounded in the other of the two usual
ways; a source of floats, whose inputs are not rounded, keeps its keys and values in bf16 instead.
Either is a choice that a runtime makes without asking, and another instruction set would not do:
kernels of integers give the same bits on each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fewbit.model.runner import RunSettings
from fewbit.program import CacheType
from fewbit.records.kernels import Activations, KernelRecord


@dataclass(frozen=True)
class Floor:
    """How the perturbed source is run, and in what that differs, in words."""

    settings: RunSettings
    words: str


def floor_of(source: RunSettings, kernels: Iterable[KernelRecord]) -> Floor:
    """Return the perturbation of a source.

    Args:
        source: how it is run.
        kernels: what its matrices run on.
    """
    roundings = {kernel.activations for kernel in kernels}
    if any(rounding.startswith("int8") for rounding in roundings):
        return Floor(
            replace(source, activations=Activations.BF16),
            "the inputs of integer layers rounded to bf16 instead of int8",
        )
    if "bf16" in roundings:
        return Floor(
            replace(source, activations=Activations.INT8),
            "the inputs of integer layers rounded to int8 instead of bf16",
        )
    return Floor(
        replace(source, cache_type=CacheType.BF16), "keys and values kept in bf16 instead of f16"
    )
