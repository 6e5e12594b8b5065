"""Asking a model: generations by continuous batching, and likelihoods of given answers.

A text is tokenized as the model's tokenizer begins a text; a conversation by the model's chat
template, which writes what begins it itself. Either way the beginning is there once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request
from fewbit.engine.scheduler import UNHURRIED, Limits
from fewbit.engine.stop import StopCondition
from fewbit.errors import MissingError
from fewbit.evaluate.identity import describe_prefix, require_begun_once
from fewbit.evaluate.likelihoods import Scoring, likelihoods
from fewbit.records.answers import Answer, AnswererFacts, Likelihood, TokenChance, TokenScore
from fewbit.records.generation import GenerationRecord
from fewbit.records.kept import Kept
from fewbit.sampling import SamplingParams, TokenLogprob
from fewbit.tokens.grammar import Grammar
from fewbit.tokens.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0)

SEQUENCES = 16
"""Asks that are served at once where nothing else is said."""

Prompt = str | tuple[Mapping[str, Any], ...]
"""A text to be continued, or a conversation to be answered: messages with `role`, `content`."""


@dataclass(frozen=True)
class Ask:
    """One generation that is asked for."""

    name: str
    """Of its answer; no other of a run has it."""
    prompt: Prompt
    max_tokens: int
    sampling: SamplingParams = GREEDY
    tools: tuple[Mapping[str, Any], ...] = ()
    """JSON schemas of functions, for the chat template."""
    grammar: Grammar | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """That many of the likeliest tokens at each place; None for no log-probabilities."""


def conversation(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return a conversation that begins with what a user says."""
    return ({"role": "user", "content": text},)


class Answerer(Protocol):
    """What can be asked: our engine, or another behind an endpoint."""

    @property
    def facts(self) -> AnswererFacts:
        """What it is, and how texts reach it."""
        ...

    def answer(self, asks: Sequence[Ask], keep: Callable[[Answer], None]) -> None:
        """Answer all, in any order; `keep` is given each answer as it ends.

        Raises:
            RequestError: one of them cannot be served.
            MissingError: a conversation, and no chat template.
            NumericalError: the model gives values that are not finite.
        """
        ...

    def likelihoods(self, context: Prompt, continuations: Sequence[str]) -> list[Likelihood]:
        """Return how likely each continuation of a context is, in order.

        All are scored from the same place: where a continuation's first letters join the context's
        last token, that token is scored with every one of them.

        Raises:
            RequestError: nothing stands before a continuation, one adds no token, or it does not
                fit the context.
            UnsupportedError: what answers does not tell that.
        """
        ...

    def unscored(self, context: Prompt) -> str:
        """Return why continuations of such a context are not scored; empty where they are."""
        ...


def answer_missing(
    answerer: Answerer, asks: Sequence[Ask], kept: Kept, done: Callable[[int], None]
) -> Mapping[str, Answer]:
    """Ask what has no answer yet, keep what comes, and return the answers by the asks' names.

    Args:
        answerer: what is asked.
        asks: all that is asked.
        kept: where answers are kept, by `Ask.name`.
        done: told how many have an answer, at once and then with each.
    """
    wanted = [ask for ask in asks if ask.name not in kept.names()]
    counted = itertools.count(len(asks) - len(wanted) + 1)
    done(len(asks) - len(wanted))

    def keep(answer: Answer) -> None:
        kept.add(answer.name, answer)
        done(next(counted))

    if wanted:
        answerer.answer(wanted, keep)
    return kept.read(Answer)


