"""Trained values that are rounded to what a format stores whenever they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fewbit.formats.grid import ScaleStorage

Rounding: TypeAlias = Callable[[Tensor], Tensor]
"""float32 -> the nearest storable values, as float32."""

LARGEST_HALF = 65504.0


class _StraightThrough(torch.autograd.Function):
    """Rounds; the gradient passes as if it had not (Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, rounding: Rounding) -> Tensor:
        return rounding(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


@dataclass(frozen=True, eq=False)
class Latent:
    """A float32 leaf that is trained, and how it is rounded where it is used.

    Steps are relative to the value's magnitude, or to `least` where that is larger, so that a value
    at zero can leave it.
    """

    value: Tensor
    rounding: Rounding
    least: Tensor | float

    def stored(self) -> Tensor:
        """Return the rounded values, with gradients to the leaf."""
        return _StraightThrough.apply(self.value, self.rounding)

    def exported(self) -> Tensor:
        """Return the rounded values alone, which later steps do not change."""
        return self.rounding(self.value.detach().clone())

    def move(self, direction: Tensor, rate: float) -> None:
        """Move by `rate` times `direction` (of order one), relative to the magnitude."""
        with torch.no_grad():
            magnitude = self.value.abs()
            floor = torch.as_tensor(self.least)
            self.value.add_(torch.maximum(magnitude, floor).mul_(direction), alpha=rate)


def latent(values: Tensor, rounding: Rounding, least: Tensor | float) -> Latent:
    """Return a leaf that begins at `values`, which must be storable."""
    return Latent(values.clone().float().requires_grad_(), rounding, least)


def as_float32(values: Tensor) -> Tensor:
    """Round nothing."""
    return values


def as_half(values: Tensor) -> Tensor:
    """Round to float16, to nearest and ties to even; what is too large becomes the largest."""
    return values.clamp(-LARGEST_HALF, LARGEST_HALF).half().float()


def as_bfloat16(values: Tensor) -> Tensor:
    """Round to bfloat16, to nearest and ties to even."""
    return values.bfloat16().float()


def as_power_of_two(values: Tensor) -> Tensor:
    """Round to 2^-128 .. 2^126, the exponent to nearest."""
    exponents = values.clamp(min=2.0**-128).log2().round_().clamp_(-128, 126)
    return torch.ldexp(torch.ones_like(values), exponents.int())


def as_integers(low: int, high: int) -> Rounding:
    """Return a rounding to the integers of a range."""

    def rounding(values: Tensor) -> Tensor:
        return values.round().clamp_(low, high)

    return rounding


STORED_SCALE: dict[ScaleStorage, Rounding] = {
    ScaleStorage.F16: as_half,
    ScaleStorage.F32: as_float32,
    ScaleStorage.E8M0: as_power_of_two,
}
"""How first-level scales are rounded."""
