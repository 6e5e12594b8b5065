"""Two vocabularies seen as one: which tokens they share, by the bytes that these stand for.

A draft with another vocabulary reads the target's tokens one by one, each as the draft's own token
of the same bytes, or as several that spell it. So what it has read of a sequence stays valid while
the sequence grows. It proposes only tokens that both have.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.tokens.identity import vocabulary
from fewbit.tokens.pieces import is_byte_token
from fewbit.tokens.tokenizer import MAX_IDS, SpecialTokens, Tokenizer

_Key = tuple[bool, bytes]
"""Whether a token is special, and its bytes: a special token is no text that spells it."""


class TokenMap:
    """The tokens that a target and a draft share.

    Attributes:
        support: int32 [n], the target's ids that the draft can propose, ascending.
        draft_ids: int32 [n], the draft's id of each; no id occurs twice.
        passes_ids: the draft reads every token of the target by the same id, so nothing needs
            mapping. It may have more tokens; they are never proposed.
        beginning: what the draft reads before a sequence: its own begin-of-text token, where ids
            are mapped and the target's texts begin without one.
    """

    def __init__(
        self,
        support: ArrayLike,
        draft_ids: ArrayLike,
        readings: Sequence[tuple[int, ...]],
        beginning: tuple[int, ...] = (),
    ) -> None:
        """Keep a map.

        Args:
            support: as the attribute.
            draft_ids: as the attribute.
            readings: for each id of the target, what the draft reads in its place.
            beginning: as the attribute.
        """
        self.support: NDArray[np.int32] = np.asarray(support, np.int32)
        self.draft_ids: NDArray[np.int32] = np.asarray(draft_ids, np.int32)
        self._readings = readings
        self.beginning = beginning
        self.passes_ids = all(reading == (token,) for token, reading in enumerate(readings))

    def read(self, tokens: Iterable[int]) -> list[int]:
        """Return what the draft reads in place of the target's tokens.

        Each token is read by itself, so the reading of a longer sequence begins with that of a
        shorter one. The bytes are the same, unless the draft has no token for one of them.
        """
        return [own for token in tokens for own in self._readings[token]]

    def restricted(self, kept: ArrayLike) -> TokenMap:
        """Return the map for a draft that proposes only the ids `kept`; it reads all the same."""
        left = np.isin(self.draft_ids, np.asarray(kept))
        return TokenMap(self.support[left], self.draft_ids[left], self._readings, self.beginning)


def map_tokens(
    target: Tokenizer,
    draft: Tokenizer,
    *,
    target_rows: int | None = None,
    draft_rows: int | None = None,
) -> TokenMap:
    """Return the tokens that two tokenizers share.

    Tokens of equal bytes are the same token; special ones apart from text, unless one side has an
    added token for special and the other does not. Where several have the same bytes, equal ids
    come first, then pieces before byte tokens, then lower ids. The tokens that begin and end a text
    stand for each other where their names differ and the other side has no such name.

    Args:
        target: whose ids a sequence has.
        draft: what is to read and propose.
        target_rows: rows of the target's embedding; ids from there on cannot be run.
        draft_rows: the same of the draft.
    """
    size = min(target.vocabulary_size, MAX_IDS if target_rows is None else target_rows)
    if size <= (MAX_IDS if draft_rows is None else draft_rows) and same_tokens(target, draft):
        every = range(size)
        return TokenMap(every, every, [(token,) for token in every])
    ours, theirs = _tokens(target, target_rows), _tokens(draft, draft_rows)
    found = {token: token for token, key in ours.items() if theirs.get(token) == key}
    _join(found, ours, theirs)
    _join(found, *(_added(*side) for side in ((target, ours), (draft, theirs))))
    _map_roles(found, target.special, draft.special, theirs)
    support = sorted(found)
    spelling = _Spelling(theirs, draft.special.unknown)
    readings = [_reading(token, found, ours, spelling) for token in range(size)]
    own = draft.behaviour.prefix
    beginning = () if target.behaviour.prefix or not set(own) <= theirs.keys() else own
    return TokenMap(support, [found[token] for token in support], readings, beginning)


def _reading(
    token: int, found: Mapping[int, int], ours: Mapping[int, _Key], spelling: _Spelling
) -> tuple[int, ...]:
    """Return what the draft reads for an id; nothing for one that no token has."""
    if token in found:
        return (found[token],)
    return spelling.of(ours[token][1]) if token in ours else ()


def same_tokens(target: Tokenizer, draft: Tokenizer) -> bool:
    """Return whether every id is the same token in both; what padding rows are called aside."""
    sides = [(t.behaviour.pieces.kind, t.added_tokens) for t in (target, draft)]
    vocabularies = [t.backend.get_vocab(with_added_tokens=True) for t in (target, draft)]
    return sides[0] == sides[1] and vocabularies[0] == vocabularies[1]


def _tokens(tokenizer: Tokenizer, rows: int | None) -> dict[int, _Key]:
    """Return what each id that can be run stands for; the likeliest of equal ones first."""
    texts, added, special = vocabulary(tokenizer), tokenizer.added_tokens, tokenizer.special_ids
    pieces = tokenizer.behaviour.pieces
    return {
        token: (token in special, pieces.added_token(texts[token]))
        if token in added
        else (False, pieces.model_token(texts[token]))
        for token in _in_order(texts)
        if rows is None or token < rows
    }


def _in_order(texts: Mapping[int, str]) -> list[int]:
    """Return ids ascending, with SentencePiece's byte tokens last."""
    ids = sorted(texts)
    octets = [token for token in ids if texts[token].startswith("<0x")]
    octets = [token for token in octets if is_byte_token(texts[token])]
    if not octets:
        return ids
    last = set(octets)
    return [*(token for token in ids if token not in last), *octets]


