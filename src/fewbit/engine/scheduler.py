"""What runs in a step: decoding first, then prompts in chunks, within rows, pages and the stall.

Requests are served in order of arrival. One is admitted when the pages that it and the running ones
claim are free: those of all their tokens and, where they may grow that far, one page more each.
When pages run out all the same, the latest arrival is set back: it lets its pages go, waits, and
is computed again later, to the same bits (row invariance), from what of them nobody wrote over.

Why everything ends: `_running` and then `_waiting` are in order of arrival, always. The first
running request is never set back, since alone it fits (`Engine.add` refuses what does not), and it
gets a row in every step: decoding sequences always run, and `sequences <= rows` leaves a prompt at
least one. So it reaches its end, and then the next is first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fewbit.cache.pages import Fork, PagePool, pages_for
from fewbit.engine.pace import shares
from fewbit.engine.request import Generation
from fewbit.errors import UsageError
from fewbit.runtime.step import PAGE, Span, StepInput
from fewbit.sampling import Branch, tree_rows
from fewbit.speculate.drafts import Proposal

UNHURRIED = 1e6
"""A stall for work whose tokens nobody waits for: prompts take as few steps as rows allow."""


@dataclass(frozen=True)
class Limits:
    """Bounds of the engine.

    `rows` bounds a step and so its memory; `sequences` how many are served at once; `stall` how
    long, in seconds, a step is expected to take at most while it reads prompts beside sequences
    that decode.

    Raises:
        UsageError: a bound below 1, fewer rows than sequences, or no time at all.
    """

    rows: int = 512
    sequences: int = 64
    stall: float = 0.1

    def __post_init__(self) -> None:
        if not 1 <= self.sequences <= self.rows:
            raise UsageError(
                f"limits of {self.sequences} sequences and {self.rows} rows cannot be; every "
                "sequence needs a row, so give 1 <= sequences <= rows."
            )
        if not self.stall > 0:
            raise UsageError(f"a stall of {self.stall} s cannot be; give a time above 0.")


class Work(NamedTuple):
    """One sequence's rows in a step: `taken` tokens from `generation.computed` on, then a draft.

    The rows of the draft's branches come last, each branch in pages of a fork. `row` is the first
    row of the logits that is its own; None where none is wanted yet.
    """

    generation: Generation
    taken: int
    draft: tuple[int, ...]
    row: int | None
    decodes: bool
    """Whether this continues a text rather than reads a prompt."""
    start: int = 0
    """The first row of the step that is its own."""
    branches: tuple[Branch, ...] = ()
    forks: tuple[Fork, ...] = ()
    """The pages of each branch."""
    cut: int = 0
    """Tokens of the drafted chain for which no page, or no row of the step, was free."""
    left_out: int = 0
    """Branches for which none was free."""

    @property
    def drafted(self) -> int:
        """How many rows are of drafted tokens."""
        return tree_rows(self.draft, self.branches)

    def path(self, branch: int | None) -> list[int]:
        """Return the rows of the step on the way to the end of the draft, or of a branch."""
        if branch is None:
            return list(range(self.start, self.start + self.taken + len(self.draft)))
        depth, tokens = self.branches[branch]
        first = self.start + self.taken + tree_rows(self.draft, self.branches[:branch])
        return [
            *range(self.start, self.start + self.taken + depth),
            *range(first, first + len(tokens)),
        ]


class Plan(NamedTuple):
    """A step, and whose rows are whose."""

    input: StepInput | None
    """None where nothing can run."""
    work: tuple[Work, ...]


class _Rows(NamedTuple):
    """What a generation runs in a step."""

    taken: int
    draft: tuple[int, ...] = ()
    branches: tuple[Branch, ...] = ()
    forks: tuple[Fork, ...] = ()
    cut: int = 0
    """Tokens of its draft's chain that are not in it."""
    drafted: int = 0
    """Branches that its draft has."""


_NO_DRAFT = Proposal(())


