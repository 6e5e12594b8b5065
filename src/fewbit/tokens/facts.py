"""The facts of a tokenizer, for `inspect`."""

from __future__ import annotations

from fewbit.records.tokens import TokenizerRecord, TokenRecord
from fewbit.tokens.identity import fingerprint
from fewbit.tokens.tokenizer import Tokenizer


def tokenizer_facts(
    tokenizer: Tokenizer, *, model_vocabulary: int | None = None
) -> TokenizerRecord:
    """Describe a tokenizer.

    Args:
        tokenizer: what to describe.
        model_vocabulary: rows of the model's embedding; a mismatch becomes a hazard.
    """
    special = tokenizer.special
    return TokenizerRecord(
        kind=tokenizer.behaviour.pieces.kind,
        source=tokenizer.behaviour.source,
        vocabulary_size=tokenizer.vocabulary_size,
        pre_tokenizer=tokenizer.behaviour.pre_tokenizer,
        bos=_token(tokenizer, special.bos),
        eos=_token(tokenizer, special.eos),
        unknown=_token(tokenizer, special.unknown),
        padding=_token(tokenizer, special.padding),
        prefix=tokenizer.behaviour.prefix,
        suffix=tokenizer.behaviour.suffix,
        end_of_generation=tuple(
            TokenRecord(id=token, text=tokenizer.token_text(token))
            for token in sorted(special.end_of_generation)
        ),
        special_tokens=len(tokenizer.special_ids),
        added_tokens=len(tokenizer.added_tokens),
        hazards=(
            *tokenizer.behaviour.hazards,
            *_size_hazards(tokenizer.vocabulary_size, model_vocabulary),
        ),
        fingerprint=fingerprint(tokenizer),
    )


def _token(tokenizer: Tokenizer, token: int | None) -> TokenRecord | None:
    return None if token is None else TokenRecord(id=token, text=tokenizer.token_text(token))


def _size_hazards(tokens: int, rows: int | None) -> list[str]:
    if rows is None or rows == tokens:
        return []
    if rows < tokens:
        return [f"The tokenizer has ids up to {tokens - 1:,}, the model only {rows:,} rows."]
    return [
        f"The model has {rows - tokens:,} rows beyond the tokenizer's {tokens:,} ids (padding)."
    ]
