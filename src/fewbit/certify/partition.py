"""Tokens that the real model emits along drafts, against its own probabilities, by one test.

A test against all tokens at once has no power where it matters: a bias that moves 0.600 to 0.630
drowns in the noise of thousands of rare tokens. So the vocabulary is parted in two beforehand, and
only the first part is counted. What the target says of it is known exactly for every emitted token,
from the very logits that judged it; given the tokens before, the indicator minus that probability
has mean 0, whatever block the token came in. Their sum over the root of their summed variances is
normal (martingale central limit theorem), and so many tokens are drawn that a bias of `BIAS` in the
probability is noticed with `POWER`.

Positions count where the probability lies in [0.05, 0.95]: elsewhere there is no room for a bias.
That is decided by the tokens before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.certify.cases import PROMPTS
from fewbit.certify.forced import forced, stopped
from fewbit.certify.parts import Parts
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request
from fewbit.engine.served import Drawing
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.progress import Progress
from fewbit.records.base import Record
from fewbit.records.certificate import SamplingCheck
from fewbit.sampling import Block, Drawn, SamplingParams, TokenSampler, sample_blocks
from fewbit.speculate.drafts import Draft
from fewbit.speculate.fresh import fresh

BIAS = 0.01
LEVEL = 0.001
POWER = 0.8
CRITICAL = NormalDist().inv_cdf(1 - LEVEL / 2)
ROOM = 0.05
"""Probabilities nearer to 0 or 1 than this do not count."""

PARTITION = "tokens with an odd id"

_SHIFT = CRITICAL + NormalDist().inv_cdf(POWER)
_SEED = 2026
TOKENS = 200
"""Of each request."""

_TOGETHER = 16

_IN_VAIN = 4
"""Waves without a token that counts, after which no more are drawn."""


@dataclass(frozen=True)
class Sought:
    """A bias of the probability that is to be noticed, and what draws: a control's is biased."""

    bias: float = BIAS
    draw: Callable[..., list[Drawn]] = sample_blocks


SOUGHT = Sought()


def check_sampling(  # noqa: PLR0913, PLR0917
    target: LoadedModel,
    draft: Draft,
    longest: int,
    watch: Progress,
    sought: Sought = SOUGHT,
    parts: Parts | None = None,
) -> SamplingCheck:
    """Draw, wave after wave of requests, until the bias sought would be noticed, and test.

    Args:
        target: the model.
        draft: what drafts; requests have no seed, so that proposals are judged by rejection.
        longest: tokens drafted at once.
        watch: told of progress.
        sought: what is to be noticed.
        parts: keeps the waves.

    Raises:
        UsageError: no token of several waves counts, so that more of them would find nothing.
    """
    parts, counted = parts or Parts(), Counted()
    wanted = tokens_needed(sought.bias, 0.25)
    for number, requests in enumerate(_waves(target)):
        watch("sampling", min(counted.tokens, wanted - 1), wanted)
        draw = partial(_drawn_wave, target, draft, longest, requests, sought)
        counted += parts.once("sampling", f"wave {number}, {longest} at once", Counted, draw)
        if counted.tokens > 0 and counted.tokens >= tokens_needed(sought.bias, counted.spread):
            return _tested(counted)
        if not counted.tokens and number + 1 == _IN_VAIN:
            raise UsageError(
                f"none of {_IN_VAIN * _TOGETHER} sampled texts has a place where {PARTITION} have "
                f"a chance of {ROOM:.0%} to {1 - ROOM:.0%}, so sampling shows nothing of this "
                "model; leave --long out."
            )
    raise AssertionError("requests do not end")


def _drawn_wave(
    target: LoadedModel, draft: Draft, longest: int, requests: Sequence[Request], sought: Sought
) -> Counted:
    """Draw one wave of requests."""
    counting = _Counting(target.vocabulary, sought.draw)
    speculation = forced(fresh(draft), longest)
    drawing = Drawing(_repeatable, counting.draw)
    engine = Engine(target.served, speculation, clock=stopped, drawing=drawing)
    for output in engine.generate(requests):
        if output.fault is not None:
            raise output.fault
    return counting.counted


def _tested(counted: Counted) -> SamplingCheck:
    deviation = float(np.sqrt(counted.variance))
    return SamplingCheck(
        partition=PARTITION,
        tokens=counted.tokens,
        drafted=counted.drafted,
        bias=counted.total / counted.tokens,
        z=counted.total / deviation,
        critical=CRITICAL,
        level=LEVEL,
        detectable=_SHIFT * deviation / counted.tokens,
        power=POWER,
    )


def tokens_needed(bias: float, spread: float) -> int:
    """Return how many tokens notice a bias with `POWER`, each of a variance of `spread`."""
    return int(spread * (_SHIFT / bias) ** 2) + 1


class Counted(Record, frozen=True, kw_only=True):
    """Sums over the tokens that count."""

    tokens: int = 0
    drafted: int = 0
    """Of them, those that were drafted."""
    total: float = 0.0
    """Of indicator - probability."""
    variance: float = 0.0

    @property
    def spread(self) -> float:
        """The mean variance of a token that counted."""
        return self.variance / self.tokens

    def __add__(self, other: Counted) -> Counted:
        """Return the sums over both."""
        return Counted(
            tokens=self.tokens + other.tokens,
            drafted=self.drafted + other.drafted,
            total=self.total + other.total,
            variance=self.variance + other.variance,
        )


class _Counting:
    """Draws, and sums over the tokens that count."""

    def __init__(self, vocabulary: int, draw: Callable[..., list[Drawn]]) -> None:
        self._tokens = self._drafted = 0
        self._total = self._variance = 0.0
        self._vocabulary = vocabulary
        self._draw = draw

    @property
    def counted(self) -> Counted:
        """What was counted."""
        return Counted(
            tokens=self._tokens,
            drafted=self._drafted,
            total=self._total,
            variance=self._variance,
        )

    def draw(
        self, logits: NDArray[np.float32], blocks: Sequence[Block], **options: Any
    ) -> list[Drawn]:
        """Draw, and count what was drawn, each token by the row that it came from."""
        before = [block.sampler.fork() for block in blocks]
        found = self._draw(logits, blocks, **options)
        for sampler, block, drawn in zip(before, blocks, found, strict=True):
            for j, token in enumerate(drawn.tokens):
                row = sampler.probabilities(logits[block.row + j], vocabulary=self._vocabulary)
                self._drafted += self._count(token, float(row[1::2].sum())) and (
                    j < len(drawn.tokens) - 1
                )
                sampler.remember([token])
        return found

    def _count(self, token: int, chance: float) -> bool:
        """Add a token that is in the first part with this chance; return whether it counts."""
        if not ROOM <= chance <= 1 - ROOM:
            return False
        self._tokens += 1
        self._total += token % 2 - chance
        self._variance += chance * (1 - chance)
        return True


def _repeatable(params: SamplingParams, **given: Any) -> TokenSampler:
    """Return a sampler whose numbers are the same in every run, of a request without a seed."""
    return TokenSampler(params, **{**given, "seed": _SEED})


def _waves(target: LoadedModel) -> Iterator[list[Request]]:
    """Yield requests without end, so many at once, each with numbers of its own."""
    prompts = [target.text_prompt(text) for text in PROMPTS.values()]
    for wave in count():
        samples = range(wave * _TOGETHER, (wave + 1) * _TOGETHER)
        stop = StopCondition(TOKENS)
        yield [
            Request(prompts[sample % len(prompts)], SamplingParams(), stop, sample=sample)
            for sample in samples
        ]
