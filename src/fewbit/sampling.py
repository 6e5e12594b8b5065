"""From logits to a token: one pipeline for plain decoding, drafts and verification.

The order of the pipeline, and whose it is:

1. ids at or beyond the tokenizer's vocabulary (padding rows of the head) are masked;
2. `logit_bias` is added; a bias of -100 or less bans the token;
3. penalties: repetition over prompt and output, frequency and presence over the output alone;
4. temperature (0 picks the largest logit and ends here);
5. top-k, then top-p over what top-k left, then min-p; softmax over what is left.

1 to 4 are vLLM's order. Truncation follows Hugging Face's (vLLM applies min-p before top-k and
top-p, so that top-p sees a larger share; llama.cpp divides by the temperature last, so its top-p
does not feel it). Truncation comes after temperature because a user who raises the temperature
asks for more candidates. Every tie is broken by (logit descending, id ascending): top-k keeps
exactly k tokens, where both others keep all that tie with the k-th.

`distribution` is the NumPy truth. `TokenSampler` and `sample_blocks` are its native twin; both
compute logits in float32 with the same operations, so they order tokens alike. A token is drawn
by inverse CDF over the kept tokens in ascending id order, with the uniform number of (seed,
sample, position, `Purpose.TOKEN`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbit import _native
from fewbit.errors import NumericalError, RequestError

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


@dataclass(frozen=True, eq=False)
class History:
    """The tokens before the one to draw: int32 [tokens], of which the first `prompt` were given."""

    tokens: NDArray[np.int32]
    prompt: int


NO_HISTORY = History(np.empty(0, np.int32), 0)


def distribution(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: History = NO_HISTORY,
    *,
    vocabulary: int | None = None,
) -> NDArray[np.float64]:
    """Return the probabilities that a token is drawn from, float64 [V].

    Args:
        logits: float32 [V], as the model gives them.
        params: the request's choices.
        history: what penalties look at.
        vocabulary: ids from here on are padding and never drawn; None for no padding.

    Raises:
        NumericalError: a logit is not finite, or every token is banned; says where.
    """
    adjusted = adjusted_logits(logits, params, history, vocabulary=vocabulary)
    best = int(np.argmax(adjusted))
    if params.greedy:
        return np.asarray(np.arange(len(adjusted)) == best, np.float64)
    scaled = (adjusted - adjusted[best]) / np.float32(params.temperature)
    mass = np.exp(scaled.astype(np.float64))
    kept = _kept(scaled, mass, params)
    mass[~kept] = 0.0
    return np.asarray(mass / mass.sum())


def adjusted_logits(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: History = NO_HISTORY,
    *,
    vocabulary: int | None = None,
) -> NDArray[np.float32]:
    """Return the logits after mask, bias and penalties, float32 [V]; banned tokens are -inf.

    Raises:
        NumericalError: a logit is not finite, or every token is banned.
    """
    limit = len(logits) if vocabulary is None else vocabulary
    bad = np.flatnonzero(~np.isfinite(logits[:limit]))
    if bad.size:
        raise _fault("not_finite", int(bad[0]), float(logits[bad[0]]))
    adjusted = np.array(logits, np.float32)
    adjusted[limit:] = -np.inf
    for token, bias in params.logit_bias.items():
        adjusted[token] = -np.inf if bias <= BAN else adjusted[token] + np.float32(bias)
    _penalize(adjusted, params, history)
    if not np.isfinite(adjusted).any():
        raise _fault("all_masked", 0, 0.0)
    return adjusted


def _penalize(adjusted: NDArray[np.float32], params: SamplingParams, history: History) -> None:
    seen = np.unique(history.tokens)
    penalty = np.float32(params.repetition_penalty)
    if penalty != 1:
        values = adjusted[seen]
        adjusted[seen] = np.where(values > 0, values / penalty, values * penalty)
    made, counts = np.unique(history.tokens[history.prompt :], return_counts=True)
    frequency, presence = (
        np.float32(params.frequency_penalty),
        np.float32(params.presence_penalty),
    )
    adjusted[made] -= frequency * counts.astype(np.float32) + presence


def _kept(
    scaled: NDArray[np.float32], mass: NDArray[np.float64], params: SamplingParams
) -> NDArray[np.bool_]:
    """Return which tokens survive top-k, top-p and min-p."""
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        reached = np.cumsum(mass[order])
        order = order[: int(np.searchsorted(reached, params.top_p * reached[-1])) + 1]
    kept = np.zeros(len(scaled), np.bool_)
    kept[order] = True
    return np.asarray(kept & (mass >= params.min_p) & (mass > 0))


class TokenSampler:
    """Draws the tokens of one sequence; holds what penalties need to know of its past.

    Args:
        params: the request's choices.
        seed: the key of its random numbers; the request's, or one the engine chose.
        sample: which of a request's several outputs this is.
        prompt: the given tokens.
    """

    def __init__(
        self, params: SamplingParams, *, seed: int, sample: int = 0, prompt: Iterable[int] = ()
    ) -> None:
        self.native = _native.TokenSampler(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            biased=list(params.logit_bias),
            bias=[-math.inf if b <= BAN else b for b in params.logit_bias.values()],
            seed=seed,
            sample=sample,
        )
        if params.penalized:
            self.native.remember(list(prompt), generated=False)

    def fork(self) -> TokenSampler:
        """Return a copy that draws the same and forgets apart, as a draft needs it."""
        copied = copy(self)
        copied.native = self.native.fork()
        return copied

    def remember(self, tokens: Sequence[int]) -> None:
        """Add generated tokens that another sampler drew; `sample_blocks` adds its own."""
        self.native.remember(list(tokens), generated=True)

    def probabilities(
        self,
        logits: NDArray[np.float32],
        *,
        vocabulary: int | None = None,
        isa: str | None = None,
    ) -> NDArray[np.float64]:
        """Return `distribution` of float32 [V] logits as the native pipeline computes it.

        `isa` forces an instruction set, as tests do; every one gives the same bits.

        Raises:
            NumericalError: as `distribution`.
        """
        limit = len(logits) if vocabulary is None else vocabulary
        found, fault, where = self.native.probabilities(logits, limit, isa)
        if fault:
            raise _fault(fault, where, float(logits[where]))
        return np.asarray(found)


class Block(NamedTuple):
    """What to draw for one sequence: rows `row` to `row + len(draft)` of the logits.

    Row `row + j` is the model's output after the sequence's tokens and `draft[:j]`; the token
    drawn from it stands at `position + j`. `top_logprobs` is how many of the likeliest tokens to
    report beside each drawn one; None for no log-probabilities at all.
    """

    sampler: TokenSampler
    row: int
    position: int
    draft: Sequence[int] = ()
    top_logprobs: int | None = None


class TokenLogprob(NamedTuple):
    """The log-probability of a token under the model's unchanged logits, and the likeliest ones."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """(id, log-probability) in the order (logit descending, id ascending)."""


