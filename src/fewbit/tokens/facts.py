"""The facts of a tokenizer, for `inspect`."""

from __future__ import annotations

from fewbit.records.tokens import TokenizerRecord, TokenRecord
from fewbit.tokens.identity import fingerprint
from fewbit.tokens.tokenizer import Tokenizer


def tokenizer_facts(tokenizer: Tokenizer) -> TokenizerRecord:
    """Describe a tokenizer; what the model around it makes of it is not looked at."""
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
        hazards=tokenizer.behaviour.hazards,
        fingerprint=fingerprint(tokenizer),
    )


def _token(tokenizer: Tokenizer, token: int | None) -> TokenRecord | None:
    return None if token is None else TokenRecord(id=token, text=tokenizer.token_text(token))