class Scheduler:
    """Holds the generations that wait and those that run, and plans each step."""

    def __init__(self, pool: PagePool, limits: Limits) -> None:
        self.limits = limits
        self.pool = pool
        self.preemptions = 0
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._everyone: dict[int, Generation] = {}

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._everyone)

    def add(self, generation: Generation) -> None:
        """Queue a generation; another thread may be planning or running a step."""
        self._everyone[generation.number] = generation
        self._waiting.append(generation)

    def find(self, number: int) -> Generation | None:
        """Return the generation that waits or runs under this number."""
        return self._everyone.get(number)

    def remove(self, generation: Generation) -> None:
        """Take a generation out; nobody holds its pages any more."""
        if generation in self._running:
            self._running.remove(generation)
        else:
            self._waiting.remove(generation)
        del self._everyone[generation.number]
        generation.table.roll_back(0)

    def admit(self, now: float) -> None:
        """Move waiting generations to running while there is room for them."""
        while self._waiting and len(self._running) < self.limits.sequences:
            generation = self._waiting[0]
            if self._running and not self._has_room(generation):
                return
            self._running.append(self._waiting.popleft())
            generation.reuse()
            if generation.meter.started is None:
                generation.meter.started = now

    def decoding(self) -> list[Generation]:
        """Return the running generations that only have their last token to run."""
        return [g for g in self._running if g.decoding]

    def unread(self, most: int | None) -> int:
        """Return how many rows of prompts the next step is expected to have, at most `most`."""
        rows = sum(g.pending for g in self._running if not g.decoding)
        return min(rows, self.limits.rows - len(self._running), rows if most is None else most)

    def plan(self, drafts: Mapping[int, Proposal], prompt_rows: int | None = None) -> Plan:
        """Return the next step; whoever runs it gives its forks back.

        Args:
            drafts: by generation number; cut to the rows and pages that are there, the branches
                first, which is counted (`Work.cut`, `Work.left_out`). They are never left out for
                being too long: how long a draft became may depend on what it drew, and what is left
                out for that biases the text.
            prompt_rows: the most rows of prompts while anything decodes; None for no such bound.
        """
        prompts = self._prompts()
        chosen: dict[Generation, _Rows] = {}
        decoding = self.decoding()
        rows = self.limits.rows - len(decoding)
        draft_rows = rows // 2  # the rest is for prompts, which drafts must not starve
        for generation in decoding:
            asked = drafts.get(generation.number, _NO_DRAFT)
            draft = asked.tokens[:draft_rows]
            if self._make_room(generation, 1, draft, chosen):
                draft = draft[: _room(generation) - 1]
                branches = _fitting(asked.branches, len(draft), draft_rows - len(draft))
                chosen[generation] = _Rows(
                    1,
                    draft,
                    branches,
                    cut=len(asked.tokens) - len(draft),
                    drafted=_branches(asked),
                )
                drafted = tree_rows(draft, branches)
                draft_rows -= drafted
                rows -= drafted
        if decoding and prompt_rows is not None:
            rows = min(rows, prompt_rows)
        for generation, count in zip(
            prompts, shares([g.pending for g in prompts], rows), strict=True
        ):
            if count and self._make_room(generation, count, (), chosen):
                chosen[generation] = _Rows(count)
        return _plan({g: _forked(g, own) if own.branches else own for g, own in chosen.items()})

    def _prompts(self) -> list[Generation]:
        """Return the generations with more to read than one token, in order of arrival.

        Of those about to compute the same page only the first: the others find it shared later.
        """
        claimed = set()
        found = []
        for generation in self._running:
            if generation.decoding:
                continue
            generation.reuse()
            key = generation.table.next_key(generation.tokens, generation.computed)
            if not generation.decoding and (key is None or key not in claimed):
                found.append(generation)
                claimed.add(key)
        return found

    def _has_room(self, generation: Generation) -> bool:
        """Whether the pages that it and the running ones claim are free."""
        own = generation.table.pages_to_take(generation.tokens, _claimed(generation))
        others = (pages_for(_claimed(g)) - len(g.table) for g in self._running)
        return own + sum(max(0, pages) for pages in others) <= self.pool.free

    def _make_room(
        self,
        generation: Generation,
        count: int,
        draft: tuple[int, ...],
        chosen: dict[Generation, _Rows],
    ) -> bool:
        """Hold the pages for a generation's rows, and for as much of its draft as then fits.

        Sets the latest arrivals back until the rows fit; returns False when that reached
        `generation` itself.
        """
        if count + len(draft) <= _room(generation):  # most steps of most sequences
            return True
        if generation not in self._running:
            return False
        end = generation.computed + count
        while not generation.table.can_grow(end):
            last = self._running[-1]
            self._set_back(last)
            chosen.pop(last, None)
            if last is generation:
                return False
        most = (len(generation.table) + self.pool.free) * PAGE
        generation.table.grow(min(end + len(draft), most))
        return True

    def _set_back(self, generation: Generation) -> None:
        """Let all pages go; what they held is found again or computed again."""
        self._running.remove(generation)
        self._waiting.appendleft(generation)
        generation.table.roll_back(0)
        generation.computed = 0
        generation.meter.preemptions += 1
        self.preemptions += 1


