"""A draft that continues as the text most often continued, found by a suffix automaton.

The automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text", TCS 40,
1985) is built online: a token costs a few dictionary look-ups, however long the text is. Its states
are classes of substrings that end at the same places, so the longest ending of the text that
occurred before, and all that followed it, are at hand without a search. What is added here is how
often each continuation followed, kept exact for endings of up to `LONGEST_MATCH` tokens.

Cost, on code and prose of up to 100,000 tokens: 2 to 3 us a token to read (random bits 6), 0.6 us
a token to draft, and 440 bytes a token (320 to 630). A request's automaton is dropped with the
request and has no more tokens than the KV store has positions of it, which take tens of kilobytes
each. That of a text is built once and bounded by `LARGEST_TEXT`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fewbit.errors import UsageError
from fewbit.sampling import Branch
from fewbit.speculate.drafts import LOOKED_UP, DraftQuery, Proposal

LONGEST_MATCH = 31
"""Longer endings are told apart by no more than their last tokens. It bounds what a token costs in
texts that repeat one token, where every ending has a state of its own."""

LARGEST_TEXT = 1 << 18
"""Tokens of a text to draft from, at most: about 115 MB, and a second to read."""

_ROOT = 0


class Match(NamedTuple):
    """The last `size` tokens of something, found in an automaton as a part of `state`."""

    state: int
    size: int


NO_MATCH = Match(_ROOT, 0)


class SuffixAutomaton:
    """All substrings of a text that grows token by token, and how often each was followed by what.

    `ending` is the text's own ending of up to `LONGEST_MATCH` tokens.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.ending = NO_MATCH
        self._next: list[dict[int, int]] = [{}]
        self._link = [_ROOT]
        self._length = [0]
        self._count = [0]
        self._best = [-1]
        self._last = _ROOT
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        following, link, length = self._next, self._link, self._length
        for token in tokens:
            self._grow(token)
            state, size = self.ending
            while 0 < size <= length[link[state]]:  # the class was split
                state = link[state]
            self._count_followed(state, token)
            state, size = following[state][token], min(size + 1, LONGEST_MATCH)
            while size <= length[link[state]]:
                state = link[state]
            self.ending = Match(state, size)

    def step(self, match: Match, token: int) -> Match:
        """Return the match of what `match` matches with a token more, or of its longest ending."""
        state, size = match
        while token not in self._next[state]:
            if state == _ROOT:
                return NO_MATCH
            state = self._link[state]
            size = self._length[state]
        return self._fitting(self._next[state][token], size + 1)

    def known(self, match: Match) -> Match:
        """Return the match itself, or its longest ending that was followed by something."""
        state, size = match
        while not self._next[state] and state != _ROOT:
            state = self._link[state]
            size = self._length[state]
        return Match(state, size)

    def continuation(self, match: Match, length: int) -> list[int]:
        """Return the most frequent tokens after a match, one after the other; ties to the latest.

        Each counts as context of the next. Where only the text's end is left, its longest ending
        that occurred before goes on, as a periodic text does.
        """
        following, link, sizes, best = self._next, self._link, self._length, self._best
        found: list[int] = []
        state, size = match
        while len(found) < length:
            while state != _ROOT and not following[state]:
                state = link[state]
                size = sizes[state]
            if state == _ROOT:
                break
            token = best[state]
            found.append(token)
            state = following[state][token]
            size = size + 1 if size < LONGEST_MATCH else LONGEST_MATCH
            while size <= sizes[link[state]]:
                state = link[state]
        return found

    def others(self, match: Match, but: int, most: int, shortest: int) -> list[int]:
        """Return other tokens than one that followed a match, or its endings down to `shortest`.

        Those of longer endings come first, of one ending the more frequent.
        """
        found: list[int] = []
        state, size = match
        while state != _ROOT and size >= shortest and len(found) < most:
            found += self._likeliest(state, {but, *found}, most - len(found))
            state = self._link[state]
            size = self._length[state]
        return found

    def _likeliest(self, state: int, but: set[int], most: int) -> list[int]:
        """Return the tokens that followed a state most often, without those of a set."""
        following, count = self._next[state], self._count
        left = (token for token in following if token not in but)
        return heapq.nlargest(most, left, key=lambda token: count[following[token]])

    def after(self, match: Match, token: int, length: int) -> list[int]:
        """Return a token that followed a match or one of its endings, and what came after it."""
        return [token, *self.continuation(self.step(match, token), length - 1)]

    def _fitting(self, state: int, size: int) -> Match:
        """Return the class of the last `size` of the tokens that a state stands for, as bounded."""
        size = min(size, LONGEST_MATCH)
        while 0 < size <= self._length[self._link[state]]:
            state = self._link[state]
        return Match(state, size)

    def _grow(self, token: int) -> None:
        """Add the states of all substrings that end with this token."""
        following, link, length = self._next, self._link, self._length
        state = self._last
        self._last = new = self._state(length[state] + 1, {}, 0, -1)
        while token not in following[state]:
            following[state][token] = new
            if state == _ROOT:
                return
            state = link[state]
        met = following[state][token]
        if length[met] != length[state] + 1:
            met = self._split(met, state, token)
        link[new] = met

    def _split(self, met: int, state: int, token: int) -> int:
        """Give those of a class's substrings that now end here as well a class of their own."""
        following, link = self._next, self._link
        shorter = self._state(
            self._length[state] + 1, following[met].copy(), self._count[met], self._best[met]
        )
        link[shorter], link[met] = link[met], shorter
        while following[state].get(token) == met:
            following[state][token] = shorter
            if state == _ROOT:
                break
            state = link[state]
        return shorter

    def _state(self, length: int, following: dict[int, int], count: int, best: int) -> int:
        number = len(self._next)
        self._next.append(following)
        self._link.append(_ROOT)
        self._length.append(length)
        self._count.append(count)
        self._best.append(best)
        return number

    def _count_followed(self, state: int, token: int) -> None:
        """Count that this token followed `state` and every shorter ending."""
        following, count, best, link = self._next, self._count, self._best, self._link
        before = _ROOT
        while True:
            continued = following[state]
            after = continued[token]
            if after != before:
                count[after] += 1
                before = after
            known = best[state]
            if known != token and (known < 0 or count[after] >= count[continued[known]]):
                best[state] = token
            if state == _ROOT:
                return
            state = link[state]


