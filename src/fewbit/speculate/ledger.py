"""What speculation has cost and gained, and the bound on its cost.

Over a run, with any workload, drafting may take at most `SHARE` of the time that plain decoding
would have taken, plus a budget that is stated and spent on finding out whether a draft pays.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.03
"""Of the time of plain decoding."""

TRIAL_SHARE = 0.015
"""What drafts that are not expected to pay may take of that time: the workload may have changed."""

EXPLORATION_STEPS = 16
"""The budget, in plain steps of the run's first batch."""


@dataclass(frozen=True)
class Account:
    """A run's speculation in seconds, as `Ledger` has it."""

    plain: float
    """What plain decoding would have taken for all that was done."""
    cost: float
    """Beyond that; below 0 speculation gained time."""
    exploration: float
    """The budget."""

    @property
    def allowed(self) -> float:
        """The most that `cost` may be."""
        return SHARE * self.plain + self.exploration


class Ledger:
    """Keeps the bound: what might break it is not allowed.

    Plain time is what the steps without drafts took, and, for a step with drafts, what the cost
    model says of plain steps for as many tokens.
    """

    def __init__(self) -> None:
        self._plain = self._cost = self._exploration = 0.0
        self._tried = 0.0

    @property
    def account(self) -> Account:
        """The state of things."""
        return Account(self._plain, self._cost, self._exploration)

    def grant(self, seconds: float) -> None:
        """Add to the exploration budget."""
        self._exploration += seconds

    def allows(self, worst: float) -> bool:
        """Whether the bound holds even if `worst` seconds bring nothing."""
        return self._cost + worst <= self.account.allowed

    def allows_trial(self, worst: float) -> bool:
        """Whether a draft may be tried that is not expected to pay.

        The dearer it is, the longer the last one must be past.
        """
        return self.allows(worst) and TRIAL_SHARE * (self._plain - self._tried) >= worst

    def add(self, spent: float, worth: float, *, trial: bool) -> None:
        """Add a step.

        Args:
            spent: seconds of drafting and of the step.
            worth: seconds that plain decoding would have taken for what it brought.
            trial: its drafts were not expected to pay.
        """
        self._plain += worth
        self._cost += spent - worth
        if trial:
            self._tried = self._plain
