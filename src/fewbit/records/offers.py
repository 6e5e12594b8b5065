"""The built-in recipes as they are offered: what each takes and what to expect of it."""

from __future__ import annotations

from fewbit.records.base import Record


class Offer(Record, frozen=True, kw_only=True):
    """One recipe, for a model where one is named."""

    recipe: str
    use: str
    """What it is for."""
    bits: float
    """Of a weight in a decoder layer, scales included, where blocks and groups divide it."""
    expected_divergence: float | None = None
    """Mean KL(source || candidate) in nats per position to expect; None where nothing is known."""
    measured: bool = False
    """Whether that was measured with this very recipe, and not reckoned from others."""
    bytes: int | None = None
    """Of the model's tensors; None without a model."""
    seconds: float | None = None
    refused: str = ""
    """Why the recipe does not fit the model."""


class Offers(Record, frozen=True, kw_only=True):
    """The list."""

    model: str | None = None
    offers: tuple[Offer, ...]
    conditions: tuple[str, ...]
    """Sentences on where the figures come from."""
