"""A tokenizer from the metadata of a GGUF file.

Two of GGUF's tokenizer models are built: `gpt2` (byte-level BPE, cut into words by the rule that
`tokenizer.ggml.pre` names) and `llama` (SentencePiece's BPE with scores and byte fallback).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.tokens.guard import guarded
from fewbit.tokens.merges import merges_from_scores, split_merges
from fewbit.tokens.pieces import SPACE, ByteLevelPieces, SentencePieces, byte_of_character
from fewbit.tokens.pretokenizers import WORD_RULES, WordRule
from fewbit.tokens.tokenizer import Behaviour, SpecialTokens, Tokenizer, named_ends

PREFIX = "tokenizer.ggml."
SOURCE = "The tokenizer in the GGUF metadata"


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

ADDED_TYPES = SPECIAL_TYPES | {TokenType.USER_DEFINED}
"""Types that are cut out of a text before it is split into words."""


@dataclass(frozen=True)
class _Vocabulary:
    """Tokens by id, checked: as many types as texts, no text twice."""

    texts: list[str]
    types: list[int]
    ids: dict[str, int]

    def of_types(self, *kinds: TokenType) -> list[tuple[int, str]]:
        """Return ids and texts of the tokens of these types, ascending."""
        wanted = set(kinds)
        pairs = zip(self.texts, self.types, strict=True)
        return [(token, text) for token, (text, kind) in enumerate(pairs) if kind in wanted]


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file's key-value metadata describes.

    Args:
        metadata: arrays as sequences, strings as str, or as bytes where they are not UTF-8.

    Raises:
        MissingError: the file carries no tokenizer.
        UnsupportedError: its model or its word rule is not one that fewbit has.
        BadFileError: an array is of another type or length, a token occurs twice or is not UTF-8,
            a merge names an absent token, an id is beyond the vocabulary.
    """
    model = _field(metadata, "model", str)
    if model is None:
        raise MissingError(
            "The GGUF file carries no tokenizer (tokenizer.ggml.model is absent); "
            "use a file that has one."
        )
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if model not in builders:
        raise UnsupportedError(
            f"{PREFIX}model {model[:80]!r} is not supported; supported: {', '.join(builders)}."
        )
    vocabulary = _read_vocabulary(metadata)
    return builders[model](metadata, vocabulary)


def _byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Tokenizer:
    name = _field(metadata, "pre", str) or "default"
    rule = _word_rule(name)
    merges = _read_merges(metadata, vocabulary)
    with guarded(BadFileError, f"{SOURCE} is not a usable byte-level BPE"):
        backend = tokenizers.Tokenizer(
            models.BPE(vocabulary.ids, merges, ignore_merges=rule.whole_words)
        )
        normalizer = rule.normalizer()
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = rule.pre_tokenizer()
        backend.decoder = decoders.ByteLevel()
        _add_tokens(backend, vocabulary)
    return _finish(
        metadata,
        vocabulary,
        backend,
        _Kind(ByteLevelPieces(), name, rule.adds_bos, _byte_level_hazards(metadata, vocabulary)),
    )


