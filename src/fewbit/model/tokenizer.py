"""The tokenizer and the chat template that a model carries, whatever file it is in."""

from __future__ import annotations

from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.errors import MissingError
from fewbit.model.weights import ModelSource
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.tokenizer import Tokenizer


def tokenizer_of(source: ModelSource) -> Tokenizer:
    """Return the model's tokenizer.

    Raises:
        MissingError: the model carries none.
        BadFileError, UnsupportedError: it cannot be used; the message says why.
    """
    facts = source.checkpoint.facts
    if isinstance(facts, GgufFacts):
        return from_gguf(facts.metadata)
    if facts.tokenizer_json is None:
        raise MissingError(
            f"{source.path} has no tokenizer.json, so it can neither read nor write text; fetch "
            "the model again with its tokenizer."
        )
    return from_hugging_face(facts.tokenizer_json, facts.tokenizer_config, facts.generation_config)


def chat_template_of(source: ModelSource) -> str | None:
    """Return the model's chat template as jinja source, or None where it carries none."""
    facts = source.checkpoint.facts
    if not isinstance(facts, GgufFacts):
        return facts.chat_template
    template = facts.metadata.get("tokenizer.chat_template")
    return template if isinstance(template, str) else None
