"""When a generation ends, and the text that may be shown before that is known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fewbit.errors import RequestError


@dataclass(frozen=True)
class StopCondition:
    """What ends a generation.

    `ids` end it once generated: they count as tokens and carry no text. A string of `strings` ends
    it once the decoded text contains it, across any tokens; text from its start on is left out.
    `max_tokens` None is bounded by the context alone.

    Raises:
        RequestError: `max_tokens` below 1, an id that is none, or an empty string.
    """

    max_tokens: int | None = None
    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens is {self.max_tokens}; it must be at least 1.")
        for token in self.ids:
            if token < 0:
                raise RequestError(f"the stop token {token} is no token id; ids start at 0.")
        if "" in self.strings:
            raise RequestError("a stop string is empty and would end every text; leave it out.")


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces; holds back what may be one."""

    def __init__(self, strings: Collection[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""

    def push(self, piece: str) -> tuple[str, str | None]:
        """Add text.

        Returns:
            The text that can no longer be part of a stop string, and the stop string that was
            found. Where several are found, the one that starts first, then the longest.
        """
        text = self._held + piece
        found = [(text.find(s), -len(s), s) for s in self._strings if s in text]
        if found:
            start, _, string = min(found)
            self._held = ""
            return text[:start], string
        keep = max((_overlap(text, s) for s in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def finish(self) -> str:
        """Return the text held back; no stop string will complete it."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest proper prefix of `string` that ends `text`."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
