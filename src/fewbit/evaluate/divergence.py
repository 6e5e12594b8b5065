"""Two models' logits at the same positions, compared in float64.

Shifted by its maximum, a row is A = a - max a with log Z_a = log sum exp A, and likewise B. Then

    KL(p || q) = sum p (A - B) - log Z_a + log Z_b,        KL(q || p) in the same way.

Where the logits are equal every A - B is 0 and both logarithms cancel, so both are exactly 0.
Otherwise the rounding error is below V u max|A - B|, u = 2^-53, whatever the order of the sums:
1e-9 nats for 152,000 tokens and logits that differ by 50. A divergence is never negative, so what
rounding leaves below 0 is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

_BLOCK = 8192
"""Elements of a dot product given to BLAS at once. Above 10,000 OpenBLAS wakes its own threads,
which on a busy machine cost 10 times what they save."""


@dataclass(frozen=True)
class Comparison:
    """One entry per position; all arrays have the same length.

    `divergence` is KL(source || candidate) and `reverse_divergence` KL(candidate || source), both
    float64 in nats. The losses are the negative log-likelihoods of the token that follows, float64
    in nats. `agreement` is bool: both rank the same token first, ties to the lower id.
    """

    divergence: NDArray[np.float64]
    reverse_divergence: NDArray[np.float64]
    source_loss: NDArray[np.float64]
    candidate_loss: NDArray[np.float64]
    agreement: NDArray[np.bool_]


def compare(
    source: NDArray[np.float32], candidate: NDArray[np.float32], targets: NDArray[np.int32]
) -> Comparison:
    """Compare finite logits row by row.

    Args:
        source: float32 [positions, vocabulary].
        candidate: float32 of the same shape.
        targets: int32 [positions], the tokens that follow.
    """
    assert source.shape == candidate.shape and len(targets) == len(source)
    row = _row_comparison(source.shape[1])
    found = [row(*rows) for rows in zip(source, candidate, targets.tolist(), strict=True)]
    columns = np.array(found, np.float64).reshape(len(found), 5).T
    return Comparison(columns[0], columns[1], columns[2], columns[3], columns[4] > 0)


def concatenate(parts: list[Comparison]) -> Comparison:
    """Join comparisons of consecutive positions; at least one."""
    names = [field.name for field in fields(Comparison)]
    return Comparison(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def first_not_finite(logits: NDArray[np.float32]) -> tuple[int, int] | None:
    """Return the (row, token) of the first NaN or infinity, or None."""
    finite = np.isfinite(logits)
    if finite.all():
        return None
    row, token = np.unravel_index(int(np.argmin(finite)), finite.shape)
    return int(row), int(token)


def _row_comparison(
    vocabulary: int,
) -> Callable[[NDArray[np.float32], NDArray[np.float32], int], tuple[float, ...]]:
    """Return a function of one row that reuses its buffers; they stay zero past the vocabulary."""
    blocks = (-(-vocabulary // _BLOCK), _BLOCK)
    weight_blocks, difference_blocks = np.zeros(blocks), np.zeros(blocks)
    weights = weight_blocks.reshape(-1)[:vocabulary]
    difference = difference_blocks.reshape(-1)[:vocabulary]
    shifted_a, shifted_b = np.empty(vocabulary), np.empty(vocabulary)

    def mean_difference(shifted: NDArray[np.float64]) -> tuple[float, float]:
        """Return log Z of a shifted row, and the mean of the difference under its softmax."""
        np.exp(shifted, out=weights)
        total = float(weights.sum())
        dots = np.vecdot(weight_blocks, difference_blocks)
        return math.log(total), float(dots.sum()) / total

    def row(
        a: NDArray[np.float32], b: NDArray[np.float32], target: int
    ) -> tuple[float, float, float, float, bool]:
        best_a, best_b = int(a.argmax()), int(b.argmax())
        np.subtract(a, a[best_a], out=shifted_a, dtype=np.float64)
        np.subtract(b, b[best_b], out=shifted_b, dtype=np.float64)
        np.subtract(shifted_a, shifted_b, out=difference)
        log_a, mean_a = mean_difference(shifted_a)
        log_b, mean_b = mean_difference(shifted_b)
        return (
            max(0.0, mean_a - log_a + log_b),
            max(0.0, -mean_b - log_b + log_a),
            log_a - float(shifted_a[target]),
            log_b - float(shifted_b[target]),
            best_a == best_b,
        )

    return row
