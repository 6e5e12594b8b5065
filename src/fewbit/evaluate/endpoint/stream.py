"""From a server's events to an answer: text, calls of functions, log-probabilities and times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fewbit.errors import RequestError
from fewbit.records.answers import Answer, TokenChance, TokenScore
from fewbit.records.generation import FinishReason
from fewbit.tokens.tokenizer import clean_text

TOKEN_ID = "token_id:"
"""What vLLM, where it is asked for ids, puts before one in a token's place."""

_ENDINGS = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "content_filter": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}

_SAID = ("content", "reasoning_content", "reasoning")
"""Where a server puts text; the last two are for thoughts that it takes out of the answer."""


@dataclass
class _Heard:
    """What came so far."""

    text: list[str] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Of each call its name and its arguments, as they came."""
    scores: list[TokenScore] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish: FinishReason | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


def heard(
    name: str,
    events: Iterable[Any],
    asked: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Return the answer that events make.

    A server sends an event a token, as long as no character needs several; the times are those of
    the events. Calls of functions, which servers take out of the text, are put back as
    `<tool_call>` tags around JSON, behind the rest.

    Args:
        name: of the answer.
        events: of a stream of chat completions or of completions.
        asked: when the request was sent, by the clock.
        clock: seconds.

    Raises:
        RequestError: an event is an error or no such event, or none ended the answer.
    """
    found = _Heard()
    for event in events:
        now = clock()
        try:
            _hear(found, event, now)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise RequestError(
                f"the server sent an event that is none of a completion ({str(event)[:120]}); is "
                "it OpenAI-compatible?"
            ) from error
    if found.finish is None:
        raise RequestError(f"the server ended its answer to '{name}' without a reason to end it.")
    return _answer(name, found, asked, clock())


def _hear(found: _Heard, event: Any, now: float) -> None:
    if event.get("error"):
        raise RequestError(f"the server gave up: {str(event['error'])[:200]}")
    found.usage = event.get("usage") or found.usage
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {"content": choice.get("text")}
        said = next((delta[key] for key in _SAID if delta.get(key)), "")
        calls = delta.get("tool_calls") or ()
        if said or calls:
            found.times.append(now)
        found.text.append(said)
        for call in calls:
            _add_call(found.calls, call)
        found.scores += _scores(choice.get("logprobs") or {})
        ending = choice.get("finish_reason")
        if ending is not None:
            found.finish = _ENDINGS[ending]


def _add_call(calls: dict[int, list[str]], call: Mapping[str, Any]) -> None:
    name, arguments = calls.setdefault(int(call.get("index", len(calls))), ["", ""])
    told = call.get("function") or {}
    calls[int(call.get("index", len(calls) - 1))] = [
        name + (told.get("name") or ""),
        arguments + (told.get("arguments") or ""),
    ]


def _scores(logprobs: Mapping[str, Any]) -> list[TokenScore]:
    """Return log-probabilities in the form of chat completions; the older form has none of ours."""
    return [
        TokenScore(
            token=_token(one),
            logprob=float(one["logprob"]),
            top=tuple(
                TokenChance(token=_token(other), logprob=float(other["logprob"]))
                for other in one.get("top_logprobs") or ()
            ),
        )
        for one in logprobs.get("content") or ()
    ]


def _token(told: Mapping[str, Any]) -> str:
    """Return a token's id where that was told, else its bytes as Latin-1 text.

    That keeps what is no whole character.
    """
    token, given = str(told["token"]), told.get("bytes")
    if token.startswith(TOKEN_ID):
        return token
    raw = token.encode() if given is None else bytes(given)
    return raw.decode("latin-1")


def _answer(name: str, found: _Heard, asked: float, ended: float) -> Answer:
    assert found.finish is not None
    details = found.usage.get("prompt_tokens_details") or {}
    counted = found.usage.get("completion_tokens")
    return Answer(
        name=name,
        text=clean_text("".join(found.text) + "".join(map(_tagged, found.calls.values()))),
        tokens=len(found.scores) or len(found.times) if counted is None else int(counted),
        finish=found.finish,
        prompt_tokens=int(found.usage.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        first_token=found.times[0] - asked if found.times else None,
        gaps=tuple(later - earlier for earlier, later in pairwise(found.times)),
        seconds=ended - asked,
        logprobs=tuple(found.scores),
    )


def _tagged(call: list[str]) -> str:
    name, arguments = call
    told = f'{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}'
    return f"<tool_call>\n{told}\n</tool_call>\n"