class SuffixDraft:
    """Proposes the most frequent continuation of the longest match of the sequence's own ending.

    It is looked for in the sequence itself and in `text`, one that an operator chose; never in
    another sequence. The longer match is taken, of equal ones the sequence's own.

    Args:
        text: token ids; empty for none.
        shortest: matches of fewer tokens propose nothing.

    Raises:
        UsageError: `shortest` outside [1, LONGEST_MATCH], or a text over `LARGEST_TEXT` tokens.
    """

    name = "suffix"
    context = None
    shares_store = False
    reach = LOOKED_UP

    def __init__(self, text: Sequence[int] = (), *, shortest: int = 2) -> None:
        if not 1 <= shortest <= LONGEST_MATCH:
            raise UsageError(
                f"matches of {shortest} tokens at least cannot be; give 1 to {LONGEST_MATCH}."
            )
        if len(text) > LARGEST_TEXT:
            raise UsageError(
                f"the text to draft from has {len(text)} tokens, and an automaton holds "
                f"{LARGEST_TEXT} at most; give a shorter one."
            )
        self._text = SuffixAutomaton(text) if text else None
        self._shortest = shortest
        self._readers: dict[int, _Reader] = {}

    def pending(self, query: DraftQuery) -> int:
        """Return 0: reading costs microseconds a token."""
        return 0

    def propose(self, queries: Sequence[DraftQuery]) -> list[Proposal]:
        """Return what most often followed each sequence's ending; nothing where it is new."""
        return [self._propose(query) for query in queries]

    def release(self, sequence: int) -> None:
        """Forget a sequence."""
        self._readers.pop(sequence, None)

    def _propose(self, query: DraftQuery) -> Proposal:
        reader = self._readers.get(query.sequence)
        if reader is None:
            reader = self._readers[query.sequence] = _Reader(self._text)
        reader.read(query.tokens)
        automaton, match = reader.longest()
        if match.size < self._shortest:
            return Proposal(())
        tokens = automaton.continuation(match, query.length)
        wanted = query.siblings[0] if query.siblings and tokens else 0
        if not wanted:
            return Proposal(tuple(tokens))
        others = automaton.others(match, tokens[0], wanted, self._shortest)
        reach = min(query.reach, query.length)
        branches = (Branch(0, tuple(automaton.after(match, token, reach))) for token in others)
        return Proposal(tuple(tokens), branches=tuple(branches))


class _Reader:
    """What was read of one sequence: its own automaton, and where in the text its ending is."""

    def __init__(self, text: SuffixAutomaton | None) -> None:
        self._own = SuffixAutomaton()
        self._text = text
        self._in_text = NO_MATCH
        self._count = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Read the tokens not yet seen."""
        new = tokens[self._count :]
        self._count = len(tokens)
        self._own.extend(new)
        if self._text is not None:
            for token in new:
                self._in_text = self._text.step(self._in_text, token)

    def longest(self) -> tuple[SuffixAutomaton, Match]:
        """Return the longest match that something followed, and the automaton that has it."""
        own = self._own.known(self._own.ending)
        if self._text is not None:
            found = self._text.known(self._in_text)
            if found.size > own.size:
                return self._text, found
        return self._own, own
