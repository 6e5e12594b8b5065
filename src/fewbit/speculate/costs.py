"""What steps cost: a table measured before the run, corrected by the run itself.

A step reads the weights once, whatever its rows, so a row more costs less than a row alone, until
the arithmetic takes longer than the reading. Where that happens depends on the machine, the model
and its formats; so it is measured, not assumed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from fewbit.errors import UsageError
from fewbit.records.costs import CostTable, DraftCosts

ASSUMED_ROW = 0.1
"""Cost of one more row in units of a step of one, where nothing was measured."""

MEASURED_PLAIN_STEPS = 2
"""Without a table a run's first decoding steps have no draft, so that the plain speed is known."""

_READ_AT_ONCE = 8
"""A draft whose costs were not measured is taken to read so many tokens in the time of drafting
one."""

_NEWEST, _FIRST = 0.1, 0.5
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


def step_seconds(table: CostTable, shape: Shape) -> float:
    """Return the seconds of a step of the target."""
    attention = table.context_seconds * shape.context + table.key_seconds * shape.keys
    return _between(table.rows, table.seconds, shape.rows) + attention


def drafting_seconds(costs: DraftCosts, counts: Sequence[int], unread: int) -> float:
    """Return the seconds of a draft's call.

    Args:
        costs: of the draft.
        counts: how many sequences draft a first token, a second, and so on.
        unread: tokens that the draft reads first.
    """
    if not counts:
        return 0.0
    tokens = sum(_between(costs.sequences, costs.seconds, count) for count in counts if count)
    return costs.fixed + costs.read * unread + tokens


ASSUMED = CostTable(rows=(1, 2), seconds=(1.0, 1.0 + ASSUMED_ROW), measured=False)
"""What stands in for a table that was not measured."""


