"""What steps cost: a table measured before the run, corrected by the run itself.

A step reads the weights once, whatever its rows, so a row more costs less than a row alone, until
the arithmetic takes longer than the reading. Where that happens depends on the machine, the model
and its formats; so it is measured, not assumed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fewbit.errors import UsageError

ASSUMED_ROW = 0.1
"""Cost of one more row in units of a step of one, where nothing was measured."""

_READ_AT_ONCE = 8
"""A draft whose costs were not measured is taken to read so many tokens in the time of drafting
one."""

_NEWEST = 0.1
_FURTHEST = 4.0
"""One observation counts as at most so many times what was expected: a step that the machine
interrupted says nothing about the next."""


class Shape(NamedTuple):
    """What a step runs, as far as its time depends on it."""

    rows: int
    """Of all sequences, prompts included."""
    context: int = 0
    """Positions that all sequences together look back on: keys that are read once a sequence."""
    keys: int = 0
    """The same, counted once for every row: products of a query and a key."""


@dataclass(frozen=True)
class CostTable:
    """Seconds of the target's steps and of a draft's, at some points; linear in between.

    Args:
        rows: how many rows were scored at once, ascending from 1.
        seconds: what that took at a short context, one for each of `rows`.
        context_seconds: what a position more to look back on adds, once a sequence.
        key_seconds: what it adds for every row.
        sequences: how many sequences drafted at once, ascending from 1; empty where the draft is
            still to be measured.
        draft_seconds: of drafting one token for each, one for each of `sequences`.
        draft_fixed: of a call to the draft, whatever it drafts.
        draft_read: of reading one token that the draft has yet to read.
        measured: whether the figures are of this machine; if not they stand in until steps were
            seen, and are in units of the first one.

    Raises:
        UsageError: figures that do not belong together.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    context_seconds: float = 0.0
    key_seconds: float = 0.0
    sequences: tuple[int, ...] = ()
    draft_seconds: tuple[float, ...] = ()
    draft_fixed: float = 0.0
    draft_read: float = 0.0
    measured: bool = True

    def __post_init__(self) -> None:
        for name, at, values in (
            ("rows", self.rows, self.seconds),
            ("sequences", self.sequences, self.draft_seconds),
        ):
            if len(at) != len(values) or list(at) != sorted(set(at)) or min(at, default=1) < 1:
                raise UsageError(
                    f"a cost table has {name} {list(at)} and {len(values)} figures for them; give "
                    "one figure for each of some ascending counts."
                )
        if not self.rows:
            raise UsageError("a cost table has no rows; measure a step of one at least.")

    def step(self, shape: Shape) -> float:
        """Return the seconds of a step."""
        attention = self.context_seconds * shape.context + self.key_seconds * shape.keys
        return _between(self.rows, self.seconds, shape.rows) + attention

    def drafting(self, counts: Sequence[int], unread: int) -> float:
        """Return the seconds of drafting.

        Args:
            counts: how many sequences draft a first token, a second, and so on.
            unread: tokens that the draft reads first.
        """
        if not counts:
            return 0.0
        tokens = sum(
            _between(self.sequences, self.draft_seconds, count) for count in counts if count
        )
        return self.draft_fixed + self.draft_read * unread + tokens


ASSUMED = CostTable((1, 2), (1.0, 1.0 + ASSUMED_ROW), measured=False)
"""What stands in for a table that was not measured."""


