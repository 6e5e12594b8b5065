"""Early looks that leave the gate's error what it is.

Looks are fixed before anything is measured: after the first windows, say, and after all of them.
Every look but the last is held to a level so high (Haybittle 1971, Peto et al. 1976: an error of
0.001, about 3.3 standard errors) that only what is far from its margin is decided there; the last
has what is left. The chance that any look errs is at most the sum of their errors (Bonferroni),
whatever the figures' joint distribution: nothing is assumed of how they grow. O'Brien and
Fleming's boundaries would leave the last look a little more, but need independent normal steps.
"""

from __future__ import annotations

from msgspec.structs import replace

from fewbit.errors import UsageError
from fewbit.records.gate import Gate

EARLY_ERROR = 0.001
"""Of each look before the last, both sides together."""


def has_room(level: float, looks: int = 2) -> bool:
    """Return whether a level leaves the last of several looks something to judge by."""
    return 1.0 - level - (looks - 1) * EARLY_ERROR >= EARLY_ERROR


def look_levels(looks: int, level: float) -> tuple[float, ...]:
    """Return the confidence level of each look, such that all of them together have `level`.

    Args:
        looks: how many there are, the last included; at least one.
        level: of a measurement that is looked at once.

    Raises:
        UsageError: so many looks leave nothing to the last.
    """
    left = 1.0 - level - (looks - 1) * EARLY_ERROR
    if looks < 1 or not has_room(level, looks):
        raise UsageError(
            f"{looks} looks do not fit a level of {level:g}; each before the last takes "
            f"{EARLY_ERROR:g} of its error, so look less often."
        )
    return (*(1.0 - EARLY_ERROR for _ in range(looks - 1)), 1.0 - left)


def at_look(gate: Gate, look: int, looks: int) -> Gate:
    """Return the gate as it judges one look of several that were fixed beforehand.

    Args:
        gate: the gate as declared.
        look: from 0; the last, `looks - 1`, is over everything.
        looks: how many there are.

    Raises:
        UsageError: as `look_levels`.
    """
    return replace(gate, level=look_levels(looks, gate.level)[look])
