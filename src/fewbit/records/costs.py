"""What a target's steps and a draft's take on a machine, measured before a run."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.loading import FileStamp


class DraftCosts(Record, frozen=True, kw_only=True):
    """Seconds of a draft's calls, or of one of those that a combined draft asks."""

    sequences: tuple[int, ...]
    """How many sequences drafted at once, ascending from 1."""
    seconds: tuple[float, ...]
    """Of drafting one token for each, one for each of `sequences`."""
    fixed: float = 0.0
    """Of a call, whatever it drafts."""
    read: float = 0.0
    """Of reading one token that the draft has yet to read."""
    draft: str = ""
    """Its name, where there are several."""


class CostTable(Record, frozen=True, kw_only=True):
    """Seconds of the target's steps and of a draft's, at some points; linear in between."""

    rows: tuple[int, ...]
    """How many rows were scored at once, ascending from 1."""
    seconds: tuple[float, ...]
    """What that took behind a short context, one for each of `rows`."""
    context_seconds: float = 0.0
    """What a position more to look back on adds, once a sequence."""
    key_seconds: float = 0.0
    """What it adds for every row."""
    sequences: tuple[int, ...] = ()
    """Of the draft, as those of `DraftCosts`; empty where none was measured, or several."""
    draft_seconds: tuple[float, ...] = ()
    draft_fixed: float = 0.0
    draft_read: float = 0.0
    parts: tuple[DraftCosts, ...] = ()
    """Of a combined draft, those of each that it asks."""
    measured: bool = True
    """Whether the figures are of this machine; if not they stand in until steps were seen, and are
    in units of a step of one row."""

    @property
    def drafts(self) -> tuple[DraftCosts, ...]:
        """Of each draft that is asked by itself; nothing where none was measured."""
        if self.parts or not self.sequences:
            return self.parts
        own = DraftCosts(
            sequences=self.sequences,
            seconds=self.draft_seconds,
            fixed=self.draft_fixed,
            read=self.draft_read,
        )
        return (own,)


class CostKey(Record, frozen=True, kw_only=True):
    """What costs depend on; those that were kept are of use where all of it is the same."""

    fewbit: str
    cpu: str
    threads: int
    kernels: tuple[str, ...]
    """Of the target and of the draft, each id once, in order."""
    cache_type: str
    files: tuple[FileStamp, ...]
    """Of the target, then of the draft where it is a model."""
    draft: str
    context: int
    sequences: int


class KeptCosts(Record, frozen=True, kw_only=True):
    """Costs as they are kept for the next run."""

    key: CostKey
    costs: CostTable


class Forecast(Record, frozen=True, kw_only=True):
    """Steps with drafts, as they were expected when their drafts were chosen, and as they came."""

    expected_tokens: float
    tokens: int
    expected_seconds: float
    seconds: float
    """Of drafting and of the steps."""

    @property
    def expected_rate(self) -> float | None:
        """Tokens per second as expected; None without such steps."""
        return self.expected_tokens / self.expected_seconds if self.expected_seconds > 0 else None

    @property
    def rate(self) -> float | None:
        """Tokens per second as they came; None without such steps."""
        return self.tokens / self.seconds if self.seconds > 0 else None
