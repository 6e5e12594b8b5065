"""Drafts: what proposes tokens for the target to verify.

A draft decides how fast generation is, never what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError


@dataclass(frozen=True)
class DraftQuery:
    """One sequence that wants a draft.

    `tokens` are all of its tokens so far, the last one included; `sequence` names it from call to
    call, so that a draft can keep what it knows of it. At most `length` tokens are wanted.
    """

    sequence: int
    tokens: Sequence[int]
    length: int


@dataclass(frozen=True, eq=False)
class Proposal:
    """Drafted tokens, perhaps none.

    `probabilities` float32 [tokens, V] is what each was drawn from; None where the draft is
    deterministic, so that its distribution is a point mass.
    """

    tokens: tuple[int, ...]
    probabilities: NDArray[np.float32] | None = None


class Draft(Protocol):
    """Proposes tokens for a batch of sequences.

    Between two calls a sequence only ever grows by tokens that the target has verified.
    """

    @property
    def name(self) -> str:
        """A short name for records, such as `ngram`."""
        ...

    @property
    def context(self) -> int | None:
        """How many positions the draft can look at; None for any number."""
        ...

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return one proposal for each query, in order, of at most the length asked for."""
        ...

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        ...


class NgramDraft:
    """Proposes what followed the last earlier occurrence of the sequence's own ending.

    Endings of `longest` tokens are tried first, then shorter ones down to `shortest` (prompt lookup
    decoding, Saxena 2023). It pays where the output repeats the prompt or itself: code edits,
    quotations, structured text.

    Raises:
        UsageError: `shortest` below 1 or above `longest`.
    """

    name = "ngram"
    context = None

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise UsageError(
                f"an n-gram draft from {shortest} to {longest} tokens cannot be; "
                "give 1 <= shortest <= longest."
            )
        self._sizes = range(longest, shortest - 1, -1)
        self._indexes: dict[int, _NgramIndex] = {}

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return what followed each sequence's ending before; nothing where it is new."""
        return [self._propose(query) for query in queries]

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._indexes.pop(sequence, None)

    def _propose(self, query: DraftQuery) -> Proposal:
        index = self._indexes.setdefault(query.sequence, _NgramIndex(self._sizes))
        index.extend(query.tokens)
        start = index.continuation(query.tokens)
        if start is None:
            return Proposal(())
        return Proposal(_copy_onwards(query.tokens, start, query.length))


class _NgramIndex:
    """Where each n-gram of a sequence was last followed by something.

    Every token is looked at once, so the cost of a token does not grow with the context.
    """

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._followed: dict[tuple[int, ...], int] = {}
        self._count = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that end before each token not yet seen."""
        for end in range(max(self._count, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._followed[tuple(tokens[end - size : end])] = end
        self._count = len(tokens)

    def continuation(self, tokens: Sequence[int]) -> int | None:
        """Return the position after the last earlier occurrence of the longest known ending."""
        for size in self._sizes:
            if size <= len(tokens):
                found = self._followed.get(tuple(tokens[-size:]))
                if found is not None:
                    return found
        return None


def _copy_onwards(tokens: Sequence[int], start: int, length: int) -> tuple[int, ...]:
    """Copy from `start`, and past the end from the copy itself, as a periodic text goes on."""
    copied: list[int] = []
    for position in range(start, start + length):
        beyond = position - len(tokens)
        copied.append(tokens[position] if beyond < 0 else copied[beyond])
    return tuple(copied)
