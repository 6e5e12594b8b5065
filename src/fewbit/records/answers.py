"""What a model answered when it was asked, and how likely it found a given answer."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.generation import FinishReason


class TokenChance(Record, frozen=True, kw_only=True):
    """A token and its log-probability, in nats, under the model's unchanged logits."""

    token: str
    """As the vocabulary writes it, or as an endpoint gives it."""
    logprob: float


class TokenScore(Record, frozen=True, kw_only=True):
    """A generated token, and the likeliest at its place."""

    token: str
    logprob: float
    top: tuple[TokenChance, ...] = ()
    """Likeliest first."""


class Answer(Record, frozen=True, kw_only=True):
    """One generation. Times are wall-clock seconds beside whatever else was served then."""

    name: str
    text: str
    tokens: int
    """Generated, the one that ended it included."""
    finish: FinishReason
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt, found in a cache."""
    first_token: float | None
    """From arrival; None where none came."""
    gaps: tuple[float, ...]
    """Between each token and the one before."""
    seconds: float
    """From arrival to the end."""
    logprobs: tuple[TokenScore, ...] = ()


class Likelihood(Record, frozen=True, kw_only=True):
    """How likely a model finds a continuation of a context."""

    logprob: float
    """Of the whole continuation, in nats."""
    tokens: int
    """It is that many."""
    greedy: bool
    """Whether every one of them is the model's first choice."""


class AnswererFacts(Record, frozen=True, kw_only=True):
    """What answers, and how a text and a conversation reach it."""

    name: str
    begins: str
    """What is put before a text, in words; it is there once."""
    template: str
    """The SHA-256 of the chat template; empty where there is none."""
