"""What the metadata of a GGUF file says about its tokenizer, checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from fewbit.errors import BadFileError, MissingError
from fewbit.tokens.merges import split_merges

PREFIX = "tokenizer.ggml."
MODEL = PREFIX + "model"
NO_TOKENIZER = "none"
"""The model of a file that takes and gives token ids only."""
DAMAGED = "the file is damaged, fetch it again"


class TokenType(IntEnum):
    """GGUF's types of tokens."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = frozenset({TokenType.UNKNOWN, TokenType.CONTROL})
"""Types whose text is read as the token only where special tokens are parsed."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, checked: as many types as texts, no text twice.

    Tokens that fill the embedding's last rows (`[PAD151665]`, never used) are left out.
    """

    texts: list[str]
    types: list[int]
    ids: dict[str, int]
    entries: int
    """Of the file's lists, with what fills them up."""

    def of_types(self, *kinds: TokenType) -> list[tuple[int, str]]:
        """Return ids and texts of the tokens of these types, ascending."""
        wanted = set(kinds)
        if TokenType.NORMAL not in wanted:
            return [(t, self.texts[t]) for t in self._unusual if self.types[t] in wanted]
        pairs = zip(self.texts, self.types, strict=True)
        return [(token, text) for token, (text, kind) in enumerate(pairs) if kind in wanted]

    @cached_property
    def _unusual(self) -> list[int]:
        """The ids of the few tokens that are not normal ones."""
        return [token for token, kind in enumerate(self.types) if kind != TokenType.NORMAL]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the tokens and their types.

    Raises:
        MissingError: there are none.
        BadFileError: one is not text or occurs twice, or the types do not match.
    """
    raw = _array(metadata, "tokens")
    if not raw:
        raise MissingError(f"{PREFIX}tokens is absent or empty; use a file with a tokenizer.")
    texts = raw
    if "" in raw or set(map(type, raw)) != {str}:
        texts = [_token_text(index, text) for index, text in enumerate(raw)]
    ids = {text: token for token, text in enumerate(texts)}
    if len(ids) != len(texts):
        token, text = next((i, t) for i, t in enumerate(texts) if ids[t] != i)
        raise BadFileError(
            f"{PREFIX}tokens has {text[:80]!r} twice, as ids {token:,} and {ids[text]:,}; "
            f"{DAMAGED}."
        )
    types = _array(metadata, "token_type") or [int(TokenType.NORMAL)] * len(texts)
    if len(types) != len(texts):
        raise _wrong_length("token_type", len(types), len(texts))
    if not set(map(type, types)) <= {int, bool}:
        raise BadFileError(f"{PREFIX}token_type is not an array of integers; {DAMAGED}.")
    types = _with_roles(metadata, types)
    size = _without_padding(texts, types)
    for token in range(size, len(texts)):
        del ids[texts[token]]
    return Vocabulary(texts[:size], types[:size], ids, len(texts))


def _with_roles(metadata: Mapping[str, Any], types: list[int]) -> list[int]:
    """Return the types with every token that begins or ends a text as a control token.

    Some files leave them normal; read as plain text they would never be found in a chat template.
    """
    types = list(types)
    for role in ("bos", "eos", "eot", "eom"):
        token = token_id(metadata, f"{role}_token_id", len(types))
        if token is not None and types[token] not in SPECIAL_TYPES:
            types[token] = TokenType.CONTROL
    return types


def _token_text(index: int, text: object) -> str:
    if isinstance(text, str):
        # An empty text would match everywhere; llama.cpp gives it this name.
        return text or f"[EMPTY_{index}]"
    found = "not UTF-8" if isinstance(text, bytes) else f"a {type(text).__name__}"
    raise BadFileError(f"{PREFIX}tokens[{index}] is {found} instead of text; {DAMAGED}.")


def padding_text(token: int) -> str:
    """Return what converters write for an id without a token, of type `UNUSED`."""
    return f"[PAD{token}]"


def _without_padding(texts: list[str], types: list[int]) -> int:
    """Return how many tokens are left without those that only fill the embedding's last rows."""
    size = len(texts)
    while (
        size and types[size - 1] == TokenType.UNUSED and texts[size - 1] == padding_text(size - 1)
    ):
        size -= 1
    return size


def read_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the merges, best first.

    Raises:
        MissingError: there are none.
        BadFileError: one is malformed.
    """
    lines = _array(metadata, "merges")
    if lines is None:
        raise MissingError(f"{PREFIX}merges is absent; a byte-level BPE needs it.")
    if not set(map(type, lines)) <= {str}:
        raise BadFileError(f"{PREFIX}merges holds something other than UTF-8 strings; {DAMAGED}.")
    return split_merges(lines)


def require_known(merges: Iterable[tuple[str, str]], vocabulary: Vocabulary) -> None:
    """Check that every merge joins tokens of the vocabulary to one of it; raises BadFileError."""
    ids = vocabulary.ids
    for left, right in merges:
        if left not in ids or right not in ids or left + right not in ids:
            absent = next(text for text in (left, right, left + right) if text not in ids)
            raise BadFileError(
                f"{PREFIX}merges joins {left[:40]!r} and {right[:40]!r}, but {absent[:80]!r} is "
                f"not in the vocabulary; {DAMAGED}."
            )


def read_scores(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> list[float]:
    """Return the score of each token.

    Raises:
        MissingError: there are none.
        BadFileError: they are too few or many, or one is not a finite number.
    """
    scores = _array(metadata, "scores")
    if scores is None:
        raise MissingError(f"{PREFIX}scores is absent; a SentencePiece BPE needs it.")
    if len(scores) != vocabulary.entries:
        raise _wrong_length("scores", len(scores), vocabulary.entries)
    for index, score in enumerate(scores):
        if not isinstance(score, (int, float)) or not math.isfinite(score):
            raise BadFileError(f"{PREFIX}scores[{index}] is {score!r}; scores are finite numbers.")
    return scores


def _wrong_length(name: str, met: int, expected: int) -> BadFileError:
    return BadFileError(f"{PREFIX}{name} has {met:,} entries for {expected:,} tokens; {DAMAGED}.")


def _array(metadata: Mapping[str, Any], name: str) -> list[Any] | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise BadFileError(
            f"{PREFIX}{name} is a {type(value).__name__} instead of an array; {DAMAGED}."
        )
    # NumPy arrays become plain numbers: their scalars are neither int nor JSON.
    return value.tolist() if hasattr(value, "tolist") else list(value)


def field(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a field of type `kind`, or None where it is absent.

    Raises:
        BadFileError: it is of another type.
    """
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadFileError(
            f"{PREFIX}{name} is {str(value)[:80]!r} instead of a value of type {kind.__name__}; "
            f"{DAMAGED}."
        )
    return value


def flag(metadata: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a field that is true or false; raises as `field`."""
    value: bool | None = field(metadata, name, bool)
    return default if value is None else value


def token_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    """Return the token id of a field, or None where it is absent; `size` is the vocabulary's.

    Raises:
        BadFileError: it is no integer, or beyond the vocabulary.
    """
    value: int | None = field(metadata, name, int)
    if value is not None and not 0 <= value < size:
        raise BadFileError(
            f"{PREFIX}{name} is {value:,}, beyond the vocabulary of {size:,} tokens; {DAMAGED}."
        )
    return value
