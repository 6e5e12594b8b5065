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
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

_BLOCK = 8192
"""Elements of a dot product given to BLAS at once. Above 10,000 OpenBLAS wakes its own threads,
which on a busy machine cost 10 times what they save."""


DTYPES: dict[str, type[np.generic]] = {"source_first": np.int32, "candidate_first": np.int32}
"""Types of a comparison's fields that are not float64."""


@dataclass(frozen=True)
class Comparison:
    """One entry per position; all arrays have the same length.

    `divergence` is KL(source || candidate) and `reverse_divergence` KL(candidate || source), both
    float64 in nats. The losses are the negative log-likelihoods of the token that follows, float64
    in nats.

    `source_first` and `candidate_first` are the ids (int32) that each ranks first, ties to the
    lower id, and `source_chance` and `candidate_chance` their probabilities (float64). `lead` is
    by how many nats the source prefers its first token to its second, and `candidate_lead` by how
    many the candidate prefers the first of the same two tokens (float64; negative where it prefers
    the other). Of a vocabulary of one token both are infinite.
    """

    divergence: NDArray[np.float64]
    reverse_divergence: NDArray[np.float64]
    source_loss: NDArray[np.float64]
    candidate_loss: NDArray[np.float64]
    source_first: NDArray[np.int32]
    candidate_first: NDArray[np.int32]
    source_chance: NDArray[np.float64]
    candidate_chance: NDArray[np.float64]
    lead: NDArray[np.float64]
    candidate_lead: NDArray[np.float64]

    @property
    def agreement(self) -> NDArray[np.bool_]:
        """Where both rank the same token first."""
        return np.asarray(self.source_first == self.candidate_first)


def compare(
    source: NDArray[np.float32], candidate: NDArray[np.float32], targets: NDArray[np.int32]
) -> Comparison:
    """Compare finite logits row by row.

    Args:
        source: float32 [positions, vocabulary].
        candidate: float32 of the same shape.
        targets: int32 [positions], the tokens that follow.
    """
    return compare_all(source, (candidate,), targets)[0]


def compare_all(
    source: NDArray[np.float32],
    others: Sequence[NDArray[np.float32]],
    targets: NDArray[np.int32],
) -> tuple[Comparison, ...]:
    """Compare several models with one source, whose softmax is taken once; as `compare`."""
    assert all(other.shape == source.shape for other in others) and len(targets) == len(source)
    rows = _Rows(source.shape[1])
    found: list[list[_Row]] = [[] for _ in others]
    for i, target in enumerate(targets.tolist()):
        rows.take_source(source[i])
        for column, other in zip(found, others, strict=True):
            column.append(rows.against(other[i], target))
    return tuple(map(_comparison, found))


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


_Row = tuple[float, ...]


def _comparison(rows: list[_Row]) -> Comparison:
    names = [field.name for field in fields(Comparison)]
    columns = np.array(rows, np.float64).reshape(len(rows), len(names)).T
    return Comparison(
        *(c.astype(DTYPES.get(n, np.float64)) for n, c in zip(names, columns, strict=True))
    )


class _Rows:
    """Rows of one vocabulary; its buffers are used again and stay zero past the vocabulary."""

    def __init__(self, vocabulary: int) -> None:
        blocks = (-(-vocabulary // _BLOCK), _BLOCK)
        self._source, self._other = (_Shifted(vocabulary, blocks) for _ in range(2))
        self._difference_blocks = np.zeros(blocks)
        self._difference = self._difference_blocks.reshape(-1)[:vocabulary]
        self._second = 0

    def take_source(self, logits: NDArray[np.float32]) -> None:
        """Take the row that the others are compared with."""
        self._source.take(logits)
        self._second = _second(logits, self._source.first)

    def against(self, logits: NDArray[np.float32], target: int) -> _Row:
        """Return the fields of a `Comparison` of one position."""
        a, b = self._source, self._other
        b.take(logits)
        np.subtract(a.shifted, b.shifted, out=self._difference)
        mean_a, mean_b = a.mean(self._difference_blocks), b.mean(self._difference_blocks)
        return (
            max(0.0, mean_a - a.log_total + b.log_total),
            max(0.0, -mean_b - b.log_total + a.log_total),
            a.log_total - float(a.shifted[target]),
            b.log_total - float(b.shifted[target]),
            a.first,
            b.first,
            math.exp(-a.log_total),
            math.exp(-b.log_total),
            *(self._lead(shifted) for shifted in (a.shifted, b.shifted)),
        )

    def _lead(self, shifted: NDArray[np.float64]) -> float:
        if len(shifted) == 1:
            return math.inf
        return float(shifted[self._source.first] - shifted[self._second])


class _Shifted:
    """One model's row less its maximum, and its softmax's weights."""

    def __init__(self, vocabulary: int, blocks: tuple[int, int]) -> None:
        self._weight_blocks = np.zeros(blocks)
        self._weights = self._weight_blocks.reshape(-1)[:vocabulary]
        self.shifted = np.empty(vocabulary)
        self.first, self._total, self.log_total = 0, 1.0, 0.0

    def take(self, logits: NDArray[np.float32]) -> None:
        """Take a row: its first token, its logits less the first's, and log Z of those."""
        self.first = int(logits.argmax())
        np.subtract(logits, logits[self.first], out=self.shifted, dtype=np.float64)
        np.exp(self.shifted, out=self._weights)
        self._total = float(self._weights.sum())
        self.log_total = math.log(self._total)

    def mean(self, blocks: NDArray[np.float64]) -> float:
        """Return the mean of values under the row's softmax."""
        return float(np.vecdot(self._weight_blocks, blocks).sum()) / self._total


def _second(logits: NDArray[np.float32], first: int) -> int:
    """Return the token ranked second, ties to the lower id; the first where there is one alone."""
    before, after = logits[:first], logits[first + 1 :]
    places = [int(before.argmax())] if len(before) else []
    places += [first + 1 + int(after.argmax())] if len(after) else []
    return max(places, key=lambda place: (float(logits[place]), -place), default=first)
