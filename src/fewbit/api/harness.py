"""What lm-eval asks of a model, answered by our engine; needs no lm-eval itself.

A text begins as the tokenizer's file says, once: one that a chat template made has its beginning
already, and so has one that starts with the name of the token that begins texts. Nothing is cut: a
request that the context does not hold is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.errors import MissingError, RequestError, UnsupportedError
from fewbit.evaluate.likelihoods import Scoring, likelihoods
from fewbit.sampling import SamplingParams

MAX_TOKENS = 256
"""Generated at most where a task says nothing, as lm-eval's own models do."""

_BLOCK = 64


class Instance(Protocol):
    """A request of lm-eval."""

    @property
    def args(self) -> tuple[Any, ...]:
        """What the request is about."""
        ...


Keep = Callable[[tuple[Any, ...], Any], None]
"""Given a request's arguments and its result, as they come."""


@dataclass(frozen=True)
class Generating:
    """The keywords of a generation, as lm-eval's tasks write them."""

    params: SamplingParams
    max_tokens: int
    until: tuple[str, ...]


class Harness:
    """A loaded model as lm-eval's tasks ask it."""

    def __init__(self, loaded: LoadedModel, *, sequences: int) -> None:
        """Take a model; `sequences` generations are served at once."""
        self._loaded = loaded
        self._limits = Limits(sequences=sequences)
        self._templated = False

    def loglikelihood(
        self, requests: Sequence[Instance], keep: Keep = lambda _, __: None
    ) -> list[tuple[float, bool]]:
        """Return each continuation's log-probability, and whether it is the greedy one.

        Requests in a row that share a context share its run. Spaces that end a context are scored
        with the continuation, as tokenizers join them with what follows.

        Raises:
            RequestError: a continuation adds no token, or one does not fit the context.
        """
        found: list[tuple[float, bool]] = []
        for context, group in itertools.groupby(requests, key=lambda request: request.args[0]):
            for arguments, result in self._scored(context, [request.args for request in group]):
                keep(arguments, result)
                found.append(result)
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], keep: Keep = lambda _, __: None
    ) -> list[float]:
        """Return each text's log-probability, given what begins a text.

        A text longer than the context is scored in windows; each token is predicted once, and the
        last window reaches back as far as the context holds.
        """
        found = []
        for request in requests:
            ids = [self._beginning, *self._behind(request.args[0])]
            result = math.fsum(
                self._logprob(ids[first:end], start - first)
                for first, start, end in windows(len(ids), self._loaded.runner.context)
            )
            keep(request.args, result)
            found.append(result)
        return found

    def generate_until(
        self, requests: Sequence[Instance], keep: Keep = lambda _, __: None
    ) -> list[str]:
        """Return each generated text, up to what ends it.

        Raises:
            RequestError: a prompt does not fit the context.
            UnsupportedError: a keyword of the generation that there is not.
        """
        asked = [self._request(*request.args) for request in requests]
        texts = [""] * len(asked)
        for output in Engine(self._loaded.served, limits=self._limits).generate(asked):
            if output.fault is not None:
                raise output.fault
            texts[output.request] += output.text
            if output.record is not None:
                keep(requests[output.request].args, texts[output.request])
        return texts

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as text, special tokens by name; texts are then read with those.

        Without the opening of an answer, the last message is left open, to be continued.

        Raises:
            MissingError: the model has no chat template.
        """
        template = self._loaded.template
        if template is None:
            raise MissingError(
                f"{self._loaded.runner.source.path} has no chat template; leave "
                "--apply_chat_template out, or use an instruct model."
            )
        self._templated = True
        text = template.render(messages, add_generation_prompt=add_generation_prompt)
        return text if add_generation_prompt else _left_open(text, str(messages[-1]["content"]))

    def ids(self, text: str) -> tuple[int, ...]:
        """Return a text's ids with what begins a text there once, and never empty."""
        bos = self._loaded.tokenizer.special_texts.get("bos_token")
        begun = bool(text) and (self._templated or (bos is not None and text.startswith(bos)))
        prefix = () if begun else self._loaded.tokenizer.behaviour.prefix
        ids = self._loaded.tokenizer.encode(text, add_special=False, parse_special=begun)
        return (*prefix, *ids) or (self._beginning,)

    @property
    def _beginning(self) -> int:
        """The token that stands before a text whose first token is to be predicted."""
        behaviour = self._loaded.tokenizer.behaviour
        ends = sorted(self._loaded.ends)
        candidates = (*behaviour.prefix[-1:], behaviour.special.bos, behaviour.special.eos, *ends)
        return next(token for token in candidates if token is not None)

    def _behind(self, text: str) -> list[int]:
        """Return the ids of a text behind the token that begins texts."""
        encode = self._loaded.tokenizer.encode
        return encode(text, add_special=False, parse_special=self._templated)

    def _scored(
        self, context: str, arguments: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[tuple[Any, ...], tuple[float, bool]]]:
        """Yield the arguments of requests of one context with their results."""
        bare = context.rstrip(" ") or context
        spaces = context[len(bare) :]
        given = self.ids(bare)
        wholes = [self._joined(bare, spaces + str(text), given) for _, text in arguments]
        scoring = Scoring(self._loaded.runner, self._loaded.vocabulary)
        together = all(whole[: len(given)] == given for whole in wholes)
        groups = [wholes] if together else [[whole] for whole in wholes]
        found = [one for group in groups for one in likelihoods(scoring, given, group)]
        results = [(one.logprob, one.greedy) for one in found]
        yield from zip(arguments, results, strict=True)

    def _joined(self, context: str, continuation: str, given: tuple[int, ...]) -> tuple[int, ...]:
        if not context:
            return (*given, *self._behind(continuation))
        return self.ids(context + continuation)

    def _logprob(self, ids: Sequence[int], first: int) -> float:
        """Return the log-probability of the tokens from `first` on, given those before them."""
        targets, total = iter(ids[first:]), 0.0
        for block in self._loaded.runner.score(ids[:-1], first - 1, _BLOCK):
            for row in block[:, : self._loaded.vocabulary].astype(np.float64):
                shifted = row - row.max()
                total += float(shifted[next(targets)]) - math.log(float(np.exp(shifted).sum()))
        return total

    def _request(self, context: str, keywords: Mapping[str, Any]) -> Request:
        asked = generating(keywords)
        stop = StopCondition(asked.max_tokens, self._loaded.ends, asked.until)
        return Request(self.ids(context), asked.params, stop)


