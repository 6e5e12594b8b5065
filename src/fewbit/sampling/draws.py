"""Drawing for several sequences in one native call, along drafts or without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit.errors import NumericalError
from fewbit.sampling.faults import drawing_fault
from fewbit.sampling.sampler import TokenSampler


class Block(NamedTuple):
    """What to draw for one sequence: rows `row` to `row + len(draft)` of the logits.

    Row `row + j` is the model's output after the sequence's tokens and `draft[:j]`; the token
    drawn from it stands at `position + j`. `top_logprobs` is how many of the likeliest tokens to
    report beside each drawn one; None for no log-probabilities at all.
    """

    sampler: TokenSampler
    row: int
    position: int
    draft: Sequence[int] = ()
    top_logprobs: int | None = None


class TokenLogprob(NamedTuple):
    """The log-probability of a token under the model's unchanged logits, and the likeliest ones."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(id, log-probability) in the order (logit descending, id ascending)."""


class Drawn(NamedTuple):
    """The tokens drawn for a block: those of the draft that were drawn again, then one more."""

    tokens: list[int]
    logprobs: list[TokenLogprob]
    """One for each token, or empty where none were asked for."""
    fault: NumericalError | None = None
    """Why the block ended early; tokens drawn before it stand."""


class SamplingThreads:
    """Buffers for drawing, and an executor's threads, which are idle between two steps.

    Threads change no bit: a sequence is drawn by one of them.

    Args:
        pool: the threads; None for the caller's alone.
    """

    def __init__(self, pool: _native.ThreadPool | None = None) -> None:
        self.native = _native.SamplingThreads(pool)


def sample_blocks(
    logits: NDArray[np.float32],
    blocks: Sequence[Block],
    *,
    vocabulary: int | None = None,
    threads: SamplingThreads | None = None,
) -> list[Drawn]:
    """Draw for several sequences in one call, without a draft or along one.

    From each row of a block a token is drawn exactly as without a draft, with its own keyed random
    number and the penalties of the tokens drawn so far. The next row is used only if that token
    equals the draft's, because only then did the model see it. So the output never depends on the
    draft.

    Args:
        logits: float32 [rows, V], C-contiguous; read in place.
        blocks: what to draw.
        vocabulary: ids from here on are padding; None for no padding.
        threads: who draws; None for the caller alone, with buffers of this call.
    """
    limit = logits.shape[1] if vocabulary is None else vocabulary
    drawing = SamplingThreads() if threads is None else threads
    results = drawing.native.draw(
        logits,
        limit,
        [block.sampler.native for block in blocks],
        [block.row for block in blocks],
        [block.position for block in blocks],
        [list(block.draft) for block in blocks],
        [-1 if block.top_logprobs is None else block.top_logprobs for block in blocks],
    )
    drawn = []
    for tokens, details, fault, row, where in results:
        error = drawing_fault(fault, where, float(logits[row, where])) if fault else None
        drawn.append(Drawn(tokens, [_logprob(*detail) for detail in details], error))
    return drawn


def _logprob(total: float, shifted: float, ids: list[int], others: list[float]) -> TokenLogprob:
    log_total = math.log(total)
    top = tuple((i, other - log_total) for i, other in zip(ids, others, strict=True))
    return TokenLogprob(shifted - log_total, top)
