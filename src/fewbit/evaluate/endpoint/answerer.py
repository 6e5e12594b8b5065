"""A model behind an OpenAI-compatible URL, as llama-server and vLLM serve it: asked as ours are.

Conversations go to `/v1/chat/completions`, where the server's own chat template makes the prompt;
texts go to `/v1/completions`, where its tokenizer begins them. Likelihoods of given texts need a
server that echoes a prompt with its log-probabilities (vLLM does, llama-server does not).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from fewbit.errors import UnsupportedError
from fewbit.evaluate.answers import Ask, Prompt
from fewbit.evaluate.arms import Arm, Role, Room
from fewbit.evaluate.endpoint.client import Address, Client, RefusedError
from fewbit.evaluate.endpoint.facts import endpoint_facts
from fewbit.evaluate.endpoint.stream import heard
from fewbit.evaluate.endpoint.together import as_they_end
from fewbit.evaluate.likelihoods import beginning
from fewbit.records.answers import Answer, AnswererFacts, Likelihood
from fewbit.records.endpoint import EndpointFacts
from fewbit.records.kept import fingerprint, program_digest
from fewbit.sampling import SamplingParams
from fewbit.tokens.grammar import Grammar, GrammarKind

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

VLLM = "vllm"
"""What vLLM says that it is."""

_ALL = -1
"""The top-k that is none; 0 is not understood by all."""


class EndpointAnswerer:
    """Asks a server; so many requests are open at once as the arm has sequences."""

    def __init__(self, client: Client, facts: EndpointFacts, *, sequences: int) -> None:
        """Take a connection, what the server says of itself, and how much to ask at once."""
        self.client = client
        self.endpoint = facts
        self._sequences = sequences

    @property
    def facts(self) -> AnswererFacts:
        """What answers, and how texts reach it."""
        return AnswererFacts(
            name=f"{self.endpoint.model} at {self.endpoint.url}",
            begins="as the server's tokenizer begins a text",
            template=self.endpoint.template,
        )

    def answer(self, asks: Sequence[Ask], keep: Callable[[Answer], None]) -> None:
        """Answer all; see `Answerer`.

        Raises:
            RequestError: the server cannot be reached, or refuses.
            UnsupportedError: it cannot be asked for what an ask wants.
        """
        bodies = [self._body(ask) for ask in asks]
        tasks = [partial(self._one, *given) for given in zip(asks, bodies, strict=True)]
        with closing(as_they_end(tasks, self._sequences)) as ended:
            for answer in ended:
                keep(answer)

    def likelihoods(self, context: Prompt, continuations: Sequence[str]) -> list[Likelihood]:
        """Score continuations of a text by echoed log-probabilities; see `Answerer`.

        Raises:
            UnsupportedError: a conversation, which no such API scores, or a server without them.
            RequestError: the server refuses.
        """
        if not isinstance(context, str):
            raise UnsupportedError(self._no_conversations)
        alone = self._echo(context)
        wholes = [self._echo(context + text) for text in continuations]
        start = beginning(alone.tokens, [whole.tokens for whole in wholes])
        return [whole.behind(start) for whole in wholes]

    def unscored(self, context: Prompt) -> str:
        """Return why such a context's continuations are not scored, by trying; see `Answerer`.

        Raises:
            RequestError: the server cannot be reached.
        """
        if not isinstance(context, str):
            return self._no_conversations
        try:
            self._echo(context)
        except UnsupportedError as error:
            return str(error)
        return ""

    @property
    def _no_conversations(self) -> str:
        return (
            f"{self.endpoint.url} scores no answers to conversations: the OpenAI API has no such "
            "request."
        )

    def _one(self, ask: Ask, body: Mapping[str, Any]) -> Answer:
        with self.client.events(TEXT if isinstance(ask.prompt, str) else CHAT, body) as told:
            return heard(ask.name, told.events, told.asked)

    def _body(self, ask: Ask) -> dict[str, Any]:
        body = {
            "model": self.endpoint.model,
            "max_tokens": ask.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **_sampling(ask.sampling),
        }
        if ask.stop:
            body["stop"] = list(ask.stop)
        if isinstance(ask.prompt, str):
            body["prompt"] = ask.prompt
        else:
            body["messages"] = list(ask.prompt)
        if ask.tools:
            body |= {"tools": list(ask.tools), "tool_choice": "auto", "parallel_tool_calls": True}
        if ask.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": ask.logprobs, **self._naming}
        if ask.grammar is not None:
            body["response_format"] = self._format(ask.grammar)
        return body

    @property
    def _naming(self) -> Mapping[str, Any]:
        """What has tokens named by their ids, where the server can.

        vLLM's texts of them lose parts of characters, and leading spaces.
        """
        return {"return_tokens_as_token_ids": True} if self.endpoint.server == VLLM else {}

    def _format(self, grammar: Grammar) -> dict[str, Any]:
        if grammar.kind is not GrammarKind.JSON_SCHEMA or grammar.after is not None:
            raise UnsupportedError(
                f"{self.endpoint.url} cannot be given a {grammar.kind.value}, since the OpenAI API "
                "knows JSON schemas alone; give one."
            )
        schema = msgspec.json.decode(grammar.text)
        described = {"name": "answer", "schema": schema, "strict": True}
        return {"type": "json_schema", "json_schema": described}

    def _echo(self, text: str) -> _Echo:
        """Have a text told again, with the log-probability of each of its tokens."""
        body = {
            "model": self.endpoint.model,
            "prompt": text,
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
            **self._naming,
        }
        try:
            return _echoed(self.client.post(TEXT, body))
        except (RefusedError, KeyError, TypeError, IndexError, ValueError) as error:
            raise UnsupportedError(
                f"{self.endpoint.url} does not give log-probabilities of a given text "
                f"({str(error).rstrip('.')}), so multiple choice cannot be asked of it."
            ) from error


@dataclass(frozen=True)
class _Echo:
    """The tokens of a text as a server names them, with their log-probabilities."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    """In nats; NaN of the first, which nothing stands before."""
    best: tuple[float, ...]
    """Of the likeliest token at each place."""

    def behind(self, start: int) -> Likelihood:
        """Return how likely all tokens from one on are."""
        scored = list(zip(self.logprobs, self.best, strict=True))[start:]
        return Likelihood(
            logprob=sum(logprob for logprob, _ in scored),
            tokens=len(scored),
            greedy=all(logprob >= best for logprob, best in scored),
        )


def _echoed(found: Mapping[str, Any]) -> _Echo:
    """Read an echo, without the token that was generated behind it.

    Offsets into the text are not looked at: vLLM counts what begins a text, and loses the spaces
    that some tokenizers drop.
    """
    told, usage = found["choices"][0]["logprobs"], found.get("usage") or {}
    places = list(zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True))
    count = int(usage.get("prompt_tokens", len(places) - 1))
    if not 0 < count <= len(places):
        raise ValueError("it does not tell the text again")
    logprobs = tuple(math.nan if one is None else float(one) for _, one, _ in places[:count])
    tops = (() if top is None else top.values() for _, _, top in places[:count])
    best = tuple(max((one, *top)) for one, top in zip(logprobs, tops, strict=True))
    return _Echo(tuple(str(token) for token, *_ in places[:count]), logprobs, best)


@dataclass(frozen=True)
class EndpointParty:
    """A server as a party to a comparison."""

    address: Address
    facts: EndpointFacts

    @property
    def fingerprint(self) -> str:
        """Of what the server says of itself (it does not show its weights), and of what asks it."""
        return fingerprint(self.facts, _sampling(SamplingParams()), program_digest())

    @contextmanager
    def open(self, role: Role, room: Room) -> Iterator[Arm]:
        """Connect to it; its context is its own affair."""
        client = Client(self.address)
        try:
            answerer = EndpointAnswerer(client, self.facts, sequences=room.sequences)
            yield Arm(role, self.fingerprint, answerer)
        finally:
            client.close()


def endpoint_party(address: Address) -> EndpointParty:
    """Ask a server what it is.

    Raises:
        RequestError: it cannot be reached, or has no such model.
    """
    client = Client(address)
    try:
        return EndpointParty(address, endpoint_facts(client))
    finally:
        client.close()


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """Return sampling parameters as servers have them.

    What does nothing is sent too: a server has defaults of its own otherwise (vLLM those that the
    model's folder recommends, llama-server a top-k of 40). The OpenAI API itself has no `top_k`,
    `min_p` and penalty of repetition. That one is sent by vLLM's name and by llama-server's, which
    reads no other (documented: its README); each leaves the other's alone.
    """
    body: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k or _ALL,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "repeat_penalty": params.repetition_penalty,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
    }
    if params.seed is not None:
        body["seed"] = params.seed % (1 << 31)
    if params.logit_bias:
        body["logit_bias"] = {str(token): value for token, value in params.logit_bias.items()}
    return body
