"""Every compared prediction of an evaluation in one table, and what is summed up from a part of it.

Positions of one document resemble each other, so sums are by document, and intervals resample
documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.text import Document
from fewbit.evaluate.gating.bootstrap import quantile_intervals, ratio_interval, resample
from fewbit.evaluate.language.divergence import Comparison
from fewbit.evaluate.language.passages import Passage
from fewbit.evaluate.language.protocol import Mark
from fewbit.records.interval import Interval
from fewbit.records.measurement import Item

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Positions:
    """All predictions in order; every array has one entry for each."""

    documents: tuple[Document, ...]
    domains: tuple[str, ...]
    """Of the documents."""
    owners: NDArray[np.intp]
    """Index of the document."""
    places: NDArray[np.intp]
    """Position within its sequence."""
    passages: NDArray[np.intp]
    """Index of the sequence."""
    counted: Mask
    whole: Mask
    """Of sequences that are compared from their start."""
    marks: Mapping[Mark, Mask]
    candidate: Comparison
    floor: Comparison | None

    def of_domains(self, names: Sequence[str]) -> Mask:
        """Return which counted predictions belong to documents of these domains."""
        wanted = np.array([domain in names for domain in self.domains], np.bool_)
        return np.asarray(self.counted & wanted[self.owners])


def table(
    passages: Sequence[Passage], candidate: Comparison, floor: Comparison | None
) -> Positions:
    """Return the table of sequences that were compared; comparisons hold them in order."""
    names: dict[tuple[str, str], int] = {}
    for passage in passages:
        names.setdefault((passage.domain, passage.document.sha256), len(names))
    first = {(p.domain, p.document.sha256): p for p in reversed(passages)}
    sizes = [len(passage.positions) for passage in passages]
    owners = [names[p.domain, p.document.sha256] for p in passages]
    return Positions(
        documents=tuple(first[key].document for key in names),
        domains=tuple(domain for domain, _ in names),
        owners=np.repeat(np.array(owners, np.intp), sizes),
        places=np.concatenate([passage.positions for passage in passages]),
        passages=np.repeat(np.arange(len(passages)), sizes),
        counted=np.concatenate([passage.counted for passage in passages]),
        whole=np.repeat(np.array([p.first == 0 for p in passages], np.bool_), sizes),
        marks={kind: np.concatenate([_marked(p, kind) for p in passages]) for kind in Mark},
        candidate=candidate,
        floor=floor,
    )


def _marked(passage: Passage, kind: Mark) -> Mask:
    return passage.marks.get(kind, np.zeros(len(passage.positions), np.bool_))


@dataclass(frozen=True, eq=False)
class Figures:
    """Some of the predictions, summed up by document."""

    positions: Positions
    mask: Mask
    """At least one is True."""
    level: float

    @cached_property
    def found(self) -> NDArray[np.intp]:
        """Indices of the documents that any of them belong to, ascending."""
        return np.unique(self.positions.owners[self.mask])

    @cached_property
    def owners(self) -> NDArray[np.intp]:
        """Of each prediction the place of its document in `found`."""
        return np.searchsorted(self.found, self.positions.owners[self.mask])

    @cached_property
    def counts(self) -> Values:
        """Predictions of each document."""
        return self.sums(np.ones(len(self.mask)))

    @cached_property
    def draws(self) -> Values:
        """How often each document is drawn in each resample."""
        return resample(len(self.found))

    def sums(self, values: NDArray[np.float64] | Mask) -> Values:
        """Return float64 [documents] of values given for every prediction of the table."""
        chosen = np.asarray(values[self.mask], np.float64)
        sums = np.bincount(self.owners, weights=chosen, minlength=len(self.found))
        return sums.astype(np.float64)

    def mean(self, values: NDArray[np.float64] | Mask) -> Interval:
        """Return the mean over predictions with its interval over documents."""
        return ratio_interval(self.sums(values), self.counts, self.draws, self.level)

    def quantiles(self, values: Values, quantiles: tuple[float, ...]) -> tuple[Interval, ...]:
        """Return quantiles over predictions with their intervals."""
        chosen = values[self.mask]
        return quantile_intervals(chosen, self.owners, quantiles, self.draws, self.level)

    def items(
        self, source: Values, candidate: Values | Mask, floor: Values | Mask | None
    ) -> tuple[Item, ...]:
        """Return each document's means, weighted by its predictions."""
        columns = [self.sums(values) / self.counts for values in (source, candidate)]
        floors = [None] * len(self.found) if floor is None else _list(self.sums(floor), self.counts)
        rows = zip(self.found.tolist(), self.counts.tolist(), *columns, floors, strict=True)
        documents = self.positions.documents
        return tuple(
            Item(
                name=documents[index].name,
                cluster=documents[index].name,
                weight=weight,
                source=float(s),
                candidate=float(c),
                floor=f,
            )
            for index, weight, s, c, f in rows
        )


def _list(sums: Values, counts: Values) -> list[float]:
    found: list[float] = (sums / counts).tolist()
    return found
