"""Axis `endpoint`: what can be measured of a deployed model alone by asking it.

Divergence: a server gives the k likeliest tokens at each place of a text that it generates. The
source is run over the same tokens, and both distributions are made coarser alike: the k tokens, and
all others as one. The divergence of these is never larger than that of the whole distributions
(data processing inequality; Cover and Thomas 2006, 2.8), so the figure is a lower bound of KL.
Latency: each time to a first token and each gap, as they reach the asker. A server keeps prompts
that it has read, so at each concurrency they begin otherwise, and the first tokens of those that it
says it found in its cache are told apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fewbit.engine.loaded import LoadedModel
from fewbit.errors import UnsupportedError
from fewbit.evaluate.answers import Ask, answer_missing, conversation
from fewbit.evaluate.arms import Arm, Arms, Role, Room
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.endpoint.answerer import EndpointAnswerer
from fewbit.evaluate.endpoint.stream import TOKEN_ID
from fewbit.evaluate.prompts import Prompts, builtin_prompts
from fewbit.progress import Progress
from fewbit.records.answers import Answer, TokenScore
from fewbit.records.drawn import Distribution
from fewbit.records.endpoint import EndpointDetails
from fewbit.records.kept import fingerprint
from fewbit.records.measurement import AxisResult, Item, Measure, Slice
from fewbit.tokens.tokenizer import Tokenizer

AXIS = "endpoint"

KL = f"{AXIS}/kl"

_LEAST_REST = 1e-6
"""A server's probabilities are rounded, so that what it leaves to other tokens is not known better.
More left to them makes the bound lower."""


@dataclass(frozen=True, kw_only=True)
class EndpointAxis:
    """What is asked."""

    prompts: Prompts = field(default_factory=builtin_prompts)
    tokens: int = 64
    top: int = 20
    """Likeliest tokens at each place; more are refused by most servers."""
    concurrency: tuple[int, ...] = (1, 4)

    @property
    def name(self) -> str:
        """The axis."""
        return AXIS

    @property
    def brings(self) -> Brings:
        """A lower bound of the divergence."""
        return Brings({KL: Measure.MEAN})

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Ask the endpoint, and run the source over what it said; see `Axis`."""
        began = time.perf_counter()
        answers = {count: self._answers(arms, count, progress) for count in self.concurrency}
        with arms.open(Role.CANDIDATE) as arm:
            facts = _endpoint(arm).endpoint
        compared = self._compared(arms, answers[self.concurrency[0]], progress)
        items = tuple(item for places in compared for item in places.items())
        return AxisResult(
            axis=AXIS,
            slices=tuple(_slices(items, self.top)),
            details=EndpointDetails(
                endpoint=facts,
                top=self.top,
                positions=len(items),
                unseen=float(np.mean([p.unseen for c in compared for p in c.places] or [0.0])),
                latency=tuple(_latency(answers)),
            ),
            notes=tuple(_notes(compared, self.top)),
            seconds=time.perf_counter() - began,
        )

    def _answers(self, arms: Arms, together: int, progress: Progress) -> Mapping[str, Answer]:
        """Ask all prompts, so many at once; with log-probabilities the first time alone.

        After the first time they begin with words that no other begins with, since the server may
        have them in its cache.
        """
        scored = together == self.concurrency[0]
        asks = [
            Ask(
                name=f"{together}/{kind}/{i}",
                prompt=conversation(text if scored else f"({i}/{kind}/{together}) {text}"),
                max_tokens=self.tokens,
                logprobs=self.top if scored else None,
            )
            for kind, texts in self.prompts.items()
            for i, text in enumerate(texts)
        ]
        spec = [(ask.name, ask.prompt, ask.max_tokens, ask.logprobs) for ask in asks]
        kept = arms.kept(Role.CANDIDATE, fingerprint(AXIS, spec))
        what = f"endpoint, {together} at once"
        with arms.open(Role.CANDIDATE, Room(sequences=together)) as arm:
            return answer_missing(
                _endpoint(arm), asks, kept, lambda done: progress(what, done, len(asks))
            )

    def _compared(
        self, arms: Arms, answers: Mapping[str, Answer], progress: Progress
    ) -> list[Compared]:
        """Run the source over every answer that has log-probabilities."""
        texts = {
            f"{self.concurrency[0]}/{kind}/{i}": text
            for kind, given in self.prompts.items()
            for i, text in enumerate(given)
        }
        with arms.open(Role.SOURCE) as arm:
            vocabulary = _Ids(arm.loaded.tokenizer)
            found = []
            for number, (name, answer) in enumerate(answers.items()):
                progress("source, the endpoint's text", number, len(answers))
                prompt = arm.loaded.chat_prompt([{"role": "user", "content": texts[name]}])
                found.append(compare(name, arm.loaded, vocabulary, prompt, answer.logprobs))
        return found


@dataclass(frozen=True)
class Place:
    """One generated token."""

    divergence: float
    """At least so many nats."""
    unseen: float
    """The source's probability of what the endpoint does not list."""


