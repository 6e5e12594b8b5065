"""How likely continuations of one context are, with the context run once.

Whole pages of what the sequences share are run first and stand in every sequence's page table; each
sequence has pages of its own behind them. What several share beyond those pages, the rest of their
context and the beginnings of answers to one question, is run once: they branch off one of them in
the same step. By row invariance the figures are those of each sequence run alone, which is the
truth that tests compare with.
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

_AHEAD = 20
"""Sequences that are looked at to see what they share; of as many are five questions of four
answers each."""


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


def _groups(runner: Runner, shared: int, wholes: Sequence[Sequence[int]]) -> Iterator[list[_Own]]:
    """Yield sequences whose rows fit one step and whose pages the store has room for."""
    group: list[_Own] = []
    rows = pages = 0
    for number in range(len(wholes)):
        own = _placed(group, wholes[number : number + _AHEAD], shared * PAGE)
        full = rows + own.rows > _ROWS or shared + pages + own.pages > runner.executor.pages
        if group and full:
            yield group
            group, rows, pages = [], 0, 0
            own = _placed(group, wholes[number : number + _AHEAD], shared * PAGE)
        group.append(own)
        rows, pages = rows + own.rows, pages + own.pages
    if group:
        yield group


@dataclass(frozen=True)
class _Own:
    """A sequence, and the rows that are run for it alone or that others branch off."""

    whole: Sequence[int]
    shared: int
    """Rows in the pages that all share."""
    begin: int
    """The position of its first row of its own."""
    trunk: int | None
    """The number in its group of the sequence that it branches off."""

    @property
    def rows(self) -> int:
        """Rows that are run for it; the last token's is none."""
        return len(self.whole) - 1 - self.begin

    @property
    def pages(self) -> int:
        """Pages behind the shared ones; a branch too has its own, to which the trunk is copied."""
        return -(-(len(self.whole) - 1 - self.shared) // PAGE)


def _placed(group: Sequence[_Own], wholes: Sequence[Sequence[int]], shared: int) -> _Own:
    """Return the first sequence behind the one of the group that it shares the most rows with.

    Or apart, where those that follow share so much more with it than with any before that running
    anew what it shares with others spares rows.
    """
    apart = _Own(wholes[0], shared, shared, None)
    trunks = [(number, own.whole[shared:]) for number, own in enumerate(group) if own.trunk is None]
    first, *later = (whole[shared:] for whole in wholes)
    known, number = _most_continued(trunks, first)
    if known == 0:
        return apart
    spared = (_continued(first, other) - _most_continued(trunks, other)[0] for other in later)
    if sum(max(rows, 0) for rows in spared) > known:
        return apart
    return _Own(wholes[0], shared, shared + known, number)


def _most_continued(
    trunks: Sequence[tuple[int, Sequence[int]]], tokens: Sequence[int]
) -> tuple[int, int]:
    """Return the most rows that any trunk has run of a sequence, and the trunk's number."""
    found = [(_continued(trunk, tokens), -number) for number, trunk in trunks]
    rows, number = max(found, default=(0, 0))
    return rows, -number


def _continued(trunk: Sequence[int], tokens: Sequence[int]) -> int:
    """Return how many rows of a trunk a sequence has too, and keeps one of its own behind them."""
    return min(_shared(trunk, tokens), len(trunk) - 1, len(tokens) - 2)


def _scored(scoring: Scoring, start: int, shared: int, group: Sequence[_Own]) -> list[Likelihood]:
    """Run a group's rows behind the shared pages, in one step."""
    free, pieces = shared, []
    for own in group:
        pages = np.array([*range(shared), *range(free, free + own.pages)], np.int32)
        rows = np.array(own.whole[own.begin : -1], np.int32)
        wanted = np.arange(max(start - 1 - own.begin, 0), len(rows), dtype=np.int32)
        pieces.append(Piece(rows, own.begin, pages, wanted, own.trunk))
        free += own.pages
    logits = scoring.runner.executor.step(step_of(pieces))[:, : scoring.vocabulary]
    blocks = np.split(logits, np.cumsum([len(piece.wanted) for piece in pieces])[:-1])
    seen: list[list[_Row]] = []
    for own, block in zip(group, blocks, strict=True):
        begun = [] if own.trunk is None else seen[own.trunk][: max(own.begin - start + 1, 0)]
        seen.append([*begun, *_rows(block, len(begun))])
    return [_likelihood(rows, own.whole[start:]) for rows, own in zip(seen, group, strict=True)]


@dataclass(frozen=True)
class _Row:
    """The logits of one row, float32 [vocabulary], and what makes them log-probabilities."""

    logits: NDArray[np.float32]
    largest: float
    rest: float
    """log of the sum of exp of all logits less the largest, in float64."""

    @classmethod
    def of(cls, logits: NDArray[np.float32]) -> _Row:
        """Sum up a row; a row at a time, so that memory stays that of a row."""
        largest = float(logits.max())
        shifted = logits.astype(np.float64) - largest
        return cls(logits, largest, math.log(float(np.exp(shifted).sum())))

    def logprob(self, token: int) -> float:
        """Return a token's log-probability."""
        return float(self.logits[token]) - self.largest - self.rest


def _rows(logits: NDArray[np.float32], before: int) -> list[_Row]:
    """Sum up the rows of a sequence's own, behind so many of its continuation."""
    found = first_not_finite(logits)
    if found is not None:
        row, token = found
        raise NumericalError(
            f"The logit of token {token} at a continuation's token {before + row} is "
            f"{logits[row, token]}; inspect the model's weights."
        )
    return [_Row.of(row) for row in logits]


def _likelihood(rows: Sequence[_Row], targets: Sequence[int]) -> Likelihood:
    """Sum up a continuation's tokens, in float64."""
    pairs = list(zip(rows, targets, strict=True))
    return Likelihood(
        logprob=sum(row.logprob(target) for row, target in pairs),
        tokens=len(pairs),
        greedy=all(int(row.logits.argmax()) == target for row, target in pairs),
    )