def _room(generation: Generation) -> int:
    """Return how many rows have their positions in the pages that it holds."""
    return len(generation.table) * PAGE - generation.computed


def _claimed(generation: Generation) -> int:
    """Return the positions a generation is given room for before another is admitted."""
    return min(len(generation.tokens) + PAGE, generation.most)


def _fitting(branches: Sequence[Branch], length: int, rows: int) -> tuple[Branch, ...]:
    """Return the first branches that leave a draft of this length and fit these rows.

    The first ones, because of a position's candidates none may be judged before those drawn before.
    """
    found: list[Branch] = []
    for branch in branches:
        rows -= len(branch.tokens)
        if rows < 0 or branch.depth >= length:
            break
        found.append(branch)
    return tuple(found)


def _branches(draft: Proposal) -> int:
    """Return how many branches leave the chain of a draft."""
    return sum(branch.depth < len(draft.tokens) for branch in draft.branches)


def _forked(generation: Generation, rows: _Rows) -> _Rows:
    """Return the rows with pages for their branches, as many as there are pages for."""
    table, begin = generation.table, generation.computed
    forks: list[Fork] = []
    for branch in rows.branches:
        end = begin + rows.taken + branch.depth + len(branch.tokens)
        if not table.can_fork(begin, end):
            break
        forks.append(table.fork(begin, end))
    return rows._replace(branches=rows.branches[: len(forks)], forks=tuple(forks))


def _plan(chosen: Mapping[Generation, _Rows]) -> Plan:
    tokens: list[int] = []
    wanted: list[int] = []
    spans: list[Span] = []
    work: list[Work] = []
    for generation, own in chosen.items():
        count, draft, branches, forks, cut, drafted_branches = own
        start, begin = len(tokens), generation.computed
        complete = count == generation.pending
        work.append(
            Work(
                generation,
                count,
                draft,
                len(wanted) if complete else None,
                generation.decoding and generation.generated > 0,
                start,
                branches,
                forks,
                cut,
                drafted_branches - len(branches),
            )
        )
        tokens += generation.tokens[begin : begin + count]
        tokens += draft
        trunk = len(spans)
        spans.append(Span(start, len(tokens) - start, begin, generation.table.array))
        for (depth, drafted), fork in zip(branches, forks, strict=True):
            position = begin + count + depth
            spans.append(Span(len(tokens), len(drafted), position, fork.array, trunk))
            tokens += drafted
        if complete:
            wanted += range(start + count - 1, len(tokens))
    if not spans:
        return Plan(None, ())
    ids = np.array(tokens, np.int32)
    return Plan(StepInput(ids, tuple(spans), np.array(wanted, np.int32)), tuple(work))
