"""The files beside the weights of a folder: tokenizer, generation configuration, chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fewbit.checkpoint.checkpoint import GgufFacts, HuggingFaceFacts
from fewbit.checkpoint.huggingface import CHAT_TEMPLATE, configured_template
from fewbit.tokens.export import to_hugging_face
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.gguf_fields import MODEL, NO_TOKENIZER

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
    absent = facts.metadata.get(MODEL, NO_TOKENIZER) == NO_TOKENIZER
    return {} if absent else _of_gguf(facts.metadata)


def _of_folder(facts: HuggingFaceFacts) -> dict[str, bytes]:
    files = {}
    configured = facts.tokenizer_config or {}
    if facts.tokenizer_json is not None:
        files["tokenizer.json"] = facts.tokenizer_json
    if facts.tokenizer_config is not None:
        files["tokenizer_config.json"] = _json(facts.tokenizer_config)
    if facts.generation_config is not None:
        files["generation_config.json"] = _json(facts.generation_config)
    if facts.chat_template is not None and facts.chat_template != configured_template(configured):
        files[CHAT_TEMPLATE] = facts.chat_template.encode()
    return files


def _of_gguf(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    template = metadata.get(_TEMPLATE)
    files = to_hugging_face(
        from_gguf(metadata), chat_template=template if isinstance(template, str) else None
    )
    return {
        "tokenizer.json": files.tokenizer_json,
        "tokenizer_config.json": _json(files.tokenizer_config),
        "generation_config.json": _json(files.generation_config),
    }


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
