"""How many rows of prompts fit beside decoding sequences without stalling them."""

from __future__ import annotations

LEAST_PROMPT_ROWS = 8
"""Prompts get this many rows even where decoding alone takes longer than the stall: they must get
on, and so few cost little more than one."""

LEAST_SHARE = 64
"""Rows a prompt gets at once while others wait behind it; smaller chunks read the weights more
often than they are worth."""

_NEWEST = 0.5


class PromptPace:
    """Learns from the steps so far what decoding takes and what a prompt's row adds to it.

    The newest step counts half: rows get dearer as a prompt grows, and a neighbour's load passes.
    """

    def __init__(self) -> None:
        self._decode = 0.0
        self._row = 0.0

    def observe(self, decode_rows: int, prompt_rows: int, seconds: float) -> None:
        """Add a step.

        Args:
            decode_rows: rows of sequences that decode, drafts included.
            prompt_rows: the other rows.
            seconds: what the step took.
        """
        if not prompt_rows:
            self._decode = _mix(self._decode, seconds)
            return
        # A quarter at least: a step that happened to be fast must not make rows seem free.
        added = max(seconds - (self._decode if decode_rows else 0.0), seconds / 4)
        self._row = _mix(self._row, added / prompt_rows)

    def rows(self, stall: float) -> int | None:
        """Return how many rows of prompts a step of `stall` seconds has room for.

        None where nothing is known yet.
        """
        if self._row <= 0:
            return None
        return max(int((stall - self._decode) / self._row), LEAST_PROMPT_ROWS)


def shares(pending: list[int], rows: int) -> list[int]:
    """Share rows between prompts: equal parts, but none below `LEAST_SHARE`, the earlier first.

    Args:
        pending: rows that each prompt still has, in order of arrival.
        rows: to be shared.
    """
    if not pending:
        return []
    part = max(rows // len(pending), LEAST_SHARE)
    found = []
    for count in pending:
        found.append(min(count, part, rows))
        rows -= found[-1]
    for i, count in enumerate(pending):
        more = min(count - found[i], rows)
        found[i] += more
        rows -= more
    return found


def _mix(before: float, seen: float) -> float:
    return seen if before == 0 else (1 - _NEWEST) * before + _NEWEST * seen