class EngineAnswerer:
    """Asks our own engine; requests are batched as they come and go."""

    def __init__(
        self, loaded: LoadedModel, *, name: str = "engine", sequences: int = SEQUENCES
    ) -> None:
        """Take a loaded model.

        Args:
            loaded: the model; its KV store bounds what is served at once.
            name: what it is called in a report.
            sequences: asks served at once, at most.
        """
        self._loaded = loaded
        self._name = name
        self._limits = Limits(sequences=sequences, stall=UNHURRIED)

    @property
    def facts(self) -> AnswererFacts:
        """What answers, and how texts reach it."""
        template = self._loaded.template
        return AnswererFacts(
            name=self._name,
            begins=describe_prefix(self._loaded.tokenizer),
            template="" if template is None else template.digest,
        )

    def answer(self, asks: Sequence[Ask], keep: Callable[[Answer], None]) -> None:
        """Answer all; see `Answerer`."""
        requests = [self._request(ask) for ask in asks]
        texts = [""] * len(asks)
        scores: list[list[TokenScore]] = [[] for _ in asks]
        for output in Engine(self._loaded.served, limits=self._limits).generate(requests):
            number = output.request
            if output.fault is not None:
                raise output.fault
            texts[number] += output.text
            scores[number] += _scores(self._loaded.tokenizer, output.tokens, output.logprobs)
            if output.record is not None:
                name, found = asks[number].name, tuple(scores[number])
                keep(_answer(name, texts[number], output.record, found))

    def likelihoods(self, context: Prompt, continuations: Sequence[str]) -> list[Likelihood]:
        """Score continuations, the context run once; see `Answerer`."""
        scoring = Scoring(self._loaded.runner, self._loaded.vocabulary)
        if isinstance(context, str):
            given = self._loaded.text_prompt(context)
            suffix = self._loaded.tokenizer.behaviour.suffix
            given = given[: len(given) - len(suffix)]
            whole = [
                self._begun(self._loaded.tokenizer.encode(context + text, add_special=False))
                for text in continuations
            ]
        else:
            given = self._ids(context)
            encode = self._loaded.tokenizer.encode
            whole = [(*given, *encode(text, add_special=False)) for text in continuations]
        return likelihoods(scoring, given, whole)

    def unscored(self, context: Prompt) -> str:
        """Return nothing: all are scored."""
        return ""

    def _begun(self, ids: Sequence[int]) -> tuple[int, ...]:
        return (*self._loaded.tokenizer.behaviour.prefix, *ids)

    def _request(self, ask: Ask) -> Request:
        return Request(
            self._ids(ask.prompt, ask.tools),
            ask.sampling,
            StopCondition(ask.max_tokens, self._loaded.ends, ask.stop),
            top_logprobs=ask.logprobs,
            grammar=ask.grammar,
        )

    def _ids(self, prompt: Prompt, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Return a prompt's ids; what begins a text is there at most once."""
        if isinstance(prompt, str):
            ids = self._loaded.text_prompt(prompt)
        elif self._loaded.template is None:
            raise MissingError(
                f"The {self._name} has no chat template, and conversations are asked of it; leave "
                "out the axes that ask them, or give it its template."
            )
        else:
            text = self._loaded.template.render(prompt, tools or None)
            encode = self._loaded.tokenizer.encode
            ids = tuple(encode(text, add_special=False, parse_special=True))
        require_begun_once(self._loaded.tokenizer, ids, f"A prompt of the {self._name}")
        return ids


def _scores(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]
) -> list[TokenScore]:
    return [
        TokenScore(
            token=tokenizer.token_text(token),
            logprob=found.logprob,
            top=tuple(
                TokenChance(token=tokenizer.token_text(other), logprob=logprob)
                for other, logprob in found.top
            ),
        )
        for token, found in zip(tokens, logprobs, strict=False)  # none where none was asked for
    ]


def _answer(
    name: str, text: str, record: GenerationRecord, scores: tuple[TokenScore, ...]
) -> Answer:
    return Answer(
        name=name,
        text=text,
        tokens=record.generated_tokens,
        finish=record.finish,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        first_token=record.times.first_token,
        gaps=record.times.gaps,
        seconds=record.times.total,
        logprobs=scores,
    )