def _sentence_piece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Tokenizer:
    spaced = _flag(metadata, "add_space_prefix", default=True)
    scores = _read_scores(metadata, vocabulary)
    mergeable = {
        text: scores[token]
        for token, text in vocabulary.of_types(
            TokenType.UNDEFINED, TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED
        )
    }
    unknown = _id(metadata, "unknown_token_id", vocabulary)
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    with guarded(BadFileError, f"{SOURCE} is not a usable SentencePiece BPE"):
        backend = tokenizers.Tokenizer(
            models.BPE(
                vocabulary.ids,
                merges_from_scores(mergeable),
                unk_token=None if unknown is None else vocabulary.texts[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
        marks = normalizers.Replace(" ", SPACE)
        backend.normalizer = (
            normalizers.Sequence([normalizers.Prepend(SPACE), marks]) if spaced else marks
        )
        if spaced:
            steps.append(decoders.Strip(" ", 1, 0))
        backend.decoder = decoders.Sequence(steps)
        _add_tokens(backend, vocabulary)
    pieces = SentencePieces(strips_leading_space=spaced)
    hazards = _sentence_piece_hazards(metadata, vocabulary)
    return _finish(metadata, vocabulary, backend, _Kind(pieces, "none", True, hazards))


@dataclass(frozen=True)
class _Kind:
    """What differs between the two models once the backend is built."""

    pieces: ByteLevelPieces | SentencePieces
    pre_tokenizer: str
    adds_bos: bool
    hazards: list[str]


def _finish(
    metadata: Mapping[str, Any],
    vocabulary: _Vocabulary,
    backend: tokenizers.Tokenizer,
    kind: _Kind,
) -> Tokenizer:
    special = _read_special(metadata, vocabulary)
    hazards = list(kind.hazards)
    around: dict[str, tuple[int, ...]] = {}
    for role, token, default in (("bos", special.bos, kind.adds_bos), ("eos", special.eos, False)):
        wanted = _flag(metadata, f"add_{role}_token", default=default)
        around[role] = (token,) if wanted and token is not None else ()
        if wanted and token is None:
            hazards.append(
                f"{role.upper()} is to be added, but the file names no {role.upper()} token; "
                "none is added."
            )
    if special.eos is None:
        hazards.append("The file names no EOS token; generation stops at other ends or the limit.")
    return Tokenizer(
        backend,
        Behaviour(
            source="GGUF metadata",
            pieces=kind.pieces,
            pre_tokenizer=kind.pre_tokenizer,
            special=special,
            prefix=around["bos"],
            suffix=around["eos"],
            hazards=tuple(hazards),
        ),
    )


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary) -> None:
    # All at once for each kind: every call rebuilds the matcher over all added tokens.
    backend.add_special_tokens(
        [
            AddedToken(text, normalized=False, special=True)
            for _, text in vocabulary.of_types(*SPECIAL_TYPES)
        ]
    )
    backend.add_tokens(
        [
            AddedToken(text, normalized=False)
            for _, text in vocabulary.of_types(TokenType.USER_DEFINED)
        ]
    )


def _word_rule(name: str) -> WordRule:
    if name not in WORD_RULES:
        raise UnsupportedError(
            f"{PREFIX}pre {name[:80]!r} is not supported; supported: {', '.join(WORD_RULES)}."
        )
    return WORD_RULES[name]


def _read_special(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> SpecialTokens:
    roles = {
        role: _id(metadata, f"{role}_token_id", vocabulary)
        for role in ("bos", "eos", "unknown", "padding", "eot", "eom")
    }
    ends = {roles[role] for role in ("eos", "eot", "eom")} - {None}
    named = named_ends(vocabulary.of_types(*ADDED_TYPES))
    return SpecialTokens(
        bos=roles["bos"],
        eos=roles["eos"],
        unknown=roles["unknown"],
        padding=roles["padding"],
        end_of_generation=named | {token for token in ends if token is not None},
    )


def _byte_level_hazards(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[str]:
    hazards = []
    if _field(metadata, "pre", str) is None:
        hazards.append(
            f"{PREFIX}pre is absent, so text is cut by llama.cpp's default rule; "
            "if the model used another, its quality suffers: convert it again."
        )
    missing = sum(character not in vocabulary.ids for character in byte_of_character())
    if missing:
        hazards.append(f"{missing} of the 256 bytes have no token; texts with them lose them.")
    return hazards


def _sentence_piece_hazards(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[str]:
    hazards = []
    missing = sum(f"<0x{byte:02X}>" not in vocabulary.ids for byte in range(256))
    if missing:
        hazards.append(f"{missing} of the 256 byte tokens are absent; rare characters are lost.")
    if _flag(metadata, "remove_extra_whitespaces", default=False):
        hazards.append(
            f"{PREFIX}remove_extra_whitespaces is set and not applied; runs of spaces are kept."
        )
    return hazards


def _read_vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    raw = _array(metadata, "tokens")
    if not raw:
        raise MissingError(f"{PREFIX}tokens is absent or empty; use a file with a tokenizer.")
    texts = [_token_text(index, text) for index, text in enumerate(raw)]
    ids = {text: token for token, text in enumerate(texts)}
    if len(ids) != len(texts):
        token, text = next((i, t) for i, t in enumerate(texts) if ids[t] != i)
        raise BadFileError(
            f"{PREFIX}tokens has {text[:80]!r} twice, as ids {token:,} and {ids[text]:,}; "
            "the file is damaged."
        )
    types = _array(metadata, "token_type") or [int(TokenType.NORMAL)] * len(texts)
    if len(types) != len(texts):
        raise _wrong_length("token_type", len(types), len(texts))
    if not all(isinstance(kind, int) for kind in types):
        raise BadFileError(f"{PREFIX}token_type is not an array of integers.")
    return _Vocabulary(texts, types, ids)


def _token_text(index: int, text: object) -> str:
    if isinstance(text, str):
        # An empty text would match everywhere; llama.cpp gives it this name.
        return text or f"[EMPTY_{index}]"
    found = "not UTF-8" if isinstance(text, bytes) else f"a {type(text).__name__}"
    raise BadFileError(f"{PREFIX}tokens[{index}] is {found} instead of text; the file is damaged.")


def _read_merges(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    lines = _array(metadata, "merges")
    if lines is None:
        raise MissingError(f"{PREFIX}merges is absent; a byte-level BPE needs it.")
    if not all(isinstance(line, str) for line in lines):
        raise BadFileError(f"{PREFIX}merges holds something other than UTF-8 strings.")
    merges = split_merges(lines)
    ids = vocabulary.ids
    for left, right in merges:
        if left not in ids or right not in ids or left + right not in ids:
            absent = next(text for text in (left, right, left + right) if text not in ids)
            raise BadFileError(
                f"{PREFIX}merges joins {left[:40]!r} and {right[:40]!r}, but {absent[:80]!r} is "
                "not in the vocabulary; the file is damaged."
            )
    return merges


def _read_scores(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[float]:
    scores = _array(metadata, "scores")
    if scores is None:
        raise MissingError(f"{PREFIX}scores is absent; a SentencePiece BPE needs it.")
    if len(scores) != len(vocabulary.texts):
        raise _wrong_length("scores", len(scores), len(vocabulary.texts))
    for index, score in enumerate(scores):
        if not isinstance(score, (int, float)) or not math.isfinite(score):
            raise BadFileError(f"{PREFIX}scores[{index}] is {score!r}; scores are finite numbers.")
    return scores


def _wrong_length(name: str, met: int, expected: int) -> BadFileError:
    return BadFileError(
        f"{PREFIX}{name} has {met:,} entries for {expected:,} tokens; the file is damaged."
    )


def _array(metadata: Mapping[str, Any], name: str) -> list[Any] | None:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        raise BadFileError(f"{PREFIX}{name} is a {type(value).__name__} instead of an array.")
    # NumPy arrays become plain numbers: their scalars are neither int nor JSON.
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _field(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadFileError(
            f"{PREFIX}{name} is {str(value)[:80]!r} instead of a value of type {kind.__name__}."
        )
    return value


def _flag(metadata: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value: bool | None = _field(metadata, name, bool)
    return default if value is None else value


def _id(metadata: Mapping[str, Any], name: str, vocabulary: _Vocabulary) -> int | None:
    value: int | None = _field(metadata, name, int)
    if value is not None and not 0 <= value < len(vocabulary.texts):
        raise BadFileError(
            f"{PREFIX}{name} is {value:,}, beyond the vocabulary of {len(vocabulary.texts):,} "
            "tokens; the file is damaged."
        )
    return value
