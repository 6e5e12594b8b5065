"""Drawing for several sequences in one native call, along drafts or without."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit.errors import FewbitError
from fewbit.sampling.faults import drawing_fault
from fewbit.sampling.sampler import TokenSampler
from fewbit.sampling.verifier import Verifier

_ALL_IDS = 1 << 31


class Branch(NamedTuple):
    """Tokens that may follow the first `depth` of a draft in place of its others, at least one."""

    depth: int
    tokens: tuple[int, ...]


def tree_rows(chain: Sequence[int], branches: Iterable[Branch]) -> int:
    """Return how many rows the tokens of a draft and of its branches take."""
    return len(chain) + sum(len(branch.tokens) for branch in branches)


class Block(NamedTuple):
    """What to draw for one sequence: rows `row` to `row + len(draft)` of the logits.

    Row `row + j` is the model's output after the sequence's tokens and `draft[:j]`; the token
    drawn from it stands at `position + j`. The rows after those of the draft are those after each
    token of the `branches`, in their order. Branches of one depth are further candidates for a
    position, judged in their order; they and the draft begin with different tokens there.
    `top_logprobs` is how many of the likeliest tokens to report beside each drawn one; None for no
    log-probabilities at all.

    `verifier` judges the draft; all but `MATCH` need `probabilities`, float32 [len(draft) or more,
    n], of which row j is what `draft[j]` was drawn from, over the ids `support`, int32 [n]
    ascending (None: 0 to n - 1). By `TOKEN` a branch has one token, drawn without replacement from
    what `draft[depth]` was drawn from, with the numbers of its rank; `BLOCK` judges no branches.
    """

    sampler: TokenSampler
    row: int
    position: int
    draft: Sequence[int] = ()
    top_logprobs: int | None = None
    verifier: Verifier = Verifier.MATCH
    probabilities: NDArray[np.float32] | None = None
    support: NDArray[np.int32] | None = None
    branches: Sequence[Branch] = ()


class TokenLogprob(NamedTuple):
    """The log-probability of a token under the model's unchanged logits, and the likeliest ones."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(id, log-probability) in the order (logit descending, id ascending)."""


