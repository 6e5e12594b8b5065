"""A tokenizer as the files of a Hugging Face folder, whatever it was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from fewbit.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class HuggingFaceFiles:
    """What to write; reading it with `from_hugging_face` gives a tokenizer of one fingerprint."""

    tokenizer_json: bytes
    tokenizer_config: dict[str, Any]
    generation_config: dict[str, Any]
    """Only what the tokenizer knows: every end of generation, BOS and padding."""


def to_hugging_face(tokenizer: Tokenizer, *, chat_template: str | None = None) -> HuggingFaceFiles:
    """Return the tokenizer's files, the chat template in its configuration.

    What is put around a text (BOS, EOS) is written as the post-processor of tokenizer.json, which
    is what transformers goes by, and repeated as `add_bos_token` and `add_eos_token`.
    """
    behaviour = tokenizer.behaviour
    special = behaviour.special
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": special.bos in behaviour.prefix,
        "add_eos_token": special.eos in behaviour.suffix,
        **_named_roles(tokenizer),
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    generation = {
        "bos_token_id": special.bos,
        "eos_token_id": sorted(special.end_of_generation),
        "pad_token_id": special.padding,
    }
    return HuggingFaceFiles(
        tokenizer_json=_tokenizer_json(tokenizer),
        tokenizer_config=config,
        generation_config={name: value for name, value in generation.items() if value is not None},
    )


def _named_roles(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the roles of special tokens; naming another would make it special on reading."""
    special = {tokenizer.token_text(token) for token in tokenizer.special_ids}
    return {role: text for role, text in tokenizer.special_texts.items() if text in special}


def _tokenizer_json(tokenizer: Tokenizer) -> bytes:
    backend = Backend.from_str(tokenizer.backend.to_str())
    behaviour = tokenizer.behaviour
    around = [*behaviour.prefix, *behaviour.suffix]
    backend.post_processor = None
    if around:
        names = {token: tokenizer.token_text(token) for token in around}
        before = [names[token] for token in behaviour.prefix]
        behind = [names[token] for token in behaviour.suffix]
        backend.post_processor = TemplateProcessing(
            single=[*before, "$A", *behind],
            special_tokens=[(name, token) for token, name in names.items()],
        )
    text: str = backend.to_str()
    return text.encode()
