"""A tokenizer as the metadata of a GGUF file, whatever it was read from.

The fields are checked by reading them back: the tokenizer found must have the vocabulary and roles
of the one given, and cut a text of pitfalls alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fewbit.errors import UnsupportedError
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.gguf_fields import PREFIX, TokenType, padding_text
from fewbit.tokens.identity import cut_difference, merges, vocabulary
from fewbit.tokens.pieces import ByteLevelPieces, is_byte_token
from fewbit.tokens.pretokenizers import WORD_RULES, expressions
from fewbit.tokens.tokenizer import SpecialTokens, Tokenizer, named_ends

_ROLES = (("bos", "bos"), ("eos", "eos"), ("unknown", "unknown"), ("padding", "padding"))
_MORE_ENDS = ("eot", "eom")
"""Roles for ends of generation beside `eos` that are not known by their names."""


def to_gguf(tokenizer: Tokenizer, rows: int) -> dict[str, Any]:
    """Return the fields by key; lists of str, int and float, and single bool, int and str.

    Args:
        tokenizer: any that fewbit reads.
        rows: of the model's embedding; ids without a token get padding, of which llama.cpp wants
            one for each row.

    Raises:
        UnsupportedError: GGUF or llama.cpp has no way to say what the tokenizer does.
    """
    if tokenizer.vocabulary_size > rows:
        raise UnsupportedError(
            f"The tokenizer has {tokenizer.vocabulary_size:,} ids and the embedding {rows:,} rows; "
            "llama.cpp wants a row for each id, so use the model's own tokenizer."
        )
    texts = vocabulary(tokenizer)
    common = {
        "tokens": [texts.get(token, padding_text(token)) for token in range(rows)],
        "token_type": [_type_of(tokenizer, token, texts) for token in range(rows)],
        **_roles(tokenizer),
    }
    byte_level = isinstance(tokenizer.behaviour.pieces, ByteLevelPieces)
    own = _byte_level(tokenizer) if byte_level else _sentence_piece(tokenizer, texts, rows)
    fields = {PREFIX + key: value for key, value in (own | common).items()}
    _check(tokenizer, from_gguf(fields))
    return fields


def _type_of(tokenizer: Tokenizer, token: int, texts: Mapping[int, str]) -> int:
    if token not in texts:
        return int(TokenType.UNUSED)
    if token == tokenizer.special.unknown:
        return int(TokenType.UNKNOWN)
    if token in tokenizer.special_ids:
        return int(TokenType.CONTROL)
    byte_level = isinstance(tokenizer.behaviour.pieces, ByteLevelPieces)
    if not byte_level and is_byte_token(texts[token]):
        return int(TokenType.BYTE)
    added = token in tokenizer.added_tokens
    return int(TokenType.USER_DEFINED if added else TokenType.NORMAL)


def _roles(tokenizer: Tokenizer) -> dict[str, Any]:
    special, behaviour = tokenizer.special, tokenizer.behaviour
    fields: dict[str, Any] = {
        f"{key}_token_id": token
        for key, role in _ROLES
        if (token := getattr(special, role)) is not None
    }
    for key, around, token in (
        ("bos", behaviour.prefix, special.bos),
        ("eos", behaviour.suffix, special.eos),
    ):
        if around not in ((), (token,)):
            raise UnsupportedError(
                f"The tokenizer puts the tokens {list(around)} around a text; GGUF files can say "
                f"{key.upper()} only."
            )
        fields[f"add_{key}_token"] = bool(around)
    extra = _unnamed_ends(tokenizer, special)
    return fields | {f"{key}_token_id": end for key, end in zip(_MORE_ENDS, extra, strict=False)}


def _unnamed_ends(tokenizer: Tokenizer, special: SpecialTokens) -> list[int]:
    """Return the ends of generation that a reader would not find by their texts."""
    names = [(token, tokenizer.token_text(token)) for token in tokenizer.special_ids]
    return sorted(special.end_of_generation - named_ends(names) - {special.eos})


def _byte_level(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "model": "gpt2",
        "pre": _word_rule(json.loads(tokenizer.backend.to_str())),
        "merges": [f"{left} {right}" for left, right in merges(tokenizer)],
    }


def _word_rule(tree: Mapping[str, Any]) -> str:
    """Return the name of the rule by which a tokenizer cuts text into words."""
    found = expressions(tree.get("pre_tokenizer"))
    composes = (tree.get("normalizer") or {}).get("type") == "NFC"
    whole_words = bool(tree["model"].get("ignore_merges"))
    for name, rule in WORD_RULES.items():
        if (rule.expressions, rule.composes, rule.whole_words) == (
            found,
            composes,
            whole_words,
        ):
            return name
    raise UnsupportedError(
        "The tokenizer cuts text into words by a rule that has no name in GGUF files "
        f"({' and then '.join(found)[:160] or 'none'}); supported are those of "
        f"{', '.join(WORD_RULES)}."
    )


def _sentence_piece(tokenizer: Tokenizer, texts: Mapping[int, str], rows: int) -> dict[str, Any]:
    """Return scores that give the merges again: a piece's is its first merge's rank, negated."""
    ranks: dict[str, int] = {}
    ours = merges(tokenizer)
    for rank, (left, right) in enumerate(ours):
        ranks.setdefault(left + right, rank)
    last = len(ours) + 1
    return {
        "model": "llama",
        "scores": [-float(ranks.get(texts.get(token, ""), last)) for token in range(rows)],
        "add_space_prefix": tokenizer.strips_leading_space,
    }


def _check(tokenizer: Tokenizer, found: Tokenizer) -> None:
    """Compare what a reader of the file finds with what was to be written."""
    ours, theirs = tokenizer.special, found.special
    differs = ""
    if vocabulary(tokenizer) != vocabulary(found):
        differs = "its tokens"
    elif (ours.bos, ours.eos, ours.end_of_generation) != (
        theirs.bos,
        theirs.eos,
        theirs.end_of_generation,
    ):
        differs = "the tokens that begin or end a text"
    else:
        differs = _joined_otherwise(tokenizer, found) or cut_difference(tokenizer, found) or ""
    if differs:
        raise UnsupportedError(
            f"The tokenizer has no exact form in a GGUF file ({differs}); use a folder instead."
        )


def _joined_otherwise(tokenizer: Tokenizer, found: Tokenizer) -> str:
    """Return two pieces that only a reader of the file would join; empty where there are none.

    SentencePiece joins whatever two pieces make a third; added tokens are found before.
    """
    added = set(tokenizer.added_tokens.values())
    more = set(merges(found)) - set(merges(tokenizer))
    pairs = [pair for pair in more if pair[0] + pair[1] not in added]
    return f"it never joins {min(pairs)}, and llama.cpp would" if pairs else ""
