"""Drafts: what proposes tokens for the target to verify.

A draft decides how fast generation is, never what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.records.kernels import KernelRecord
from fewbit.sampling import Branch, TokenSampler
from fewbit.speculate.verifier import Verifier

LOOKED_UP = 8
"""Tokens of a branch that was looked up, at most."""

_NO_PAGES: NDArray[np.int32] = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class DraftQuery:
    """One sequence that wants a draft.

    `tokens` are all of its tokens so far, the last one included; `sequence` names it from call to
    call, so that a draft can keep what it knows of it. At most `length` tokens are wanted.

    `sampler` is the sequence's own and not to be changed: a draft that draws does so with a
    `fork()` of it, so that penalties, bias, masks, temperature and truncation are one pipeline for
    both sides. `verifier` says how the proposal will be judged, and so which random numbers it is
    to be drawn with.

    `pages` int32 are the sequence's pages in the target's KV store, where the first `computed`
    tokens have their keys. They have room for the rest and for `length` drafted ones where the
    draft `shares_store`: what it writes there from `computed` on is provisional, and the target
    writes over it.

    `siblings` says at each drafted position how many other candidates are wanted beside it, the
    first ones of branches of at most `reach` tokens. A draft may have fewer of either.
    """

    sequence: int
    tokens: Sequence[int]
    length: int
    sampler: TokenSampler
    verifier: Verifier
    pages: NDArray[np.int32] = field(default_factory=lambda: _NO_PAGES)
    computed: int = 0
    siblings: tuple[int, ...] = ()
    reach: int = 1


@dataclass(frozen=True, eq=False)
class Proposal:
    """Drafted tokens, perhaps none.

    `probabilities` float32 [tokens, n] is what each was drawn from: a distribution over the
    target's ids `support`, int32 [n] ascending; None for the ids 0 to n - 1. `probabilities` None
    says that there is nothing to reject by: the draft is deterministic (a point mass), or drew with
    the target's own noise (`Verifier.MATCH`). `ended` says why the draft has nothing more for this
    sequence from now on; empty where it may have.

    `branches` leave the tokens at their depths, those of one depth in the order in which they were
    drawn; their first tokens and that of `tokens` differ. Where there are `probabilities` they have
    one token each, drawn without replacement from what `tokens[depth]` was drawn from.
    """

    tokens: tuple[int, ...]
    probabilities: NDArray[np.float32] | None = None
    support: NDArray[np.int32] | None = None
    ended: str = ""
    branches: tuple[Branch, ...] = ()


def judge_of(proposal: Proposal, asked: Verifier) -> Verifier:
    """Return the rule that judges a proposal: without probabilities there is nothing to reject by.

    Args:
        proposal: what a draft brought.
        asked: the query's verifier, which was settled before anything was drawn.

    For a point mass nothing is lost: what the target draws from a row is the drafted token with
    just the probability with which rejection accepts it.
    """
    return Verifier.MATCH if proposal.probabilities is None else asked


class Draft(Protocol):
    """Proposes tokens for a batch of sequences.

    Between two calls a sequence only ever grows by tokens that the target has verified, so a draft
    rolls its own cache back to what it has in common with the query's tokens.
    """

    @property
    def name(self) -> str:
        """A short name for records, such as `ngram`."""
        ...

    @property
    def context(self) -> int | None:
        """How many positions the draft can look at; None for any number."""
        ...

    @property
    def shares_store(self) -> bool:
        """Whether it runs on the target's KV store, through a query's pages."""
        ...

    def pending(self, query: DraftQuery) -> int:
        """Return how many tokens it would have to read before it could propose the first."""
        ...

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return one proposal for each query, in order, of at most the length asked for."""
        ...

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        ...


@runtime_checkable
class Watching(Protocol):
    """A draft that continues from the target's hidden states, as extra heads do.

    An engine hands it those of every token that the target has run and verified, in the order of
    positions but for those that come again (a sequence that was set back) and those that are left
    out (whose keys the target had from another sequence).
    """

    @property
    def width(self) -> int:
        """Floats of the states of one position, those of all layers side by side."""
        ...

    def watch(self, sequence: int, first: int, states: NDArray[np.float32]) -> None:
        """Take the states of a sequence's positions from `first` on, float32 [rows, width]."""
        ...


