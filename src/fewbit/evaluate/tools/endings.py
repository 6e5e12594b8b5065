"""How answers end when they do not end well: the same over and over, or at the most tokens.

Rates of both are axes of their own, since a quantized model may say the right thing and then never
stop (antirez/ds4 #335, llama.cpp #10824).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

LEAST_REPEATS = 4
"""A piece of text that stands this often at an answer's end is a loop,"""

LEAST_LENGTH = 60
"""if together it has this many characters, so that no table's rule or row of zeros is one."""

SAME_CALLS = 3
"""One call made this often is a loop, whatever stands between."""

LOOP_RULE = (
    f"An answer loops when it was cut off and its end is one piece of text at least "
    f"{LEAST_REPEATS} times over, {LEAST_LENGTH} characters or more in all, or when it makes one "
    f"call with the same arguments {SAME_CALLS} times."
)


def repeated_end(text: str) -> str:
    """Return the shortest piece that an answer's end repeats, empty where it repeats none."""
    backwards = text.rstrip()[::-1]
    for period, matched in enumerate(_matches(backwards)):
        whole = period + matched
        if period and whole >= max(LEAST_REPEATS * period, LEAST_LENGTH):
            return backwards[:period][::-1]
    return ""


def repeated_call(calls: Iterable[Hashable]) -> Hashable | None:
    """Return the first call that is made too often, None where none is."""
    counts: dict[Hashable, int] = {}
    for call in calls:
        counts[call] = counts.get(call, 0) + 1
        if counts[call] == SAME_CALLS:
            return call
    return None


def _matches(text: str) -> list[int]:
    """Return for each place how much of the text from there on equals its beginning.

    The Z function (Gusfield 1997), in time proportional to the text.
    """
    found = [0] * len(text)
    left = right = 0
    for i in range(1, len(text)):
        if i < right:
            found[i] = min(right - i, found[i - left])
        while i + found[i] < len(text) and text[found[i]] == text[i + found[i]]:
            found[i] += 1
        if i + found[i] > right:
            left, right = i, i + found[i]
    return found
