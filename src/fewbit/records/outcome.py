"""The three answers, and what a command ends with."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Outcome(Enum):
    """The answer to "may I ship this model?"."""

    ACCEPT = "ACCEPT"
    REJECT = "REJECT"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        """What the command line ends with."""
        return {Outcome.ACCEPT: 0, Outcome.REJECT: 3, Outcome.INCONCLUSIVE: 4}[self]


BY_WEIGHT = (Outcome.REJECT, Outcome.INCONCLUSIVE, Outcome.ACCEPT)
"""One of the first outweighs any of those behind it."""


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return what follows from several: REJECT from one, ACCEPT from all, else INCONCLUSIVE."""
    return min(outcomes, key=BY_WEIGHT.index, default=Outcome.ACCEPT)