class Drawn(NamedTuple):
    """The tokens drawn for a block: those of the draft that were drawn again, then one more."""

    tokens: list[int]
    logprobs: list[TokenLogprob]
    """One for each token, or empty where none were asked for."""
    fault: NumericalError | None = None
    """Why the block ended early; tokens drawn before it stand."""


class SamplingThreads:
    """Buffers for drawing, and an executor's threads, which are idle between two steps.

    Threads change no bit: a sequence is drawn by one of them.

    Args:
        pool: the threads; None for the caller's alone.
    """

    def __init__(self, pool: _native.ThreadPool | None = None) -> None:
        self.native = _native.SamplingThreads(pool)


def sample_blocks(
    logits: NDArray[np.float32],
    blocks: Sequence[Block],
    *,
    vocabulary: int | None = None,
    threads: SamplingThreads | None = None,
) -> list[Drawn]:
    """Draw for several sequences in one call, without a draft or along one.

    From each row of a block a token is drawn exactly as without a draft, with its own keyed random
    number and the penalties of the tokens drawn so far. The next row is used only if that token
    equals the draft's, because only then did the model see it. So the output never depends on the
    draft.

    Args:
        logits: float32 [rows, V], C-contiguous; read in place.
        blocks: what to draw.
        vocabulary: ids from here on are padding; None for no padding.
        threads: who draws; None for the caller alone, with buffers of this call.
    """
    limit = logits.shape[1] if vocabulary is None else vocabulary
    drawing = SamplingThreads() if threads is None else threads
    results = drawing.native.draw(
        logits,
        limit,
        [block.sampler.native for block in blocks],
        [block.row for block in blocks],
        [block.position for block in blocks],
        [list(block.draft) for block in blocks],
        [-1 if block.top_logprobs is None else block.top_logprobs for block in blocks],
    )
    drawn = []
    for tokens, details, fault, row, where in results:
        error = _fault(fault, where, float(logits[row, where])) if fault else None
        drawn.append(Drawn(tokens, [_logprob(*detail) for detail in details], error))
    return drawn


def _logprob(total: float, shifted: float, ids: list[int], others: list[float]) -> TokenLogprob:
    log_total = math.log(total)
    top = tuple((i, other - log_total) for i, other in zip(ids, others, strict=True))
    return TokenLogprob(shifted - log_total, top)


def _fault(kind: str, token: int, value: float) -> NumericalError:
    if kind == "not_finite":
        return NumericalError(
            f"the logit of token {token} is {value}; check the model's weights with "
            "'fewbit inspect'."
        )
    return NumericalError(
        "every token is banned, so none can be drawn; allow at least one in logit_bias."
    )


def _is_temperature(value: float) -> bool:
    return value == 0 or SMALLEST_TEMPERATURE <= value <= 1e6


def _require_number(name: str, value: object, allowed: str, holds: Callable[[float], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not holds(float(value)):  # type: ignore[arg-type]
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
