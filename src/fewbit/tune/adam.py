"""Adam in steps relative to each value's magnitude.

Scales, offsets and norm weights differ by orders of magnitude within a model, and what matters of
each is its ratio. So a step multiplies: value *= 1 - rate * m / sqrt(v), with the moments of the
gradient as in Kingma and Ba 2015, their bias taken out.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fewbit.tune.latent import Latent

FIRST_DECAY = 0.9
SECOND_DECAY = 0.99
"""A hundred steps see about as many gradients as the second moment averages."""
TINY = 1e-20
"""Below any gradient that matters: those of a mean over thousands of positions are small."""


class RelativeAdam:
    """The moments of named latents, and the step that uses them."""

    def __init__(self, latents: Iterable[tuple[str, Latent]]) -> None:
        self._latents = dict(latents)
        self.first = {name: torch.zeros_like(part.value) for name, part in self._latents.items()}
        self.second = {name: torch.zeros_like(part.value) for name, part in self._latents.items()}

    def step(self, number: int, rate: float) -> None:
        """Use up the gradients of step `number`, counted from 1."""
        with torch.no_grad():
            for name, part in self._latents.items():
                if part.value.grad is not None:
                    part.move(self._direction(name, part.value.grad, number), -rate)
                    part.value.grad = None

    def _direction(self, name: str, gradient: Tensor, number: int) -> Tensor:
        first, second = self.first[name], self.second[name]
        first.lerp_(gradient, 1 - FIRST_DECAY)
        second.mul_(SECOND_DECAY).addcmul_(gradient, gradient, value=1 - SECOND_DECAY)
        spread = (second / (1 - SECOND_DECAY**number)).sqrt_().add_(TINY)
        return (first / (1 - FIRST_DECAY**number)).div_(spread)


def falling(step: int, steps: int, warmup: float) -> float:
    """Return the share of the first rate at a step counted from 0: up over `warmup`, then down.

    Both linearly; the last step has one share of `steps` left, so none is wasted at zero.
    """
    rising = max(1.0, warmup * steps)
    return min((step + 1) / rising, (steps - step) / max(1.0, steps - rising + 1))
