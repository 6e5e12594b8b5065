"""Source and candidate run over the same windows in lockstep; logits live for one block only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.text import Documents
from fewbit.calibrate.windows import Window
from fewbit.errors import NumericalError
from fewbit.evaluate.divergence import Comparison, compare, concatenate, first_not_finite

BLOCK = 128
"""Rows of logits of each model held at a time: 25 MB with 49,152 tokens, 78 MB with 151,936."""


class Scorer(Protocol):
    """What `model.Runner` offers: the logits of one sequence, block by block."""

    def score(
        self, tokens: NDArray[np.int32], first: int, block: int
    ) -> Iterator[NDArray[np.float32]]:
        """Yield float32 [at most `block`, vocabulary] for positions `first` and on, in order."""
        ...


@dataclass(frozen=True)
class Pair:
    """The exact model, and the one that is measured against it."""

    source: Scorer
    candidate: Scorer


@dataclass(frozen=True)
class Scores:
    """Every scored position: the comparison there, and which document it belongs to."""

    comparison: Comparison
    owners: NDArray[np.intp]


def score(
    pair: Pair,
    documents: Documents,
    windows: Sequence[Window],
    *,
    threads: int = 1,
    progress: Callable[[], None] = lambda: None,
) -> Scores:
    """Compare two models on the second half of every window.

    In a window of n tokens, positions n // 2 to n - 2 are scored: the first half is context, and
    the last position predicts nothing that is there.

    Args:
        pair: the models.
        documents: for the names in messages.
        windows: at least one, each of at least four tokens.
        threads: for the comparison; the models have their own.
        progress: called after each window.

    Raises:
        NumericalError: a logit is NaN or infinite; names the model, document and position.
    """
    parts: list[Comparison] = []
    owners: list[NDArray[np.intp]] = []
    with ThreadPoolExecutor(threads) as pool:
        for window in windows:
            document = documents.documents[window.document]
            found = list(_compared(pair, window.tokens, document.name, _Workers(pool, threads)))
            positions = sum(len(part.agreement) for part in found)
            parts += found
            owners.append(np.full(positions, window.document, np.intp))
            progress()
    return Scores(concatenate(parts), np.concatenate(owners))


def join(parts: Sequence[Scores]) -> Scores:
    """Return the positions of consecutive runs together; at least one."""
    comparison = concatenate([part.comparison for part in parts])
    return Scores(comparison, np.concatenate([part.owners for part in parts]))


@dataclass(frozen=True)
class _Workers:
    pool: ThreadPoolExecutor
    count: int


def _compared(
    pair: Pair, tokens: NDArray[np.int32], document: str, workers: _Workers
) -> Iterator[Comparison]:
    """Run one window through both models and compare block by block."""
    first = len(tokens) // 2
    blocks = zip(
        _located("source", pair.source, tokens, document),
        _located("candidate", pair.candidate, tokens, document),
        strict=True,
    )
    for source, candidate in blocks:
        targets = tokens[first + 1 : first + 1 + len(source)]
        yield _compare_on(workers, source, candidate, targets)
        first += len(source)


def _located(
    role: str, model: Scorer, tokens: NDArray[np.int32], document: str
) -> Iterator[NDArray[np.float32]]:
    """Yield a model's logits of the scored positions; a message names model and document."""
    position = len(tokens) // 2
    try:
        for logits in model.score(tokens[:-1], position, BLOCK):
            _require_finite(logits, position)
            yield logits
            position += len(logits)
    except NumericalError as error:
        raise NumericalError(
            f"In document '{document}' the {role} gives values that are not finite "
            f"({str(error).rstrip('.')}), so no figure can be given; inspect its weights."
        ) from error


def _require_finite(logits: NDArray[np.float32], position: int) -> None:
    found = first_not_finite(logits)
    if found is not None:
        row, token = found
        raise NumericalError(
            f"the logit of token {token} at position {position + row} is {logits[row, token]}"
        )


def _compare_on(
    workers: _Workers,
    source: NDArray[np.float32],
    candidate: NDArray[np.float32],
    targets: NDArray[np.int32],
) -> Comparison:
    """Compare a share of the rows on each thread; NumPy releases the GIL in its loops."""
    bounds = np.linspace(0, len(targets), workers.count + 1).astype(int).tolist()
    parts = [slice(start, end) for start, end in itertools.pairwise(bounds) if start < end]
    compared = workers.pool.map(lambda p: compare(source[p], candidate[p], targets[p]), parts)
    return concatenate(list(compared))