def parts_of(draft: Draft) -> tuple[Draft, ...]:
    """Return the drafts that one of several asks, or the draft itself."""
    return getattr(draft, "parts", (draft,))


def watching(draft: Draft) -> tuple[Watching, ...]:
    """Return the draft, or those of its parts, that want hidden states."""
    parts = parts_of(draft)
    if parts == (draft,):
        return (draft,) if isinstance(draft, Watching) else ()
    return tuple(found for part in parts for found in watching(part))


def reach_of(draft: Draft) -> int:
    """Return how many tokens a branch of its proposals has at most; 0 where it proposes none."""
    parts = parts_of(draft)
    if parts == (draft,):
        return getattr(draft, "reach", 0)
    return max(reach_of(part) for part in parts)


def kernels_of(draft: Draft) -> tuple[KernelRecord, ...]:
    """Return what reads the matrices of a draft that is the target itself, or a head of it."""
    parts = parts_of(draft)
    if parts == (draft,):
        return getattr(draft, "kernels", ())
    return tuple(kernel for part in parts for kernel in kernels_of(part))


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
    shares_store = False
    reach = LOOKED_UP

    def __init__(self, *, longest: int = 4, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise UsageError(
                f"an n-gram draft from {shortest} to {longest} tokens cannot be; "
                "give 1 <= shortest <= longest."
            )
        self._sizes = range(longest, shortest - 1, -1)
        self._indexes: dict[int, _NgramIndex] = {}

    def pending(self, query: DraftQuery) -> int:
        """Return 0: looking tokens up costs nothing that a step would notice."""
        return 0

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return what followed each sequence's ending before; nothing where it is new."""
        return [self._propose(query) for query in queries]

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._indexes.pop(sequence, None)

    def _propose(self, query: DraftQuery) -> Proposal:
        index = self._indexes.setdefault(query.sequence, _NgramIndex(self._sizes))
        index.extend(query.tokens)
        wanted = query.siblings[0] if query.siblings else 0
        starts = index.continuations(query.tokens, 1 + wanted)
        if not starts:
            return Proposal(())
        reach = min(query.reach, query.length)
        return Proposal(
            _copy_onwards(query.tokens, starts[0], query.length),
            branches=tuple(
                Branch(0, _copy_onwards(query.tokens, start, reach)) for start in starts[1:]
            ),
        )


class _NgramIndex:
    """Where each n-gram of a sequence was last followed by something.

    Every token is looked at once, so the cost of a token does not grow with the context.
    """

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._followed: dict[tuple[int, ...], int] = {}
        self._otherwise: dict[tuple[int, ...], int] = {}  # as before, by another token
        self._count = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that end before each token not yet seen."""
        for end in range(max(self._count, 1), len(tokens)):
            for size in self._sizes:
                if size <= end:
                    gram = tuple(tokens[end - size : end])
                    before = self._followed.get(gram)
                    if before is not None and tokens[before] != tokens[end]:
                        self._otherwise[gram] = before
                    self._followed[gram] = end
        self._count = len(tokens)

    def continuations(self, tokens: Sequence[int], most: int) -> list[int]:
        """Return positions after earlier occurrences of the ending, with different tokens there.

        The last occurrence of the longest known ending comes first, then the last one that was
        followed by another token, then those of shorter endings.
        """
        found: dict[int, int] = {}
        for size in self._sizes:
            if size > len(tokens):
                continue
            gram = tuple(tokens[-size:])
            for known in (self._followed, self._otherwise):
                at = known.get(gram)
                if at is not None:
                    found.setdefault(tokens[at], at)
            if len(found) >= most:
                break
        return list(found.values())[:most]


def _copy_onwards(tokens: Sequence[int], start: int, length: int) -> tuple[int, ...]:
    """Copy from `start`, and past the end from the copy itself, as a periodic text goes on."""
    copied: list[int] = []
    for position in range(start, start + length):
        beyond = position - len(tokens)
        copied.append(tokens[position] if beyond < 0 else copied[beyond])
    return tuple(copied)
