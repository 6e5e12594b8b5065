"""How likely continuations of one context are, with the context run once.

Whole pages of what the sequences share are run first and stand in every sequence's page table; each
sequence has pages of its own behind them and runs the rest of its rows there. By row invariance the
figures are those of each sequence run alone, which is the truth that tests compare with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError, RequestError
from fewbit.evaluate.language.divergence import first_not_finite
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import Runner
from fewbit.records.answers import Likelihood
from fewbit.runtime.step import PAGE

Token = TypeVar("Token", int, str)
"""An id, or what a server calls a token."""

_ROWS = 512
"""Rows of a step, and so of logits held at once, unless one sequence alone has more."""


@dataclass(frozen=True)
class Scoring:
    """What runs the sequences; logits from `vocabulary` on are padding."""

    runner: Runner
    vocabulary: int


def likelihoods(
    scoring: Scoring, context: Sequence[int], wholes: Sequence[Sequence[int]]
) -> list[Likelihood]:
    """Return the likelihood of each sequence behind the tokens that all share with the context.

    Args:
        scoring: the model.
        context: ids, what begins a text included.
        wholes: ids of the context and a continuation, tokenized together.

    Raises:
        RequestError: nothing is shared, a continuation adds no token, or one does not fit.
        NumericalError: a logit is NaN or infinite.
    """
    start = beginning(context, wholes)
    for whole in wholes:
        scoring.runner.checked(whole)
    whole_pages = (start - 1) // PAGE  # the row before `start` predicts, so it is each one's own
    _run_shared(scoring.runner, context[: whole_pages * PAGE])
    found: list[Likelihood] = []
    for group in _groups(scoring.runner, whole_pages, wholes):
        found += _scored(scoring, start, whole_pages, group)
    return found


def beginning(context: Sequence[Token], wholes: Sequence[Sequence[Token]]) -> int:
    """Return how many tokens all sequences share with their context.

    Raises:
        RequestError: none, or a continuation adds no token to them.
    """
    start = min((_shared(context, whole) for whole in wholes), default=len(context))
    if start < 1:
        raise RequestError(
            "no token stands before the continuations, so that their first has no likelihood; "
            "give a context."
        )
    for number, whole in enumerate(wholes, start=1):
        if len(whole) <= start:
            raise RequestError(f"continuation {number} adds no token to its context; give text.")
    return start


def _shared(one: Sequence[Token], other: Sequence[Token]) -> int:
    """Return how many tokens two sequences begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _run_shared(runner: Runner, tokens: Sequence[int]) -> None:
    """Run whole pages of tokens into the store's first pages."""
    ids, pages = np.array(tokens, np.int32), np.arange(len(tokens) // PAGE, dtype=np.int32)
    nothing = np.empty(0, np.int32)
    for begin in range(0, len(ids), _ROWS):
        piece = Piece(ids[begin : begin + _ROWS], begin, pages, nothing)
        runner.executor.step(step_of([piece]))


def _groups(
    runner: Runner, shared: int, wholes: Sequence[Sequence[int]]
) -> Iterator[list[Sequence[int]]]:
    """Yield sequences whose rows fit one step and whose pages the store has room for."""
    group: list[Sequence[int]] = []
    rows = pages = 0
    for whole in wholes:
        more_rows, more_pages = len(whole) - 1 - shared * PAGE, _own_pages(whole, shared)
        full = rows + more_rows > _ROWS or shared + pages + more_pages > runner.executor.pages
        if group and full:
            yield group
            group, rows, pages = [], 0, 0
        group.append(whole)
        rows, pages = rows + more_rows, pages + more_pages
    if group:
        yield group


def _own_pages(whole: Sequence[int], shared: int) -> int:
    return -(-(len(whole) - 1) // PAGE) - shared


def _scored(
    scoring: Scoring, start: int, shared: int, group: Sequence[Sequence[int]]
) -> list[Likelihood]:
    """Run a group's rows behind the shared pages, in one step."""
    free, pieces = shared, []
    for whole in group:
        own = _own_pages(whole, shared)
        pages = np.array([*range(shared), *range(free, free + own)], np.int32)
        rows = np.array(whole[shared * PAGE : -1], np.int32)
        wanted = np.arange(start - 1 - shared * PAGE, len(rows), dtype=np.int32)
        pieces.append(Piece(rows, shared * PAGE, pages, wanted))
        free += own
    logits = scoring.runner.executor.step(step_of(pieces))[:, : scoring.vocabulary]
    targets = [np.array(whole[start:]) for whole in group]
    ends = np.cumsum([len(ids) for ids in targets])[:-1]
    blocks = zip(np.split(logits, ends), targets, strict=True)
    return [_likelihood(block, ids) for block, ids in blocks]


def _likelihood(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> Likelihood:
    """Sum up a continuation's tokens, in float64."""
    found = first_not_finite(logits)
    if found is not None:
        row, token = found
        raise NumericalError(
            f"The logit of token {token} at a continuation's token {row} is {logits[row, token]}; "
            "inspect the model's weights."
        )
    total = sum(map(_logprob, logits, targets.tolist()))
    greedy = bool((logits.argmax(axis=1) == targets).all())
    return Likelihood(logprob=total, tokens=len(targets), greedy=greedy)


def _logprob(logits: NDArray[np.float32], target: int) -> float:
    """Return one token's log-probability; a row at a time, so that memory stays that of a row."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return float(shifted[target]) - math.log(float(np.exp(shifted).sum()))
