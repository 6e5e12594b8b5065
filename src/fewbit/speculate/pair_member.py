"""One side of a pair of target and draft: what of a model decides how well they fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fewbit.model.cut_head import kept_ids
from fewbit.model.facts import model_facts
from fewbit.model.tokenizer import chat_template_of, tokenizer_of
from fewbit.model.weights import ModelSource
from fewbit.tokens.identity import Cutting, cutting
from fewbit.tokens.mapping import TokenMap, map_tokens
from fewbit.tokens.tokenizer import Tokenizer

SHOWN = 3
"""Examples of one difference, at most."""


@dataclass(frozen=True)
class PairMember:
    """A model as a target or a draft."""

    name: str
    path: str
    tokenizer: Tokenizer
    template: str | None
    context: int
    """Positions it was made for."""
    rows: int
    """Of its embedding."""
    kept: NDArray[np.int32] | None = None
    """The ids that a cut head has, ascending; None for a whole one."""

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids that are tokens and can be run."""
        vocabulary = self.tokenizer.backend.get_vocab(with_added_tokens=True)
        return frozenset(token for token in vocabulary.values() if token < self.rows)

    @cached_property
    def cutting(self) -> Cutting:
        """How its tokenizer cuts text."""
        return cutting(self.tokenizer)

    def token(self, token: int | None) -> str:
        """Return what a token stands for and its id, for a message; text in quotes."""
        if token is None:
            return "none"
        if token in self.tokenizer.special_ids:
            return f"{self.tokenizer.token_text(token)} ({token})"
        return (
            f"{self.tokenizer.token_bytes(token).decode('utf-8', 'backslashreplace')!r} ({token})"
        )

    def tokens(self, ids: Iterable[int]) -> str:
        """Return the texts and ids of several tokens, for a message."""
        return ", ".join(self.token(token) for token in ids) or "nothing"


@dataclass(frozen=True)
class Pair:
    """A target, a draft, and the tokens that they share."""

    target: PairMember
    draft: PairMember
    tokens: TokenMap

    @property
    def proposed(self) -> TokenMap:
        """The tokens that the draft can propose: a cut head has only some of those it shares."""
        kept = self.draft.kept
        return self.tokens if kept is None else self.tokens.restricted(kept)

    def reads(self, token: int | None) -> int | None:
        """Return the draft's token for one of the target's; None where it has no single one."""
        read = () if token is None else tuple(self.tokens.read([token]))
        return read[0] if len(read) == 1 else None


def member_of(source: ModelSource) -> PairMember:
    """Return a model as one side of a pair.

    Raises:
        MissingError: it carries no tokenizer.
        BadFileError, UnsupportedError: its tokenizer cannot be used.
    """
    facts = model_facts(source)
    return PairMember(
        name=facts.name,
        path=facts.path,
        tokenizer=tokenizer_of(source),
        template=chat_template_of(source),
        context=source.config.context,
        rows=source.config.vocabulary,
        kept=kept_ids(source),
    )


def pair_of(target: PairMember, draft: PairMember) -> Pair:
    """Return two members with the map between their tokens."""
    tokens = map_tokens(
        target.tokenizer, draft.tokenizer, target_rows=target.rows, draft_rows=draft.rows
    )
    return Pair(target, draft, tokens)