class Drawn(NamedTuple):
    """The tokens that stand: those of the draft that were accepted, then one more."""

    tokens: list[int]
    logprobs: list[TokenLogprob]
    """One for each token, or empty where none were asked for."""
    fault: FewbitError | None = None
    """Why the block ended early; tokens drawn before it stand."""
    branch: int | None = None
    """The branch on which the accepted tokens end; None where they are the draft's."""


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

    By `Verifier.MATCH` a token is drawn from each row of a block exactly as without a draft, with
    its own keyed random number and the penalties of the tokens drawn so far. The next row is used
    only if that token equals the draft's, because only then did the model see it. So the output
    never depends on the draft. By the other verifiers its distribution does not: they are
    `speculate.exact`, with branches `speculate.tree`, and `speculate.block`, with every row shaped
    by the whole pipeline after the drafted tokens before it, and numbers keyed by the block too.

    Args:
        logits: float32 [rows, V], C-contiguous; read in place.
        blocks: what to draw.
        vocabulary: ids from here on are padding; None for no padding.
        threads: who draws; None for the caller alone, with buffers of this call.

    Raises:
        ValueError: a block reaches beyond the logits, or its probabilities cannot be those of its
            draft.
    """
    limit = logits.shape[1] if vocabulary is None else vocabulary
    drawing = SamplingThreads() if threads is None else threads
    results = drawing.native.draw(logits, limit, [_given(block) for block in blocks])
    drawn = []
    for block, (tokens, branch, details, fault, row, where) in zip(blocks, results, strict=True):
        error = _fault(block.sampler, logits, fault, row, where)
        block.sampler.follow(tokens)
        logprobs = [_logprob(*detail) for detail in details]
        drawn.append(Drawn(tokens, logprobs, error, None if branch < 0 else branch))
    return drawn


class DraftRow(NamedTuple):
    """What a draft draws from one row of its logits.

    `sampler` is a fork of the sequence's. The token stands at `position`, the first one of its
    block at `start`. `into`, float32 [n], takes what the token is drawn from, over the draft's n
    columns; None draws by the number that the target will draw by (`Verifier.MATCH`).

    So many `siblings` are wanted beside the token: drawn without replacement from what it was drawn
    from, each by a number of its own; without `into` those of the largest logits.
    """

    sampler: TokenSampler
    row: int
    position: int
    start: int
    into: NDArray[np.float32] | None = None
    siblings: int = 0


class Drafted(NamedTuple):
    """A token that a draft has drawn; it means nothing where there is a fault.

    `siblings` are different tokens, fewer than were wanted where no more had a chance.
    """

    token: int
    fault: FewbitError | None = None
    siblings: tuple[int, ...] = ()


def draw_proposals(
    logits: NDArray[np.float32],
    draws: Sequence[DraftRow],
    *,
    support: NDArray[np.int32] | None = None,
    vocabulary: int | None = None,
    threads: SamplingThreads | None = None,
) -> list[Drafted]:
    """Draw one token for each of several sequences from a draft's logits.

    The logits go through the same pipeline as the target's: bias, penalties and truncation find
    their tokens by the target's ids. The fork remembers what it drew.

    Args:
        logits: float32 [rows, n], C-contiguous; read in place.
        draws: which rows, and for whom; every fork once.
        support: int32 [n] ascending, the target's id of each column; None for 0 to n - 1.
        vocabulary: of the target; ids from here on are never drawn. None for no such bound.
        threads: who draws; None for the caller alone, with buffers of this call.
    """
    drawing = SamplingThreads() if threads is None else threads
    limit = _ALL_IDS if vocabulary is None else vocabulary
    given = [
        (d.sampler.native, d.row, d.position, d.start, d.into, _masks(d.sampler, ()), d.siblings)
        for d in draws
    ]
    drafted = []
    for draw, (token, siblings, fault, row, where) in zip(
        draws, drawing.native.propose(logits, limit, support, given), strict=True
    ):
        if not fault:
            draw.sampler.follow([token])
        error = _fault(draw.sampler, logits, fault, row, where)
        drafted.append(Drafted(token, error, tuple(siblings)))
    return drafted


def _fault(
    sampler: TokenSampler, logits: NDArray[np.float32], kind: str, row: int, column: int
) -> FewbitError | None:
    if not kind:
        return None
    problem = "" if sampler.constraint is None else sampler.constraint.problem
    return drawing_fault(kind, column, float(logits[row, column]), problem)


def _given(block: Block) -> tuple[Any, ...]:
    """Return a block as the native core takes it."""
    sampler, row, position, draft, top, verifier, probabilities, support, branches = block
    wanted = -1 if top is None else top
    judge = verifier.value if draft else Verifier.MATCH.value
    masks = _masks(sampler, draft, branches)
    given = sampler.native, row, position, draft, wanted, judge, probabilities, support, masks
    return *given, branches


def _masks(
    sampler: TokenSampler, draft: Sequence[int], branches: Sequence[Branch] = ()
) -> NDArray[np.int32] | None:
    """Return a mask for every row of a block, in the order of the rows."""
    if sampler.constraint is None:
        return None
    masks = sampler.constraint.masks(draft)
    for depth, tokens in branches:
        own = sampler.constraint.masks([*draft[:depth], *tokens])[depth + 1 :]
        masks = np.concatenate([masks, own])
    return masks


def _logprob(total: float, shifted: float, ids: list[int], others: list[float]) -> TokenLogprob:
    log_total = math.log(total)
    top = tuple((i, other - log_total) for i, other in zip(ids, others, strict=True))
    return TokenLogprob(shifted - log_total, top)
