"""Scored positions summed up: each figure with its interval over documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.text import Documents
from fewbit.evaluate.score import Scores
from fewbit.evaluate.statistics import (
    exponential,
    proportion_interval,
    quantile_intervals,
    ratio_interval,
    resample,
)
from fewbit.records.interval import Interval
from fewbit.records.language import Divergence, DocumentScore, HistogramBin, Perplexity

_EDGES = (0.0, *(10.0 ** (half / 2) for half in range(-12, 3)))
"""Half decades from 1e-6 to 10 nats, with all that is smaller in the first bin."""


@dataclass(frozen=True)
class Summary:
    """What was measured, ready for the record."""

    divergence: Divergence
    reverse_divergence: Divergence
    histogram: tuple[HistogramBin, ...]
    perplexity: Perplexity
    agreement: Interval
    documents: tuple[DocumentScore, ...]


def summarize(scores: Scores, documents: Documents, level: float) -> Summary:
    """Return every figure; one bootstrap serves them all, so their intervals go together."""
    found, owners = np.unique(scores.owners, return_inverse=True)
    sums = _Sums(owners, len(found), resample(len(found)), level)
    c = scores.comparison
    difference = exponential(sums.mean(c.candidate_loss - c.source_loss))
    return Summary(
        divergence=sums.divergence(c.divergence),
        reverse_divergence=sums.divergence(c.reverse_divergence),
        histogram=histogram(c.divergence),
        perplexity=Perplexity(
            source=exponential(sums.mean(c.source_loss)),
            candidate=exponential(sums.mean(c.candidate_loss)),
            ratio=difference,
        ),
        agreement=proportion_interval(
            sums.per_document(c.agreement.astype(np.float64)), sums.positions, sums.draws, level
        ),
        documents=_document_scores(scores, sums, documents, found),
    )


def histogram(values: NDArray[np.float64]) -> tuple[HistogramBin, ...]:
    """Count divergences in half decades; every value falls in one bin."""
    bins = np.searchsorted(np.array(_EDGES), values, side="right") - 1
    counts = np.bincount(bins, minlength=len(_EDGES))
    highs = (*_EDGES[1:], None)
    return tuple(
        HistogramBin(low=low, high=high, count=int(count))
        for low, high, count in zip(_EDGES, highs, counts, strict=True)
    )


class _Sums:
    """Sums over documents of figures given per position, and their intervals."""

    def __init__(
        self,
        owners: NDArray[np.intp],
        documents: int,
        draws: NDArray[np.float64],
        level: float,
    ) -> None:
        self._owners, self._documents, self._level = owners, documents, level
        self.draws = draws
        self.positions = self.per_document(np.ones(len(owners)))

    def per_document(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return float64 [documents]."""
        sums = np.bincount(self._owners, weights=values, minlength=self._documents)
        return sums.astype(np.float64)

    def mean(self, values: NDArray[np.float64]) -> Interval:
        """Return the mean over positions."""
        return ratio_interval(self.per_document(values), self.positions, self.draws, self._level)

    def divergence(self, values: NDArray[np.float64]) -> Divergence:
        """Return all that is told of a divergence."""
        median, p99 = quantile_intervals(values, self._owners, (0.5, 0.99), self.draws, self._level)
        return Divergence(
            mean=self.mean(values), median=median, p99=p99, maximum=float(values.max())
        )


def _document_scores(
    scores: Scores, sums: _Sums, documents: Documents, found: NDArray[np.intp]
) -> tuple[DocumentScore, ...]:
    c = scores.comparison
    columns = [
        sums.per_document(np.asarray(values, np.float64)).tolist()
        for values in (
            c.divergence,
            c.reverse_divergence,
            c.source_loss,
            c.candidate_loss,
            c.agreement,
            np.ones(len(c.divergence)),
        )
    ]
    rows = zip((documents.documents[i] for i in found.tolist()), *columns, strict=True)
    return tuple(
        DocumentScore(
            name=document.name,
            sha256=document.sha256,
            positions=int(positions),
            divergence=divergence,
            reverse_divergence=reverse,
            source_loss=source,
            candidate_loss=candidate,
            agreements=int(agreements),
        )
        for document, divergence, reverse, source, candidate, agreements, positions in rows
    )