def windows(length: int, context: int) -> Iterator[tuple[int, int, int]]:
    """Yield windows over a sequence, as (first token, first predicted token, end).

    Args:
        length: tokens, with the one that begins the text, which is never predicted.
        context: tokens of a window at most; each but the first in the sequence is predicted once.

    Raises:
        RequestError: a context in which nothing can be predicted.
    """
    if context < 2:
        raise RequestError(f"the context is {context}; it must hold at least two tokens.")
    start = 1
    while start < length:
        end = min(length, start + context - 1)
        yield max(0, end - context), start, end
        start = end


_KEYWORDS = ("until", "max_gen_toks", "max_tokens", "do_sample", "temperature", "top_p", "top_k")


def generating(keywords: Mapping[str, Any]) -> Generating:
    """Return what the keywords of a task's generation ask for.

    Raises:
        UnsupportedError: one that there is not; nothing is ignored.
        RequestError: a value out of range.
    """
    for name in keywords:
        if name not in _KEYWORDS:
            raise UnsupportedError(
                f"The task asks for the generation keyword '{name}'; there are "
                f"{', '.join(_KEYWORDS)}."
            )
    until = keywords.get("until") or ()
    strings = (until,) if isinstance(until, str) else tuple(map(str, until))
    most = keywords.get("max_gen_toks", keywords.get("max_tokens", MAX_TOKENS))
    return Generating(_sampling(keywords), int(most), tuple(filter(None, strings)))


def _sampling(keywords: Mapping[str, Any]) -> SamplingParams:
    temperature = float(keywords.get("temperature", 0.0 if not keywords.get("do_sample") else 1.0))
    if not keywords.get("do_sample", temperature > 0):
        return SamplingParams(temperature=0)
    return SamplingParams(
        temperature=temperature,
        top_p=float(keywords.get("top_p", 1.0)),
        top_k=int(keywords.get("top_k", 0)),
    )


def _left_open(text: str, content: str) -> str:
    """Return a rendered conversation up to the end of its last message's content."""
    begin = text.rfind(content.strip())
    return text if begin < 0 else text[: begin + len(content.strip())]