class CostModel:
    """A cost table and how the run departs from it.

    Factors follow what is observed: of a step without a draft (the machine's load), of what drafted
    rows add to it, and of drafting, for each of the `parts` of a draft by itself.

    Raises:
        UsageError: a table whose figures do not belong together.
    """

    def __init__(self, table: CostTable | None = None, parts: int = 1) -> None:
        self.table = table or ASSUMED
        _require(self.table, parts)
        self._drafts = self.table.drafts
        self._load = self._added = 1.0
        self._drafting = [1.0] * parts
        self._draft_token: list[float | None] = [None] * parts
        """Seconds, where the table knows no draft."""
        self._plain_seen = self._drafted_seen = 0
        self._rows = [0.0]  # the table's seconds by rows, as far as they were asked for

    @property
    def known(self) -> bool:
        """Whether its seconds are of this machine, measured before the run or in it."""
        return self.table.measured or self._plain_seen >= MEASURED_PLAIN_STEPS

    @property
    def checked(self) -> bool:
        """Whether the run has seen a plain step."""
        return self._plain_seen > 0

    def knows(self, part: int) -> bool:
        """Whether a part's seconds were measured, before the run or in it."""
        return bool(self._drafts) or self._draft_token[part] is not None

    def plain(self, shape: Shape) -> float:
        """Return the seconds of a step without drafts."""
        return self._load * step_seconds(self.table, shape)

    def step(self, plain: Shape, drafted: Shape) -> float:
        """Return the seconds of a step with drafts.

        Args:
            plain: the step as it would be without them.
            drafted: as it is.
        """
        alone = step_seconds(self.table, plain)
        return self._load * (alone + self._added * (step_seconds(self.table, drafted) - alone))

    def steps(self, plain: Shape, most: int) -> list[float]:
        """Return the seconds of a step with 0, 1, ..., `most` drafted rows, but for attention's."""
        while len(self._rows) <= plain.rows + most:
            self._rows.append(step_seconds(self.table, Shape(len(self._rows))))
        alone, load, added = step_seconds(self.table, plain), self._load, self._added
        first = self._rows[plain.rows]
        return [
            load * (alone + added * (self._rows[rows] - first))
            for rows in range(plain.rows, plain.rows + most + 1)
        ]

    def looking_back(self, position: int) -> float:
        """Return what attention adds for a drafted row behind that many positions."""
        return self._load * self._added * self.table.key_seconds * position

    def drafting(self, counts: Sequence[int], unread: int, part: int = 0) -> float:
        """Return the seconds of drafting, as `drafting_seconds`.

        Where nothing was measured a drafted token is taken to cost a step of the target.
        """
        if self._drafts:
            return self._drafting[part] * drafting_seconds(self._drafts[part], counts, unread)
        token = self._draft_token[part]
        if token is None:
            token = self.plain(Shape(1))
        return token * (sum(map(bool, counts)) + unread / _READ_AT_ONCE)

    def reading(self, unread: int, part: int = 0) -> float:
        """Return what of that is reading so many tokens."""
        return self.drafting((0,), unread, part) - self.drafting((0,), 0, part)

    def observe_plain(self, shape: Shape, seconds: float) -> None:
        """Learn from a step without drafts; a clock too coarse to see it teaches nothing."""
        if seconds <= 0:
            return
        seen = seconds / step_seconds(self.table, shape)
        if self._plain_seen:
            self._load = _towards(self._load, seen)
        else:
            self._load = _towards(self._load, seen, _FIRST) if self.table.measured else seen
        self._plain_seen += 1

    def observe_drafted(self, plain: Shape, drafted: Shape, seconds: float) -> None:
        """Learn from a step with drafts.

        What it took beyond a plain step is put down to the drafted rows. If it is the machine's
        load, drafts become shorter for a while, or end, and a step without one shows the load.
        Until there was one, it is put down to the load: a table that was measured, perhaps in
        another hour, is as right about drafted rows as about plain ones.
        """
        if seconds <= 0:
            return
        if self.table.measured and not self._plain_seen:
            expected = self.step(plain, drafted)
            self._load = _towards(self._load, self._load * seconds / expected, _FIRST)
            return
        alone = step_seconds(self.table, plain)
        added = step_seconds(self.table, drafted) - alone
        if added > 0:
            seen = max(seconds / self._load - alone, 0.0) / added
            # A row that costs a hundredth of a step is lost in the noise of the step's own time:
            # such an observation counts in proportion to what it could show.
            weight = _NEWEST * min(1.0, 4 * added / alone)
            if not self.table.measured:
                weight = max(weight, 1 / (1 + self._drafted_seen))
            self._added = _towards(self._added, seen, weight, least=0.05)
            self._drafted_seen += 1

    def observe_drafting(
        self, counts: Sequence[int], unread: int, seconds: float, part: int = 0
    ) -> None:
        """Learn from a call of a part."""
        if self._drafts:
            expected = drafting_seconds(self._drafts[part], counts, unread)
            if expected > 0:
                self._drafting[part] = _towards(self._drafting[part], seconds / expected)
        else:
            token = seconds / (max(len(counts), 1) + unread / _READ_AT_ONCE)
            before = self._draft_token[part]
            self._draft_token[part] = token if before is None else _towards(before, token)


def _require(table: CostTable, parts: int) -> None:
    own = [("rows", table.rows, table.seconds), ("sequences", table.sequences, table.draft_seconds)]
    for name, at, values in [*own, *(("sequences", d.sequences, d.seconds) for d in table.parts)]:
        if len(at) != len(values) or list(at) != sorted(set(at)) or min(at, default=1) < 1:
            raise UsageError(
                f"a cost table has {name} {list(at)} and {len(values)} figures for them; give one "
                "figure for each of some ascending counts."
            )
    if len(table.drafts) not in (0, parts):
        raise UsageError(
            f"a cost table has figures of {len(table.drafts)} drafts and {parts} are asked; "
            "measure them together."
        )
    if not table.rows or min(table.seconds) <= 0:
        raise UsageError(
            f"a cost table has seconds {list(table.seconds)} for rows {list(table.rows)}; a step "
            "of one row at least, and times above 0, are needed."
        )


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
