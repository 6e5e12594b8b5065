"""The three answers, and what a command ends with."""

from __future__ import annotations

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