class CostModel:
    """A cost table and how the run departs from it.

    Three factors follow what is observed: of a step without a draft (the machine's load), of what
    drafted rows add to it, and of drafting.
    """

    def __init__(self, table: CostTable | None = None) -> None:
        self.table = table or ASSUMED
        self._load = self._added = 1.0
        self._drafting = 1.0
        self._draft_token: float | None = None  # seconds; where the table knows no draft
        self._plain_seen = 0
        self._rows = [0.0]  # the table's seconds by rows, as far as they were asked for

    @property
    def known(self) -> bool:
        """Whether its seconds are of this machine, measured before the run or in it."""
        return self.table.measured or self._plain_seen > 0

    def plain(self, shape: Shape) -> float:
        """Return the seconds of a step without drafts."""
        return self._load * self.table.step(shape)

    def step(self, plain: Shape, drafted: Shape) -> float:
        """Return the seconds of a step with drafts.

        Args:
            plain: the step as it would be without them.
            drafted: as it is.
        """
        alone = self.table.step(plain)
        return self._load * (alone + self._added * (self.table.step(drafted) - alone))

    def steps(self, plain: Shape, most: int) -> list[float]:
        """Return the seconds of a step with 0, 1, ..., `most` drafted rows, but for attention's."""
        while len(self._rows) <= plain.rows + most:
            self._rows.append(self.table.step(Shape(len(self._rows))))
        alone, load, added = self.table.step(plain), self._load, self._added
        first = self._rows[plain.rows]
        return [
            load * (alone + added * (self._rows[rows] - first))
            for rows in range(plain.rows, plain.rows + most + 1)
        ]

    def looking_back(self, position: int) -> float:
        """Return what attention adds for a drafted row behind that many positions."""
        return self._load * self._added * self.table.key_seconds * position

    def drafting(self, counts: Sequence[int], unread: int) -> float:
        """Return the seconds of drafting, as `CostTable.drafting`."""
        if self.table.sequences:
            return self._drafting * self.table.drafting(counts, unread)
        return (self._draft_token or 0.0) * (sum(map(bool, counts)) + unread / _READ_AT_ONCE)

    def observe_plain(self, shape: Shape, seconds: float) -> None:
        """Learn from a step without drafts."""
        seen = seconds / self.table.step(shape)
        first = not self._plain_seen and not self.table.measured
        self._load = seen if first else _towards(self._load, seen)
        self._plain_seen += 1

    def observe_drafted(self, plain: Shape, drafted: Shape, seconds: float) -> None:
        """Learn from a step with drafts.

        What it took beyond a plain step is put down to the drafted rows, and a little of it to the
        machine: where every step has a draft nothing else shows a change of load.
        """
        expected = self.step(plain, drafted)
        self._load = _towards(self._load, self._load * seconds / expected, _NEWEST / 5)
        alone = self.table.step(plain)
        added = self.table.step(drafted) - alone
        if added > 0:
            seen = max(seconds / self._load - alone, 0.0) / added
            # A row that costs a hundredth of a step is lost in the noise of the step's own time:
            # such an observation counts in proportion to what it could show.
            weight = _NEWEST * min(1.0, 4 * added / alone)
            self._added = _towards(self._added, seen, weight, least=0.05)

    def observe_drafting(self, counts: Sequence[int], unread: int, seconds: float) -> None:
        """Learn from a call of the draft."""
        if not counts:
            return
        if self.table.sequences:
            expected = self.table.drafting(counts, unread)
            if expected > 0:
                self._drafting = _towards(self._drafting, seconds / expected)
        else:
            token = seconds / (sum(map(bool, counts)) + unread / _READ_AT_ONCE)
            before = self._draft_token
            self._draft_token = token if before is None else _towards(before, token)


def _towards(before: float, seen: float, weight: float = _NEWEST, *, least: float = 1e-12) -> float:
    """Return the average of `before` and `seen`, the latter kept within reach of the former."""
    anchor = max(before, least)
    bounded = min(max(seen, anchor / _FURTHEST), anchor * _FURTHEST)
    return before + weight * (bounded - before)


def _between(at: Sequence[int], values: Sequence[float], x: int) -> float:
    """Interpolate linearly between points, and beyond the last one as between the last two."""
    if len(at) == 1:
        return values[0] * (x / at[0] if x > at[0] else 1.0)
    i = min(max(bisect_right(at, x), 1), len(at) - 1)
    share = (x - at[i - 1]) / (at[i] - at[i - 1])
    return values[i - 1] + max(share, 0.0) * (values[i] - values[i - 1])