def _added(tokenizer: Tokenizer, tokens: Mapping[int, _Key]) -> dict[int, _Key]:
    """Return the added ones alone, special or not."""
    return {token: (True, tokens[token][1]) for token in tokenizer.added_tokens if token in tokens}


def _join(found: dict[int, int], ours: Mapping[int, _Key], theirs: Mapping[int, _Key]) -> None:
    """Give each token that has no partner yet the first free one of its key."""
    free: defaultdict[_Key, deque[int]] = defaultdict(deque)
    taken = set(found.values())
    for token, key in theirs.items():
        if token not in taken:
            free[key].append(token)
    for token, key in ours.items():
        if token not in found and free.get(key):
            found[token] = free[key].popleft()


def _map_roles(
    found: dict[int, int], target: SpecialTokens, draft: SpecialTokens, theirs: Container[int]
) -> None:
    """Let the tokens that begin and end a text stand for each other where no name matches."""
    taken = set(found.values())
    for ours, other in ((target.bos, draft.bos), (target.eos, draft.eos)):
        if ours is None or other is None or ours in found or other in taken or other not in theirs:
            continue
        found[ours] = other
        taken.add(other)


class _Spelling:
    """Spells bytes with a vocabulary's tokens, the longest that fits first."""

    def __init__(self, tokens: Mapping[int, _Key], unknown: int | None) -> None:
        self._tokens: dict[bytes, int] = {}
        for token, (special, data) in tokens.items():
            if data and not special:
                self._tokens.setdefault(data, token)
        self._longest = max(map(len, self._tokens), default=0)
        self._unknown = () if unknown is None else (unknown,)

    def of(self, data: bytes) -> tuple[int, ...]:
        """Return the tokens; the unknown one, or none, in place of a byte without a token."""
        spelled: list[int] = []
        while data:
            tokens, length = self._first(data)
            spelled += tokens
            data = data[length:]
        return tuple(spelled)

    def _first(self, data: bytes) -> tuple[tuple[int, ...], int]:
        for length in range(min(self._longest, len(data)), 0, -1):
            token = self._tokens.get(data[:length])
            if token is not None:
                return (token,), length
        return self._unknown, 1
