"""Measures what a target's steps and a draft's take, before anything is served.

A clock of the same run would do (`CostModel` learns from it), but not before the first drafts: to
know that eight rows cost hardly more than one, eight rows have to be run. So it is tried, once, on
texts of no meaning; the store's pages are written before anybody reads them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fewbit.engine.served import Served
from fewbit.records.costs import CostTable, DraftCosts
from fewbit.runtime.step import PAGE, Span, StepInput
from fewbit.sampling import SamplingParams, TokenSampler
from fewbit.speculate.combined import asked_parts
from fewbit.speculate.costs import Shape
from fewbit.speculate.drafts import Draft, DraftQuery, watching
from fewbit.speculate.verifier import verifier_for

SECONDS = 1.0
"""Measuring goes on for so long, but every point is measured once."""

ROUNDS = 8
"""More of them show nothing new."""

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Rows of one sequence that are scored at once."""

SEQUENCES = (4, 16)
"""Batches that are measured where the engine may serve so many; each of 1, 2, 4 and 8 rows."""

_SHORT, _LONG = 16, 1024
"""Positions before the rows; the longer one is cut to what the store holds."""

_DRAFTED = 4
_CALLS = 3
_GREEDY = SamplingParams(temperature=0)

Clock = Callable[[], float]


@dataclass(frozen=True)
class _Point:
    """So many sequences of so many rows each, behind so many positions."""

    sequences: int
    rows: int
    position: int

    @property
    def shape(self) -> Shape:
        context = self.sequences * self.position
        return Shape(self.sequences * self.rows, context, context * self.rows)


def measure_costs(
    served: Served, draft: Draft | None, *, sequences: int, clock: Clock = time.perf_counter
) -> CostTable:
    """Measure steps of the target, and a draft's calls.

    Nothing may be in the store yet.

    Args:
        served: the target.
        draft: None where only the target is measured.
        sequences: the most that are served at once.
        clock: seconds.
    """
    store = _Store(served, sequences)
    rows, seconds, context_seconds, key_seconds = _measure_target(store, clock)
    table = CostTable(
        rows=rows, seconds=seconds, context_seconds=context_seconds, key_seconds=key_seconds
    )
    if draft is None or store.text_room(draft) < 2:
        return table
    parts = asked_parts(draft)
    if len(parts) > 1:
        measured = tuple(_draft_costs(store, part, clock, part.name) for part in parts)
        return replace(table, parts=measured)
    own = _draft_costs(store, draft, clock)
    return replace(
        table,
        sequences=own.sequences,
        draft_seconds=own.seconds,
        draft_fixed=own.fixed,
        draft_read=own.read,
    )


def _draft_costs(store: _Store, draft: Draft, clock: Clock, name: str = "") -> DraftCosts:
    batches = [1, *(n for n in SEQUENCES if n <= store.sequences)]
    calls = [_measure_draft(store, draft, count, clock) for count in batches]
    return DraftCosts(
        sequences=tuple(batches),
        seconds=_rising([call.token for call in calls]),
        fixed=calls[0].fixed,
        read=calls[0].read,
        draft=name,
    )


