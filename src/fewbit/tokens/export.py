"""A tokenizer as the files of a Hugging Face folder, whatever it was read from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import processors

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
        **tokenizer.special_texts,
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


def _tokenizer_json(tokenizer: Tokenizer) -> bytes:
    tree = json.loads(tokenizer.backend.to_str())
    tree["post_processor"] = _post_processor(tokenizer)
    return json.dumps(tree, ensure_ascii=False, indent=1).encode() + b"\n"


def _post_processor(tokenizer: Tokenizer) -> Any:
    behaviour = tokenizer.behaviour
    if not behaviour.prefix and not behaviour.suffix:
        return None
    before = [tokenizer.token_text(token) for token in behaviour.prefix]
    behind = [tokenizer.token_text(token) for token in behaviour.suffix]
    around = [*behaviour.prefix, *behaviour.suffix]
    template = processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        pair=[*before, "$A", *behind, *before, "$B", *behind],
        special_tokens=list({(tokenizer.token_text(token), token) for token in around}),
    )
    return _as_json(template)


def _as_json(processor: processors.TemplateProcessing) -> Any:
    # The library writes parts only as parts of a whole tokenizer.
    carrier = tokenizers.Tokenizer(tokenizers.models.BPE())
    carrier.post_processor = processor
    return json.loads(carrier.to_str())["post_processor"]
