"""Protocol tokens: what a caller's parser lives by, in the turns that a model would have written.

The end of a turn, the punctuation of JSON and what opens a tool call are few among a text's tokens
and nearly certain, so that a mean over all tokens hides it where a candidate loses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.tokenizer import Tokenizer

TOOL_CALL = "<tool_call>"
"""What opens a tool call in the built-in conversations."""

_PUNCTUATION = frozenset('{}[]":,')
_JSON = json.JSONDecoder(strict=False)


class Mark(Enum):
    """A kind of protocol token; the value is the last part of its slice's name."""

    END_OF_TURN = "end-of-turn"
    JSON = "json"
    """Punctuation of JSON, without the texts and numbers between."""
    TOOL_CALL = "tool-call"
    """The first token of what opens a tool call."""


@dataclass(frozen=True, eq=False)
class Turns:
    """A conversation's tokens, and which of them the model would have written."""

    tokens: NDArray[np.int32]
    """int32 [n], as the chat template writes them."""
    written: NDArray[np.bool_]
    """bool [n]: the assistant's words and the end of its turns."""
    marks: Mapping[Mark, NDArray[np.bool_]]
    """Of each kind bool [n]; all are among those written."""


@dataclass(frozen=True)
class _Span:
    start: int
    end: int


def render_turns(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Mapping[str, Any]]
) -> Turns:
    """Return a conversation with its protocol tokens marked.

    Positions are those of bytes. An answer that the template does not write as it was given counts
    as not written by the model.

    Raises:
        TemplateError: the model's template fails on the conversation.
    """
    text = template.render(messages, add_generation_prompt=False)
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    pieces = [tokenizer.token_bytes(token) for token in ids]
    # Every byte is a character of latin-1, so that places in the text are places in the bytes.
    content = b"".join(pieces).decode("latin-1")
    starts = list(accumulate(map(len, pieces), initial=0))
    answers = list(_answers(content, messages))
    known = tokenizer.special.end_of_generation | tokenizer.special_ids
    behind = np.searchsorted(starts[:-1], [span.end for span in answers]).tolist()
    ends = _ends(known, ids, pieces, behind)
    inside = _overlapping(starts, answers)
    punctuation = np.array([_is_punctuation(piece) for piece in pieces], np.bool_)
    objects = _overlapping(starts, [span for a in answers for span in _objects(content, a)])
    openers = _first_tokens(starts, [span for a in answers for span in _openers(content, a)])
    return Turns(
        np.array(ids, np.int32),
        inside | ends,
        {
            Mark.END_OF_TURN: ends,
            Mark.JSON: objects & punctuation & inside,
            Mark.TOOL_CALL: openers & inside,
        },
    )


def _answers(content: str, messages: Sequence[Mapping[str, Any]]) -> Iterator[_Span]:
    """Yield where each answer stands; templates may strip what surrounds it."""
    position = 0
    for message in messages:
        wanted = str(message["content"]).strip().encode().decode("latin-1")
        found = content.find(wanted, position)
        if found < 0:
            continue
        position = found + len(wanted)
        if message["role"] == "assistant":
            yield _Span(found, position)


def _ends(
    known: frozenset[int], ids: Sequence[int], pieces: Sequence[bytes], places: Sequence[int]
) -> NDArray[np.bool_]:
    """Return which tokens end a turn: of `known`, behind an answer and no more than white space.

    Args:
        known: ids that may end a turn.
        ids: the conversation's.
        pieces: the bytes of each.
        places: of each answer, the first token that begins at its end or behind it.
    """
    ends = np.zeros(len(ids), np.bool_)
    for place in places:
        behind = range(place, len(ids))
        spoken = next((i for i in behind if pieces[i].strip()), None)
        if spoken is not None and ids[spoken] in known:
            ends[spoken] = True
    return ends


def _overlapping(starts: Sequence[int], spans: Sequence[_Span]) -> NDArray[np.bool_]:
    """Return which tokens have a byte in a span; `starts` has the end of the last one too."""
    edges = np.array(starts)
    inside = np.zeros(len(edges) - 1, np.bool_)
    for span in spans:
        inside |= (edges[:-1] < span.end) & (edges[1:] > span.start)
    return inside


def _first_tokens(starts: Sequence[int], spans: Sequence[_Span]) -> NDArray[np.bool_]:
    return _overlapping(starts, [_Span(span.start, span.start + 1) for span in spans])


def _is_punctuation(piece: bytes) -> bool:
    characters = set(piece.decode("latin-1"))
    return bool(characters & _PUNCTUATION) and characters <= _PUNCTUATION | set(" \n\t")


def _openers(content: str, inside: _Span) -> Iterator[_Span]:
    start = content.find(TOOL_CALL, inside.start, inside.end)
    while start >= 0:
        yield _Span(start, start + len(TOOL_CALL))
        start = content.find(TOOL_CALL, start + 1, inside.end)


def _objects(content: str, inside: _Span) -> Iterator[_Span]:
    """Yield the JSON objects, and lists of them, of an answer, outermost only."""
    position = inside.start
    while position < inside.end:
        found = _object_at(content, position)
        if found is not None and found <= inside.end:
            yield _Span(position, found)
            position = found
        else:
            position += 1


def _object_at(content: str, start: int) -> int | None:
    if content[start] not in "{[":
        return None
    try:
        value, end = _JSON.raw_decode(content, start)
    except (ValueError, RecursionError):
        return None
    first = value[0] if isinstance(value, list) and value else value
    return end if isinstance(first, dict) and first else None
