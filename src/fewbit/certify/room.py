"""The store that a certificate's requests need, known before anything is loaded."""

from __future__ import annotations

from typing import NamedTuple

from fewbit.certify.cases import PROMPTS, CertifySettings
from fewbit.certify.partition import TOKENS
from fewbit.certify.rollback import DRAFT_TOKENS, PROMPT, cache_tokens
from fewbit.errors import UsageError
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import ModelSource

_SPACIOUS = 512
"""Positions for each request: branches take pages beside those of their sequence."""


class Room(NamedTuple):
    """A store for so many sequences of a context."""

    sequences: int
    context: int


def room_for(model: ModelSource, settings: CertifySettings) -> Room:
    """Return the store that a model is to be loaded with; one request more has room for checks.

    Raises:
        UsageError: the model was made for fewer positions than a request takes.
        MissingError, BadFileError, UnsupportedError: as `tokenizer_of`.
    """
    needs, most = _needs(model, settings), model.config.context
    way_out, needed = max(needs.items(), key=lambda need: need[1])
    if needed > most:
        raise UsageError(
            f"The longest request of this certificate takes {needed} positions, and {model.path} "
            f"was made for {most}; {way_out}."
        )
    spacious = max(needed, _SPACIOUS)
    context = min(spacious, most)
    return Room(-(-(max(settings.together) + 1) * spacious // context), context)


def _needs(model: ModelSource, settings: CertifySettings) -> dict[str, int]:
    """Return how many positions requests take, by what would need fewer."""
    tokenizer = tokenizer_of(model)
    prompts = {name: len(tokenizer.encode(text)) for name, text in PROMPTS.items()}
    own, longest = prompts[PROMPT], max(prompts.values())
    filled = cache_tokens(own, max(settings.lengths), settings.branches)
    return {
        "certify a model with a longer context": own + max(DRAFT_TOKENS, filled),
        "lower --tokens": longest + settings.tokens,
        "leave --long out": longest + TOKENS if settings.long else 0,
    }
