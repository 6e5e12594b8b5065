"""Source and other models run over the same tokens in lockstep; logits live for one block only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.evaluate.language.divergence import (
    Comparison,
    compare_all,
    concatenate,
    first_not_finite,
)

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
class Models:
    """The exact model, and those that are measured against it, by what messages call them."""

    source: Scorer
    others: Mapping[str, Scorer]


@dataclass(frozen=True, eq=False)
class Run:
    """Tokens of a document, of which predictions from position `first` on are compared."""

    document: str
    tokens: NDArray[np.int32]
    """int32 [n]; the last position predicts nothing that is there."""
    first: int


@dataclass(frozen=True)
class Workers:
    """Threads that compare; the models have their own."""

    pool: ThreadPoolExecutor
    count: int


def score(models: Models, run: Run, workers: Workers) -> dict[str, Comparison]:
    """Compare models on positions `first` to n - 2 of one run.

    Returns:
        What was found of each of the others, by its name.

    Raises:
        NumericalError: a logit is NaN or infinite; names the model, document and position.
    """
    names = tuple(models.others)
    runs = [_located("source", models.source, run)]
    runs += [_located(name, models.others[name], run) for name in names]
    parts: list[tuple[Comparison, ...]] = []
    position = run.first
    for source, *others in zip(*runs, strict=True):
        targets = run.tokens[position + 1 : position + 1 + len(source)]
        parts += _compared(workers, source, others, targets)
        position += len(source)
    return dict(zip(names, map(concatenate, map(list, zip(*parts, strict=True))), strict=True))


def _located(role: str, model: Scorer, run: Run) -> Iterator[NDArray[np.float32]]:
    """Yield a model's logits of the compared positions; a message names model and document."""
    position = run.first
    try:
        for logits in model.score(run.tokens[:-1], position, BLOCK):
            _require_finite(logits, position)
            yield logits
            position += len(logits)
    except NumericalError as error:
        raise NumericalError(
            f"In document '{run.document}' the {role} gives values that are not finite "
            f"({str(error).rstrip('.')}), so no figure can be given; inspect its weights."
        ) from error


def _require_finite(logits: NDArray[np.float32], position: int) -> None:
    found = first_not_finite(logits)
    if found is not None:
        row, token = found
        raise NumericalError(
            f"the logit of token {token} at position {position + row} is {logits[row, token]}"
        )


def _compared(
    workers: Workers,
    source: NDArray[np.float32],
    others: list[NDArray[np.float32]],
    targets: NDArray[np.int32],
) -> list[tuple[Comparison, ...]]:
    """Compare a share of the rows on each thread; NumPy releases the GIL in its loops."""
    bounds = np.linspace(0, len(targets), workers.count + 1).astype(int).tolist()
    parts = [slice(start, end) for start, end in itertools.pairwise(bounds) if start < end]
    return list(
        workers.pool.map(
            lambda part: compare_all(source[part], [o[part] for o in others], targets[part]), parts
        )
    )