@dataclass(frozen=True)
class Compared:
    """An answer of the endpoint with the source's distributions."""

    name: str
    places: tuple[Place, ...]
    unknown: int
    """Tokens from the first on that the source's tokenizer has not."""

    def items(self) -> Iterator[Item]:
        """Yield an item for each place; those of one answer resemble each other."""
        for i, place in enumerate(self.places):
            yield Item(
                name=f"{self.name}/{i}", cluster=self.name, source=0.0, candidate=place.divergence
            )


class _Ids:
    """The source's tokens by id or by bytes; of equal ones the lowest id that is not special."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = set(tokenizer.backend.get_vocab(with_added_tokens=True).values())
        self._by_name = {f"{TOKEN_ID}{token}": token for token in tokens}
        plain = sorted(tokens - tokenizer.special_ids, reverse=True)
        self._by_bytes = {
            tokenizer.token_bytes(t): t for t in sorted(tokens & tokenizer.special_ids)
        }
        self._by_bytes |= {tokenizer.token_bytes(t): t for t in plain}

    def of(self, token: str) -> int | None:
        """Return the id of a token as an endpoint gives it: as `TOKEN_ID`, or bytes as Latin-1."""
        named = self._by_name.get(token)
        return self._by_bytes.get(token.encode("latin-1")) if named is None else named


def compare(
    name: str,
    source: LoadedModel,
    ids: _Ids,
    prompt: Sequence[int],
    scores: Sequence[TokenScore],
) -> Compared:
    """Run the source over an answer and compare the distributions at each of its tokens."""
    tokens: list[int] = []
    for score in scores:
        token = ids.of(score.token)
        if token is None:
            break
        tokens.append(token)
    if not tokens:
        return Compared(name, (), len(scores))
    blocks = source.runner.score([*prompt, *tokens[:-1]], len(prompt) - 1)
    rows = (row[: source.vocabulary] for block in blocks for row in block)
    places = tuple(_place(row, score, ids) for row, score in zip(rows, scores, strict=False))
    return Compared(name, places, len(scores) - len(tokens))


def _place(logits: NDArray[np.float32], score: TokenScore, ids: _Ids) -> Place:
    told = {ids.of(one.token): one.logprob for one in score.top}
    listed = {token: logprob for token, logprob in told.items() if token is not None}
    shifted = logits.astype(np.float64) - float(logits.max())
    chances = np.exp(shifted) / np.exp(shifted).sum()
    ours = chances[list(listed)]
    theirs = np.exp(np.array(list(listed.values())))
    return Place(lower_bound(ours, theirs), float(max(0.0, 1.0 - ours.sum())))


def lower_bound(source: NDArray[np.float64], candidate: NDArray[np.float64]) -> float:
    """Return KL(source || candidate), in nats, with all tokens that are not given taken as one.

    Args:
        source: probabilities of some tokens.
        candidate: those of the same tokens; what both leave is the rest's.
    """
    p = np.append(source, max(0.0, 1.0 - float(source.sum())))
    q = np.append(candidate, max(_LEAST_REST, 1.0 - float(candidate.sum())))
    some = p > 0
    return max(0.0, float((p[some] * np.log(p[some] / q[some])).sum()))


def _endpoint(arm: Arm) -> EndpointAnswerer:
    if not isinstance(arm.answerer, EndpointAnswerer):
        raise UnsupportedError(
            "axis endpoint measures what a server says, and the candidate is a model on disk; "
            "leave the axis out."
        )
    return arm.answerer


def _slices(items: tuple[Item, ...], top: int) -> Iterator[Slice]:
    if items:
        yield Slice(
            name=KL,
            axis=AXIS,
            measure=Measure.MEAN,
            unit="nats",
            title=f"KL(source || endpoint) at the least, from its {top} likeliest tokens",
            items=items,
            note="A lower bound: all tokens that the endpoint does not list are taken as one.",
        )


def _latency(answers: Mapping[int, Mapping[str, Answer]]) -> Iterator[Distribution]:
    for together, given in answers.items():
        at_once = f"{together} request{'s' * (together > 1)} at once"
        firsts = [(a.first_token, _cached(a)) for a in given.values() if a.first_token is not None]
        found = {
            "Time to first token": [first for first, cached in firsts if not cached],
            "Time to first token, prompts cached": [first for first, cached in firsts if cached],
            "Gap between tokens": [gap for answer in given.values() for gap in answer.gaps],
        }
        for title, values in found.items():
            if values or "cached" not in title:
                yield Distribution(
                    title=f"{title}, {at_once}",
                    arm="candidate",
                    unit="seconds",
                    values=tuple(values),
                )


def _cached(answer: Answer) -> bool:
    """Whether the server says that it found most of the prompt in its cache."""
    return 2 * answer.cached_tokens > answer.prompt_tokens


def _notes(compared: Sequence[Compared], top: int) -> Iterator[str]:
    unknown = sum(answer.unknown for answer in compared)
    if not any(answer.places for answer in compared):
        yield (
            "The endpoint gives no log-probabilities of tokens that the source has, so that no "
            "divergence was measured."
        )
    elif unknown:
        yield (
            f"{unknown} tokens of the endpoint's answers were not compared: the source's tokenizer "
            "has no token of their bytes, or one before them had none."
        )
