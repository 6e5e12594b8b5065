"""What is known about a tokenizer, for `inspect` and for reports."""

from __future__ import annotations

from fewbit.records.base import Record


class TokenRecord(Record, frozen=True, kw_only=True):
    """One token: its id and its text."""

    id: int
    text: str


class TokenizerRecord(Record, frozen=True, kw_only=True):
    """The facts of one tokenizer.

    `vocabulary_size` is the highest id plus one. `prefix` and `suffix` are the ids that `encode`
    puts around a text when special tokens are asked for. `hazards` are sentences for the user.
    """

    kind: str
    source: str
    vocabulary_size: int
    pre_tokenizer: str
    bos: TokenRecord | None
    eos: TokenRecord | None
    unknown: TokenRecord | None
    padding: TokenRecord | None
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    end_of_generation: tuple[TokenRecord, ...]
    special_tokens: int
    added_tokens: int
    hazards: tuple[str, ...]
    fingerprint: str
