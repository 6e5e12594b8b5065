"""Answers behind long texts, and divergence along a document, summed up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fewbit.calibrate.text import document
from fewbit.evaluate.arms import Role
from fewbit.evaluate.language.divergence import Comparison
from fewbit.evaluate.language.passages import Passage
from fewbit.evaluate.language.positions import Figures, Positions
from fewbit.evaluate.long_context.haystack import Kind
from fewbit.evaluate.long_context.recall import Asked
from fewbit.records.drawn import Band, Curve, Example
from fewbit.records.long_context import LongContextDetails, Recalled, RecallRow
from fewbit.records.measurement import Item, Measure, Slice

AXIS = "long-context"

_EXAMPLES = 12

_NEAR = 512
"""Tokens that the axis of language looks at; the slice of divergence is of what lies beyond, or of
the second half of a shorter document."""

_TITLES = {
    Kind.NEEDLE: "facts hidden in a long text, not found",
    Kind.MULTI_NEEDLE: "several facts hidden in a long text, not found in order",
    Kind.KEY_VALUE: "lines of a long list, not found",
}


@dataclass(frozen=True)
class Recalls:
    """All questions, and how each arm answered them, by their names."""

    asked: tuple[Asked, ...]
    answers: Mapping[Role, Mapping[str, Recalled]]
    judged: str
    longest: int

    def of(self, role: Role, one: Asked) -> Recalled:
        """Return how an arm answered a question."""
        return self.answers[role][one.name]

    def kind(self, kind: Kind) -> list[Asked]:
        """Return the questions of a kind."""
        return [one for one in self.asked if one.question.kind is kind]


def possible_slices() -> Mapping[str, Measure]:
    """Return every slice that there can be, by name."""
    failures = {f"{AXIS}/{kind.value}": Measure.PROPORTION for kind in Kind}
    return {**failures, f"{AXIS}/recall": Measure.MEAN, f"{AXIS}/kl": Measure.MEAN}


def recalled(recalls: Recalls) -> tuple[tuple[Slice, ...], LongContextDetails]:
    """Return what may be judged of the answers, and what a reader may look up."""
    slices = [_failures(recalls, kind) for kind in Kind if recalls.kind(kind)]
    losses = _losses(recalls)
    return (
        tuple(slices if losses is None else [*slices, losses]),
        LongContextDetails(
            judged=recalls.judged,
            longest=recalls.longest,
            recalls=tuple(_rows(recalls)),
            examples=tuple(_examples(recalls))[:_EXAMPLES],
        ),
    )


def _failures(recalls: Recalls, kind: Kind) -> Slice:
    return Slice(
        name=f"{AXIS}/{kind.value}",
        axis=AXIS,
        measure=Measure.PROPORTION,
        unit="",
        title=_TITLES[kind],
        items=tuple(
            _item(one, {r: float(recalls.of(r, one).failed) for r in recalls.answers})
            for one in recalls.kind(kind)
        ),
    )


def _losses(recalls: Recalls) -> Slice | None:
    """Return the slice that sees a weaker preference before it becomes a failure."""
    items = []
    for one in recalls.asked:
        found = {role: recalls.of(role, one).loss for role in recalls.answers}
        known = {role: loss for role, loss in found.items() if loss is not None}
        if len(known) == len(found):
            items.append(_item(one, known))
    if not items:
        return None
    return Slice(
        name=f"{AXIS}/recall",
        axis=AXIS,
        measure=Measure.MEAN,
        unit="nats",
        title="loss of the right one among four answers behind a long text",
        items=tuple(items),
    )


def _item(one: Asked, values: Mapping[Role, float]) -> Item:
    """Return a question as an item; those of one text go together."""
    return Item(
        name=one.question.name,
        cluster=one.haystack.name,
        source=values[Role.SOURCE],
        candidate=values[Role.CANDIDATE],
        floor=values.get(Role.FLOOR),
    )


def _rows(recalls: Recalls) -> Iterator[RecallRow]:
    for kind in Kind:
        lengths = sorted({one.haystack.length for one in recalls.kind(kind)})
        for length in lengths:
            asked = [one for one in recalls.kind(kind) if one.haystack.length == length]
            failed = {
                role: sum(recalls.of(role, one).failed for one in asked) for role in recalls.answers
            }
            yield RecallRow(
                kind=kind.value,
                tokens=length,
                asked=len(asked),
                source=failed[Role.SOURCE],
                floor=failed.get(Role.FLOOR),
                candidate=failed[Role.CANDIDATE],
            )


def _examples(recalls: Recalls) -> Iterator[Example]:
    """Yield where arms differ; what the candidate lost comes before what it won."""
    pairs = [
        (one, recalls.of(Role.SOURCE, one), recalls.of(Role.CANDIDATE, one))
        for one in recalls.asked
    ]
    pairs.sort(key=lambda pair: pair[1].failed - pair[2].failed)
    for one, source, candidate in pairs:
        if source.failed != candidate.failed:
            yield Example(
                name=one.question.name,
                slice=f"{AXIS}/{one.question.kind.value}",
                asked=f"[{one.haystack.length} tokens, the fact at {one.question.depth:.0%}] "
                f"{one.question.asked}",
                source=source.said,
                candidate=candidate.said,
                source_says=_judged(source),
                candidate_says=_judged(candidate),
                expected=one.question.answer.strip(),
                harm=float(candidate.failed) - float(source.failed),
            )


def _judged(answer: Recalled) -> str:
    return "wrong" if answer.failed else "right"


@dataclass(frozen=True)
class Along:
    """The divergence along a document."""

    slice: Slice
    curve: Curve


def along_a_document(
    passage: Passage,
    owners: Sequence[str],
    candidate: Comparison,
    floor: Comparison | None,
    level: float,
) -> Along:
    """Sum up the comparison of a document that was put together from passages of others.

    Args:
        passage: the document.
        owners: of each prediction, the name of the document whose passage it predicts.
        candidate: of each prediction.
        floor: likewise, where there is one.
        level: confidence of the intervals.
    """
    positions = _positions(passage, owners, candidate, floor)
    start = _NEAR if len(passage.tokens) > 2 * _NEAR else len(passage.tokens) // 2
    beyond = Figures(positions, positions.places >= start, level)
    return Along(
        Slice(
            name=f"{AXIS}/kl",
            axis=AXIS,
            measure=Measure.MEAN,
            unit="nats",
            title=f"KL divergence of the candidate from the source beyond {start} tokens",
            items=beyond.items(
                np.zeros(len(positions.places)),
                candidate.divergence,
                None if floor is None else floor.divergence,
            ),
        ),
        Curve(
            title="Divergence by position",
            across="position, tokens",
            unit="nats",
            bands=tuple(_bands(positions, level)),
            logarithmic=True,
        ),
    )


def _positions(
    passage: Passage, owners: Sequence[str], candidate: Comparison, floor: Comparison | None
) -> Positions:
    names = list(dict.fromkeys(owners))
    return Positions(
        documents=tuple(document(name, name) for name in names),
        domains=(passage.domain,) * len(names),
        owners=np.array([names.index(owner) for owner in owners], np.intp),
        places=passage.positions,
        passages=np.zeros(len(owners), np.intp),
        counted=passage.counted,
        whole=np.ones(len(owners), np.bool_),
        marks={},
        candidate=candidate,
        floor=floor,
    )


def _bands(positions: Positions, level: float) -> Iterator[Band]:
    """Yield bands whose ends are powers of two from 64 on, the last at the document's end."""
    end = int(positions.places.max()) + 1
    edges = [0, *(2**i for i in range(6, end.bit_length()) if 2**i < end), end]
    for low, high in pairwise(edges):
        inside = np.asarray((positions.places >= low) & (positions.places < high))
        floor = positions.floor
        yield Band(
            low=float(low),
            high=float(high),
            count=int(inside.sum()),
            figure=Figures(positions, inside, level).mean(positions.candidate.divergence),
            floor=None if floor is None else float(floor.divergence[inside].mean()),
        )
