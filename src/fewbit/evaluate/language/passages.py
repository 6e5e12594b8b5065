"""What the axis of language runs: windows of text, whole conversations, and short passages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.text import Document, Documents, document
from fewbit.calibrate.windows import MINIMUM_TOKENS, Window, cut_windows
from fewbit.errors import TemplateError
from fewbit.evaluate.language.conversations import Chat
from fewbit.evaluate.language.protocol import Mark, Turns, render_turns
from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.tokenizer import Tokenizer

TEXT, PROSE, CODE, CHAT, LANGUAGES = "text", "prose", "code", "chat", "languages"
DOMAINS = (TEXT, PROSE, CODE, CHAT, LANGUAGES)
"""Of a text of one's own nothing more is known than that it is text."""

_KINDS = {"pydoc": PROSE, "lib": CODE}
"""Domains of the default text's documents, by how their names begin."""


@dataclass(frozen=True, eq=False)
class Passage:
    """One sequence; its predictions from position `first` on are compared.

    Position p predicts token p + 1, so arrays of predictions have n - 1 - first entries.
    """

    domain: str
    document: Document
    tokens: NDArray[np.int32]
    """int32 [n]."""
    first: int
    counted: NDArray[np.bool_]
    """bool [predictions]: which ones the domain's figures are taken over."""
    marks: Mapping[Mark, NDArray[np.bool_]] = field(default_factory=dict)
    """Of each kind bool [predictions]."""

    @property
    def positions(self) -> NDArray[np.intp]:
        """Positions of the predictions, in order."""
        return np.arange(self.first, len(self.tokens) - 1)

    @property
    def name(self) -> str:
        """A name that tells it from all others by what is run and compared."""
        digest = hashlib.sha256(self.tokens.tobytes()).hexdigest()
        return f"{digest[:32]}@{self.first}"


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a text is cut."""

    windows: int
    """At most; the first of every document before the second of any."""
    tokens: int
    """Of a full window, of which the second half counts."""
    whole: int
    """So many of the first windows are compared from their start, for figures by position."""


def text_passages(tokenizer: Tokenizer, documents: Documents, cut: Cut) -> Iterator[Passage]:
    """Yield the windows of a text; raises UsageError where it has none."""
    found = cut_windows(
        documents,
        lambda text: tokenizer.encode(text, add_special=False),
        tokenizer.behaviour.prefix,
        length=cut.tokens,
        limit=cut.windows,
    )
    for number, window in enumerate(found):
        yield _window(documents.documents[window.document], window, whole=number < cut.whole)


def _window(document: Document, window: Window, *, whole: bool) -> Passage:
    half = len(window.tokens) // 2
    first = 0 if whole else half
    counted = np.arange(first, len(window.tokens) - 1) >= half
    return Passage(domain_of(document), document, window.tokens, first, counted)


def domain_of(document: Document) -> str:
    """Return what kind of text a document is."""
    kind, _, rest = document.name.partition(":")
    return _KINDS.get(kind, TEXT) if rest else TEXT


def short_passages(
    tokenizer: Tokenizer, documents: Documents, domain: str, tokens: int
) -> Iterator[Passage]:
    """Yield short documents, each from its start and cut after `tokens` tokens."""
    for found in documents.documents:
        ids = tokenizer.encode(found.text, add_special=False)
        whole = np.array([*tokenizer.behaviour.prefix, *ids], np.int32)[:tokens]
        if len(whole) >= MINIMUM_TOKENS:
            yield Passage(domain, found, whole, 0, np.ones(len(whole) - 1, np.bool_))


@dataclass(frozen=True)
class Rendered:
    """Conversations as passages, with a sentence on what a template needed changed."""

    passages: tuple[Passage, ...]
    note: str = ""


def chat_passages(
    tokenizer: Tokenizer, template: ChatTemplate, chats: Sequence[Chat], tokens: int
) -> Rendered:
    """Return conversations, compared from the first answer on; what the model writes counts.

    Where the template takes no system message, its text is put before the first question.

    Raises:
        TemplateError: it does not take such conversations at all.
    """
    try:
        return Rendered(tuple(_chats(tokenizer, template, chats, tokens)))
    except TemplateError as refused:
        folded = [Chat(chat.name, _folded(chat.messages)) for chat in chats]
        if [chat.messages for chat in folded] == [chat.messages for chat in chats]:
            raise
        try:
            found = tuple(_chats(tokenizer, template, folded, tokens))
        except TemplateError:
            raise refused from None
        return Rendered(
            found,
            "The chat template takes no system message, so in the conversations its text stands "
            "before the first question.",
        )


def _chats(
    tokenizer: Tokenizer, template: ChatTemplate, chats: Sequence[Chat], tokens: int
) -> Iterator[Passage]:
    for chat in chats:
        turns = render_turns(tokenizer, template, chat.messages)
        found = _conversation(chat, turns, tokens)
        if found is not None:
            yield found


def _conversation(chat: Chat, turns: Turns, tokens: int) -> Passage | None:
    """Return a conversation from its first answer on; None where no answer is within reach."""
    ids, written = turns.tokens[:tokens], turns.written[:tokens]
    if not written[1:].any():
        return None
    first = int(written[1:].argmax())
    text = "\n\n".join(message["content"] for message in chat.messages)
    marks = {kind: mask[first + 1 : tokens] for kind, mask in turns.marks.items()}
    whole = document(f"chat:{chat.name}", text)
    return Passage(CHAT, whole, ids, first, written[first + 1 :], marks)


def _folded(messages: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    first, *rest = messages
    if first["role"] != "system" or not rest:
        return tuple(messages)
    content = f"{first['content']}\n\n{rest[0]['content']}"
    return ({**rest[0], "content": content}, *rest[1:])
