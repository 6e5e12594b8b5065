"""The files beside the weights of a folder: tokenizer, generation configuration, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from fewbit.checkpoint.checkpoint import GgufFacts, HuggingFaceFacts
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.tokenizer import Tokenizer

_MODEL = "tokenizer.ggml.model"
_TEMPLATE = "tokenizer.chat_template"


def sidecars(facts: HuggingFaceFacts | GgufFacts) -> dict[str, bytes]:
    """Return the files by name; a source without a tokenizer gives none for it.

    A Hugging Face folder's files keep their content. What a GGUF file says becomes files that give
    the same tokenizer: its ends of generation go to generation_config.json, and what it puts around
    a text into tokenizer.json, where transformers looks for it.

    Raises:
        BadFileError, UnsupportedError: the tokenizer of a GGUF file cannot be read.
    """
    if isinstance(facts, HuggingFaceFacts):
        return _of_folder(facts)
    return _of_gguf(facts.metadata) if _MODEL in facts.metadata else {}


def _of_folder(facts: HuggingFaceFacts) -> dict[str, bytes]:
    files = {}
    configured = facts.tokenizer_config or {}
    if facts.tokenizer_json is not None:
        files["tokenizer.json"] = facts.tokenizer_json
    if facts.tokenizer_config is not None:
        files["tokenizer_config.json"] = _json(facts.tokenizer_config)
    if facts.generation_config is not None:
        files["generation_config.json"] = _json(facts.generation_config)
    if facts.chat_template is not None and "chat_template" not in configured:
        files["chat_template.jinja"] = facts.chat_template.encode()
    return files


def _of_gguf(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    tokenizer = from_gguf(metadata)
    config, generation = _configs(tokenizer)
    template = metadata.get(_TEMPLATE)
    if isinstance(template, str):
        config["chat_template"] = template
    return {
        "tokenizer.json": _tokenizer_json(tokenizer),
        "tokenizer_config.json": _json(config),
        "generation_config.json": _json(generation),
    }


def _configs(tokenizer: Tokenizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tokenizer_config.json and generation_config.json."""
    special = tokenizer.special
    roles = {
        "bos_token": special.bos,
        "eos_token": special.eos,
        "unk_token": special.unknown,
        "pad_token": special.padding,
    }
    named = {
        role: tokenizer.backend.id_to_token(token)
        for role, token in roles.items()
        if token is not None
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "add_bos_token": bool(tokenizer.behaviour.prefix),
        "add_eos_token": bool(tokenizer.behaviour.suffix),
        "clean_up_tokenization_spaces": False,
    }
    generation: dict[str, Any] = {"eos_token_id": sorted(special.end_of_generation)}
    if special.bos is not None:
        generation["bos_token_id"] = special.bos
    return config, generation


def _tokenizer_json(tokenizer: Tokenizer) -> bytes:
    """Return the backend as JSON, with the tokens around a text as its post-processor."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    behaviour = tokenizer.behaviour
    around = [*behaviour.prefix, *behaviour.suffix]
    if around:
        names = {token: backend.id_to_token(token) for token in around}
        before = [names[token] for token in behaviour.prefix]
        behind = [names[token] for token in behaviour.suffix]
        backend.post_processor = TemplateProcessing(
            single=[*before, "$A", *behind],
            special_tokens=[(name, token) for token, name in names.items()],
        )
    return str(backend.to_str()).encode()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
