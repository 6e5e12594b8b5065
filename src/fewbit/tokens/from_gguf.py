"""A tokenizer from the metadata of a GGUF file.

Two of GGUF's tokenizer models are built: `gpt2` (byte-level BPE, cut into words by the rule that
`tokenizer.ggml.pre` names) and `llama` (SentencePiece's BPE with scores and byte fallback).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.tokens.gguf_fields import (
    MODEL,
    NO_TOKENIZER,
    PREFIX,
    SPECIAL_TYPES,
    TokenType,
    Vocabulary,
    field,
    flag,
    read_merges,
    read_scores,
    read_vocabulary,
    require_known,
    token_id,
)
from fewbit.tokens.guard import guarded
from fewbit.tokens.merges import merges_from_scores
from fewbit.tokens.pieces import SPACE, ByteLevelPieces, SentencePieces, byte_of_character
from fewbit.tokens.pretokenizers import WORD_RULES, WordRule
from fewbit.tokens.tokenizer import Behaviour, SpecialTokens, Tokenizer, named_ends

SOURCE = "The tokenizer in the GGUF metadata"


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
    model = field(metadata, "model", str)
    if model in (None, NO_TOKENIZER):
        raise MissingError(
            f"The GGUF file carries no tokenizer ({MODEL} is {model or 'absent'}); "
            "use a file that has one."
        )
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if model not in builders:
        raise UnsupportedError(
            f"{PREFIX}model {model[:80]!r} is not supported; supported: {', '.join(builders)}."
        )
    vocabulary = read_vocabulary(metadata)
    return builders[model](metadata, vocabulary)


def _byte_level(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Tokenizer:
    name = field(metadata, "pre", str) or "default"
    rule = _word_rule(name)
    merges = read_merges(metadata)
    with guarded(BadFileError, f"{SOURCE} is not a usable byte-level BPE"):
        backend = tokenizers.Tokenizer(_ranked(vocabulary, merges, rule))
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


def _ranked(vocabulary: Vocabulary, merges: list[tuple[str, str]], rule: WordRule) -> models.BPE:
    """Return the BPE; it checks every merge itself, and we say better what is wrong with one."""
    try:
        return models.BPE(vocabulary.ids, merges, ignore_merges=rule.whole_words)
    except Exception:
        require_known(merges, vocabulary)
        raise


def _sentence_piece(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Tokenizer:
    spaced = flag(metadata, "add_space_prefix", default=True)
    scores = read_scores(metadata, vocabulary)
    mergeable = {
        text: scores[token]
        for token, text in vocabulary.of_types(
            TokenType.UNDEFINED, TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED
        )
    }
    unknown = token_id(metadata, "unknown_token_id", len(vocabulary.texts))
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
    vocabulary: Vocabulary,
    backend: tokenizers.Tokenizer,
    kind: _Kind,
) -> Tokenizer:
    special = _read_special(metadata, vocabulary)
    hazards = list(kind.hazards)
    around: dict[str, tuple[int, ...]] = {}
    for role, token, default in (("bos", special.bos, kind.adds_bos), ("eos", special.eos, False)):
        wanted = flag(metadata, f"add_{role}_token", default=default)
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
        size=len(vocabulary.texts),
    )


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
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


def _read_special(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> SpecialTokens:
    roles = {
        role: token_id(metadata, f"{role}_token_id", len(vocabulary.texts))
        for role in ("bos", "eos", "unknown", "padding", "eot", "eom")
    }
    ends = {roles[role] for role in ("eos", "eot", "eom")} - {None}
    named = named_ends(vocabulary.of_types(*SPECIAL_TYPES))
    return SpecialTokens(
        bos=roles["bos"],
        eos=roles["eos"],
        unknown=roles["unknown"],
        padding=roles["padding"],
        end_of_generation=named | {token for token in ends if token is not None},
    )


def _byte_level_hazards(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> list[str]:
    hazards = []
    if field(metadata, "pre", str) is None:
        hazards.append(
            f"{PREFIX}pre is absent, so text is cut by llama.cpp's default rule; "
            "if the model used another, its quality suffers: convert it again."
        )
    missing = sum(character not in vocabulary.ids for character in byte_of_character())
    if missing:
        hazards.append(f"{missing} of the 256 bytes have no token; texts with them lose them.")
    return hazards


def _sentence_piece_hazards(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> list[str]:
    hazards = []
    missing = sum(f"<0x{byte:02X}>" not in vocabulary.ids for byte in range(256))
    if missing:
        hazards.append(f"{missing} of the 256 byte tokens are absent; rare characters are lost.")
    if flag(metadata, "remove_extra_whitespaces", default=False):
        hazards.append(
            f"{PREFIX}remove_extra_whitespaces is set and not applied; runs of spaces are kept."
        )
    return hazards
