"""A model behind an OpenAI-compatible URL: what it says of itself, and what could be measured."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.drawn import Distribution


class EndpointFacts(Record, frozen=True, kw_only=True):
    """What an endpoint says of itself; nothing secret."""

    url: str
    """Without user, password and query."""
    model: str
    """As the server calls it."""
    server: str
    """What serves, as far as it says so."""
    vocabulary: int | None
    """Tokens; None where the server does not say."""
    context: int | None
    bytes: int | None
    """Of the weights."""
    template: str
    """The SHA-256 of the chat template; empty where the server does not show it."""


class EndpointDetails(Record, frozen=True, kw_only=True, tag="endpoint"):
    """What axis `endpoint` found."""

    endpoint: EndpointFacts
    top: int
    """Of each distribution the endpoint gives that many of the likeliest tokens."""
    positions: int
    """Of generated text at which both distributions were compared."""
    unseen: float
    """The mean probability, on the source, of what the endpoint does not list."""
    latency: tuple[Distribution, ...]
    """Times to the first token and every gap, at each concurrency."""