class _Store:
    """The target's store, each sequence in pages of its own."""

    def __init__(self, served: Served, sequences: int) -> None:
        self._executor = served.executor
        self._vocabulary = served.vocabulary
        self.context = min(served.context, served.executor.pages * PAGE)
        self.sequences = min(sequences, served.executor.pages)

    def points(self) -> Iterator[_Point]:
        """Yield what is measured, as far as the store has room for it."""
        longest = min(_LONG, self.context - max(ROWS))
        for rows in ROWS:
            if rows < self.context:
                yield _Point(1, rows, min(_SHORT, self.context - rows))
        if longest > 2 * _SHORT:
            yield _Point(1, 1, longest)
            yield _Point(1, 8, longest)
        for sequences in SEQUENCES:
            for rows in (1, 2, 4, 8):
                if self._fits(sequences, rows):
                    yield _Point(sequences, rows, _SHORT)

    def run(self, point: _Point) -> None:
        """Score the rows of a point."""
        count = point.sequences * point.rows
        spans = tuple(
            Span(
                i * point.rows,
                point.rows,
                point.position,
                self.pages(i, point.position + point.rows),
            )
            for i in range(point.sequences)
        )
        step = StepInput(self.tokens(count), spans, np.arange(count, dtype=np.int32))
        self._executor.step(step)

    def pages(self, sequence: int, positions: int) -> NDArray[np.int32]:
        """Return the pages of a sequence of that many positions."""
        count = -(-positions // PAGE)
        return np.arange(sequence * count, (sequence + 1) * count, dtype=np.int32)

    def tokens(self, count: int) -> NDArray[np.int32]:
        """Return ids spread over the vocabulary; which ones they are changes no time."""
        return (np.arange(count, dtype=np.int64) * 7919 % self._vocabulary).astype(np.int32)

    def text_room(self, draft: Draft) -> int:
        """Return how many tokens a draft can be given, which grow with each of its calls."""
        contexts = (part.context or PAGE for part in asked_parts(draft))
        return min(self.context, PAGE, *contexts) - _DRAFTED - 2 * _CALLS - 1

    def _fits(self, sequences: int, rows: int) -> bool:
        enough = sequences <= self.sequences and _SHORT + rows <= min(self.context, PAGE)
        return enough and sequences <= self._executor.pages


def _measure_target(
    store: _Store, clock: Clock
) -> tuple[tuple[int, ...], tuple[float, ...], float, float]:
    """Return rows, their seconds, and what a position more adds by sequence and by row."""
    points = list(store.points())
    store.run(points[0])  # touches every page of the weights
    found: dict[_Point, list[float]] = defaultdict(list)
    begun = clock()
    for _ in range(ROUNDS):
        for point in points:
            found[point].append(_seconds(clock, partial(store.run, point)))
        if clock() - begun > SECONDS:
            break
    best = {point: float(np.median(seconds)) for point, seconds in found.items()}
    short = defaultdict(list)
    for point, seconds in best.items():
        if point.position <= _SHORT:
            short[point.shape.rows].append(seconds)
    rows = tuple(sorted(short))
    return rows, _rising([float(np.mean(short[n])) for n in rows]), *_attention(best)


def _attention(best: dict[_Point, float]) -> tuple[float, float]:
    """Return what a position to look back on adds, once a sequence and for every row.

    Of one row and of eight, the difference between a long context and a short one.
    """
    slopes = {}
    for point, seconds in best.items():
        short = _Point(1, point.rows, _SHORT)
        if point.position > _SHORT and short in best:
            slopes[point.rows] = (seconds - best[short]) / (point.position - _SHORT)
    if len(slopes) < 2:
        return 0.0, 0.0
    one, many = max(slopes[1], 0.0), slopes[8]
    row = min(max((many - one) / 7, 0.0), one)
    return one - row, row


@dataclass(frozen=True)
class _Call:
    token: float
    fixed: float
    read: float


def _measure_draft(store: _Store, draft: Draft, count: int, clock: Clock) -> _Call:
    """Time a draft's calls: with a text to read, with one token more, with several to draft."""
    room = store.text_room(draft)
    texts = [store.tokens(room + i).tolist()[i:] for i in range(count)]

    def asked(length: int) -> list[DraftQuery]:
        queries = [_query(store, i, text, length) for i, text in enumerate(texts)]
        for query in queries:
            _show_states(draft, query)
        return queries

    def propose(length: int) -> float:
        queries = asked(length)
        seconds = _seconds(clock, lambda: draft.propose(queries))
        for text in texts:
            text.append(text[0])
        return seconds

    unread = sum(map(draft.pending, asked(1)))
    reading = propose(1)
    pairs = [(propose(1), propose(_DRAFTED)) for _ in range(_CALLS)]
    for i in range(count):
        draft.release(_number(i))
    one, several = (float(np.median(seconds)) for seconds in zip(*pairs, strict=True))
    # What the clock's noise makes of a call that has next to no fixed part stays a token's.
    token = max((several - one) / (_DRAFTED - 1), several / _DRAFTED / 2)
    read = max(reading - one, 0.0) / unread if unread else 0.0
    return _Call(token, max(one - token, 0.0), read)


def _query(store: _Store, i: int, text: Sequence[int], length: int) -> DraftQuery:
    return DraftQuery(
        sequence=_number(i),
        tokens=text,
        length=length,
        sampler=TokenSampler(_GREEDY, seed=0),
        verifier=verifier_for(_GREEDY),
        pages=store.pages(i, len(text) + length),
        computed=len(text) - 1,
    )


def _show_states(draft: Draft, query: DraftQuery) -> None:
    """Hand a draft the states that it wants, all zero: what they are changes no time."""
    for part in watching(draft):
        part.watch(query.sequence, 0, np.zeros((query.computed, part.width), np.float32))


def _number(i: int) -> int:
    """Return a number that no sequence of an engine has."""
    return -1 - i


def _rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return the nearest to these that never falls: more work takes no less time.

    Half way between the running maximum and, from the end, the running minimum.
    """
    least = list(accumulate(reversed(seconds), min))[::-1]
    return tuple((a + b) / 2 for a, b in zip(accumulate(seconds, max), least, strict=True))


def _seconds(clock: Clock, act: Callable[[], object]) -> float:
    begun = clock()
    act()
    return clock() - begun
