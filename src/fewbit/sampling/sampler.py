"""What draws the tokens of one sequence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit.sampling.faults import drawing_fault
from fewbit.sampling.params import BAN, SamplingParams


class TokenSampler:
    """Draws the tokens of one sequence; holds what penalties need to know of its past.

    Args:
        params: the request's choices.
        seed: the key of its random numbers; the request's, or one the engine chose.
        sample: which of a request's several outputs this is.
        prompt: the given tokens.
    """

    def __init__(
        self, params: SamplingParams, *, seed: int, sample: int = 0, prompt: Iterable[int] = ()
    ) -> None:
        self.native = _native.TokenSampler(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            biased=list(params.logit_bias),
            bias=[-math.inf if b <= BAN else b for b in params.logit_bias.values()],
            seed=seed,
            sample=sample,
        )
        if params.penalized:
            self.native.remember(list(prompt), generated=False)

    def fork(self) -> TokenSampler:
        """Return a copy that draws the same and forgets apart, as a draft needs it."""
        copied = copy(self)
        copied.native = self.native.fork()
        return copied

    def remember(self, tokens: Sequence[int]) -> None:
        """Add generated tokens that another sampler drew; `sample_blocks` adds its own."""
        self.native.remember(list(tokens), generated=True)

    def probabilities(
        self,
        logits: NDArray[np.float32],
        *,
        vocabulary: int | None = None,
        isa: str | None = None,
    ) -> NDArray[np.float64]:
        """Return `distribution` of float32 [V] logits as the native pipeline computes it.

        `isa` forces an instruction set, as tests do; every one gives the same bits.

        Raises:
            NumericalError: as `distribution`.
        """
        limit = len(logits) if vocabulary is None else vocabulary
        found, fault, where = self.native.probabilities(logits, limit, isa)
        if fault:
            raise drawing_fault(fault, where, float(logits[where]))
        return np.asarray(found)
