"""Which tokens a text has most, for a draft whose head keeps only those."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.errors import UsageError


def token_counts(texts: Iterable[ArrayLike], vocabulary: int) -> NDArray[np.int64]:
    """Return how often each id below `vocabulary` occurs, int64 [vocabulary].

    Args:
        texts: int [n] each; ids from `vocabulary` on are not counted.
        vocabulary: number of ids.
    """
    counts = np.zeros(vocabulary, np.int64)
    for tokens in texts:
        ids = np.asarray(tokens, np.int64)
        counts += np.bincount(ids[ids < vocabulary], minlength=vocabulary)
    return counts


def frequent_tokens(
    counts: NDArray[np.int64], size: int, always: Iterable[int] = ()
) -> NDArray[np.int32]:
    """Return the most frequent ids in ascending order, int32 [size].

    Of equally frequent ones the lower ids come first: tokenizers are made by merging what is most
    frequent first, so a low id is itself a sign of a frequent token, the only one for those that
    the text does not have.

    Args:
        counts: int64 [vocabulary].
        size: how many ids.
        always: ids that are among them whatever their counts.

    Raises:
        UsageError: fewer are wanted than must be there, or more than there are.
    """
    kept = np.unique(np.fromiter(always, np.int64))
    if not max(len(kept), 1) <= size <= len(counts):
        raise UsageError(
            f"A head of {size:,} tokens is asked for; give {max(len(kept), 1):,} to "
            f"{len(counts):,} (the vocabulary, of which {len(kept):,} special tokens always stay)."
        )
    order = np.argsort(-counts, kind="stable")
    others = order[~np.isin(order, kept)]
    return np.sort(np.concatenate([kept, others[: size - len(kept)]])).astype(np.int32)


def coverage(counts: NDArray[np.int64], kept: NDArray[np.int32]) -> float:
    """Return the share of the counted tokens that are among those kept; 1 of none."""
    total = int(counts.sum())
    return float(counts[kept].sum() / total) if total else 1.0
