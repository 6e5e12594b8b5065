"""What draws the tokens of one sequence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit.keyed_random import Purpose
from fewbit.sampling.constraint import Constraint
from fewbit.sampling.faults import drawing_fault
from fewbit.sampling.params import BAN, SamplingParams


class TokenSampler:
    """Draws the tokens of one sequence; holds what penalties need to know of its past.

    Args:
        params: the request's choices.
        seed: the key of its random numbers; the request's, or one the engine chose.
        sample: which of a request's several outputs this is.
        prompt: the given tokens.
        numbers: given numbers in place of random ones; for enumerating what is done with them.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        sample: int = 0,
        prompt: Iterable[int] = (),
        numbers: _native.ScriptedNumbers | None = None,
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
            numbers=numbers,
        )
        self.constraint: Constraint | None = None
        if params.penalized:
            self.native.remember(list(prompt), generated=False)

    def constrain(self, constraint: Constraint) -> None:
        """Let a constraint say, before the first draw, which tokens may come."""
        self.constraint = constraint

    def fork(self) -> TokenSampler:
        """Return a copy that draws the same and forgets apart, as a draft needs it."""
        copied = copy(self)
        copied.native = self.native.fork()
        if self.constraint is not None:
            copied.constraint = self.constraint.fork()
        return copied

    def remember(self, tokens: Sequence[int]) -> None:
        """Add generated tokens that another sampler drew; `sample_blocks` adds its own."""
        self.native.remember(list(tokens), generated=True)
        self.follow(tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """Let the constraint know of tokens that the native sampler has drawn."""
        if self.constraint is not None:
            self.constraint.advance(tokens)

    def uniform(self, position: int, purpose: Purpose, start: int = 0) -> float:
        """Return the number that decides there: every draw of the sequence asks this one function.

        Args:
            position: of the token it decides on.
            purpose: what it decides.
            start: the position of the first token of the block that is drafted or judged; 0 for
                `Purpose.TOKEN`.
        """
        return self.native.uniform(position, purpose, start)

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
