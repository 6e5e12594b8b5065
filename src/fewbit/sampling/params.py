"""How a request wants its tokens chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fewbit.errors import RequestError

BAN = -100.0
"""A logit bias of this or less removes the token, as users of the OpenAI API expect."""

SMALLEST_TEMPERATURE = 1e-6
"""Below this the division of float32 logits says no more than taking the largest."""


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen; the defaults draw from the model's own distribution.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off, as are a
    `repetition_penalty` of 1 and the other penalties at 0. `logit_bias` maps token ids to what is
    added. `seed` None lets the engine choose one, which it reports.

    Raises:
        RequestError: a value outside its range; the message names the field and the value.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        _require_number("temperature", self.temperature, "0 or in [1e-6, 1e6]", _is_temperature)
        _require_integer("top_k", self.top_k, 1 << 31)
        _require_number("top_p", self.top_p, "in (0, 1]", lambda v: 0 < v <= 1)
        _require_number("min_p", self.min_p, "in [0, 1]", lambda v: 0 <= v <= 1)
        _require_number(
            "repetition_penalty",
            self.repetition_penalty,
            "in [1e-6, 100]",
            lambda v: 1e-6 <= v <= 100,
        )
        for name in ("frequency_penalty", "presence_penalty"):
            _require_number(name, getattr(self, name), "in [-2, 2]", lambda v: -2 <= v <= 2)
        if self.seed is not None:
            _require_integer("seed", self.seed, 1 << 64)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether the largest logit wins and no random number is used."""
        return self.temperature == 0

    @property
    def penalized(self) -> bool:
        """Whether the choice depends on earlier tokens beyond what the model makes of them."""
        plain = self.repetition_penalty == 1
        return not plain or self.frequency_penalty != 0 or self.presence_penalty != 0

    def require_vocabulary(self, vocabulary: int) -> None:
        """Check that every biased id exists.

        Raises:
            RequestError: an id is not below `vocabulary`.
        """
        for token in self.logit_bias:
            if token >= vocabulary:
                raise RequestError(
                    f"logit_bias names token {token}, but the vocabulary has {vocabulary} tokens; "
                    "use an id below that."
                )


def _is_temperature(value: float) -> bool:
    return value == 0 or SMALLEST_TEMPERATURE <= value <= 1e6


def _require_number(name: str, value: object, allowed: str, holds: Callable[[float], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not holds(value):  # type: ignore[arg-type]
        raise RequestError(f"{name} is {value!r}; it must be {allowed}.")


def _require_integer(name: str, value: object, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
        raise RequestError(f"{name} is {value!r}; it must be an integer in [0, {limit - 1}].")


def _checked_bias(bias: Mapping[int, float]) -> Mapping[int, float]:
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias is {bias!r}; it must map token ids to numbers.")
    for token, value in bias.items():
        _require_integer("a token id in logit_bias", token, 1 << 31)
        _require_number(f"logit_bias of token {token}", value, "-inf or in [-1e4, 1e4]", _is_bias)
    return MappingProxyType(dict(bias))


def _is_bias(value: float) -> bool:
    return value == -math.inf or -1e4 <= value <= 1e4
