"""What of a certificate has ended, kept part by part, so that a run that was stopped goes on.

No part depends on another, nor on a clock: each begins with a draft that knows no sequence
(`speculate.fresh`), and how prompts are cut is the same in every run. So a certificate of kept
parts is the one that an uninterrupted run gives, its seconds apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fewbit.records.base import Record, RecordT
from fewbit.records.kept import Kept, fingerprint, open_kept, program_digest

_SECONDS = "seconds"


class Spent(Record, frozen=True, kw_only=True):
    """What a part took."""

    seconds: float


class Parts:
    """The parts that have ended, by check and name; in memory alone where there is no folder.

    One run at a time uses a folder.
    """

    def __init__(
        self, folder: Path | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._spent: dict[str, float] = {}
        self._folder = folder
        self._clock = clock
        self._kept: dict[str, Kept] = {}

    @property
    def seconds(self) -> float:
        """What the parts that were asked for took, in whichever run they were made."""
        return sum(self._spent.values())

    def once(
        self, check: str, name: str, kind: type[RecordT], make: Callable[[], RecordT]
    ) -> RecordT:
        """Return the part of a check; where none is kept, make it and keep it.

        Raises:
            BadFileError: what is kept is damaged.
            OutputError: the folder cannot be written.
        """
        begun, key = self._clock(), f"{check}: {name}"
        found = self._of(check).once(name, kind, make)
        took = Spent(seconds=self._clock() - begun)
        self._spent[key] = self._of(_SECONDS).once(key, Spent, lambda: took).seconds
        return found

    def _of(self, check: str) -> Kept:
        if check not in self._kept:
            path = None if self._folder is None else self._folder / f"{check}.jsonl"
            self._kept[check] = open_kept(path)
        return self._kept[check]


def parts_in(work: Path, *deciding: object) -> Parts:
    """Return the parts that a work folder keeps of what all of `deciding` decides.

    And this very program: what another build has shown says nothing about this one.
    """
    return Parts(work / "certificates" / fingerprint(program_digest(), *deciding)[:16])
