"""What runs in a step: decoding first, then prompts in chunks, within rows and pages.

Requests are served in order of arrival. When pages run out, the latest one is set back: it gives
its pages up, waits, and is computed again later, to the same bits (row invariance).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fewbit.cache.pages import PageAllocator, PageTable
from fewbit.cache.prefix import KeptPrefix
from fewbit.engine.request import Generation
from fewbit.errors import UsageError
from fewbit.model.runner import Piece, step_of
from fewbit.runtime.step import StepInput


@dataclass(frozen=True)
class Limits:
    """Bounds of the engine.

    `rows` bounds a step (its memory and the wait of others while a prompt runs); `sequences` bounds
    how many are served at once; `keep_prefix` keeps the last finished sequence for a next request
    that continues it.

    Raises:
        UsageError: a bound below 1, or fewer rows than sequences.
    """

    rows: int = 512
    sequences: int = 64
    keep_prefix: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.sequences <= self.rows:
            raise UsageError(
                f"limits of {self.sequences} sequences and {self.rows} rows cannot be; every "
                "sequence needs a row, so give 1 <= sequences <= rows."
            )


@dataclass(frozen=True)
class Work:
    """One sequence's rows in a step: `count` tokens from `generation.computed` on, then a draft.

    `row` is the first row of the logits that is its own; None where none is wanted yet.
    """

    generation: Generation
    count: int
    draft: tuple[int, ...]
    row: int | None
    decodes: bool
    """Whether this continues a text rather than reads a prompt."""


@dataclass(frozen=True)
class Plan:
    """A step, and whose rows are whose."""

    input: StepInput | None
    """None where nothing can run."""
    work: tuple[Work, ...]


class Scheduler:
    """Holds the generations that wait and those that run, and plans each step."""

    def __init__(self, pages: int, limits: Limits) -> None:
        self.limits = limits
        self._allocator = PageAllocator(pages)
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._kept = KeptPrefix()

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._running)

    def table(self) -> PageTable:
        """Return an empty page table for a new generation."""
        return PageTable(self._allocator)

    def add(self, generation: Generation) -> None:
        """Queue a generation."""
        self._waiting.append(generation)

    def find(self, number: int) -> Generation | None:
        """Return the generation that waits or runs under this number."""
        everyone = (*self._running, *self._waiting)
        return next((g for g in everyone if g.number == number), None)

    def remove(self, generation: Generation) -> None:
        """Take a generation out; its pages become free, or a prefix kept for the next."""
        if generation in self._running:
            self._running.remove(generation)
        else:
            self._waiting.remove(generation)
        if self.limits.keep_prefix and generation.computed:
            self._kept.keep(generation.tokens[: generation.computed], generation.table)
        else:
            generation.table.roll_back(0)

    def admit(self, now: float) -> None:
        """Move waiting generations to running while there is room for them."""
        while self._waiting and len(self._running) < self.limits.sequences:
            generation = self._waiting[0]
            self._share_prefix(generation)
            if not self._has_room(generation):
                _empty(generation)
                return
            self._running.append(self._waiting.popleft())
            if generation.meter.started is None:
                generation.meter.started = now

    def decoding(self) -> list[Generation]:
        """Return the running generations that only have their last token to run."""
        return [g for g in self._running if g.decoding]

    def plan(self, drafts: Mapping[int, tuple[int, ...]]) -> Plan:
        """Return the next step.

        Args:
            drafts: by generation number; dropped where rows or pages are short.
        """
        chosen: dict[Generation, tuple[int, tuple[int, ...]]] = {}
        rows_left = self.limits.rows - len(self.decoding())
        draft_rows = rows_left // 2  # the rest is for prompts, which drafts must not starve
        for generation in self.decoding():
            draft = drafts.get(generation.number, ())[:draft_rows]
            if self._make_room(generation, 1, draft, chosen):
                chosen[generation] = (1, draft if self._fits(generation, 1, draft) else ())
                draft_rows -= len(chosen[generation][1])
                rows_left -= len(chosen[generation][1])
        for generation in [g for g in self._running if not g.decoding]:
            count = min(generation.pending, rows_left)
            if count and self._make_room(generation, count, (), chosen):
                chosen[generation] = (count, ())
                rows_left -= count
        return _plan(chosen)

    def _share_prefix(self, generation: Generation) -> None:
        if generation.computed == 0 and (found := self._kept.take(generation.tokens)):
            generation.computed, generation.table = found
            generation.cached = min(generation.computed, len(generation.request.prompt))

    def _has_room(self, generation: Generation) -> bool:
        """Whether the pages of all its tokens are free; a lone generation always finds room."""
        needed = len(generation.tokens)
        if not generation.table.can_grow(needed):
            self._kept.drop()
        return generation.table.can_grow(needed) or not self._running

    def _fits(self, generation: Generation, count: int, draft: tuple[int, ...]) -> bool:
        return generation.table.can_grow(generation.computed + count + len(draft))

    def _make_room(
        self,
        generation: Generation,
        count: int,
        draft: tuple[int, ...],
        chosen: dict[Generation, tuple[int, tuple[int, ...]]],
    ) -> bool:
        """Hold the pages for a generation's rows, with its draft if that fits as it is.

        Sets the latest arrivals back until the rows fit; returns False when that reached
        `generation` itself.
        """
        if generation not in self._running:
            return False
        if not self._fits(generation, count, draft):
            self._kept.drop()
        if self._fits(generation, count, draft):
            generation.table.grow(generation.computed + count + len(draft))
            return True
        while not self._fits(generation, count, ()):
            last = self._running[-1]
            self._set_back(last)
            chosen.pop(last, None)
            if last is generation:
                return False
        generation.table.grow(generation.computed + count)
        return True

    def _set_back(self, generation: Generation) -> None:
        self._running.remove(generation)
        _empty(generation)
        self._waiting.appendleft(generation)


def _empty(generation: Generation) -> None:
    """Give all pages back; what they held is computed again."""
    generation.table.roll_back(0)
    generation.computed = 0
    if generation.meter.started is None:
        generation.cached = 0


def _plan(chosen: Mapping[Generation, tuple[int, tuple[int, ...]]]) -> Plan:
    pieces: list[Piece] = []
    work: list[Work] = []
    logits = 0
    for generation, (count, draft) in chosen.items():
        begin = generation.computed
        tokens = [*generation.tokens[begin : begin + count], *draft]
        complete = count == generation.pending
        wanted = np.arange(count - 1 if complete else len(tokens), len(tokens), dtype=np.int32)
        pieces.append(Piece(np.array(tokens, np.int32), begin, generation.table.array, wanted))
        decodes = generation.decoding and generation.generated > 0
        work.append(Work(generation, count, draft, logits if complete else None, decodes))
        logits += len(wanted)
    return Plan(step_of(pieces) if pieces else None, tuple(work))
