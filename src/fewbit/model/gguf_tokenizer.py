"""A model's tokenizer and chat template as typed metadata of a GGUF file."""

from __future__ import annotations

from typing import Any, TypeAlias

from fewbit.checkpoint.gguf_types import ArrayOf, MetadataType, ValueType
from fewbit.errors import MissingError
from fewbit.model.gguf_metadata import TypedMetadata
from fewbit.model.tokenizer import chat_template_of, tokenizer_of
from fewbit.model.weights import ModelSource
from fewbit.tokens.gguf_fields import MODEL, NO_TOKENIZER
from fewbit.tokens.to_gguf import to_gguf

TokenizerMetadata: TypeAlias = tuple[TypedMetadata, tuple[str, ...]]
"""Keys with type and value, and notes."""

_TEMPLATE = "tokenizer.chat_template"
_KINDS: dict[type, ValueType] = {
    bool: ValueType.BOOL,
    int: ValueType.UINT32,
    str: ValueType.STRING,
}
_ELEMENTS: dict[type, ValueType] = {
    int: ValueType.INT32,
    float: ValueType.FLOAT32,
    str: ValueType.STRING,
}


def tokenizer_metadata(source: ModelSource) -> TokenizerMetadata:
    """Return the metadata, and a note where the model carries no tokenizer.

    Raises:
        BadFileError, UnsupportedError: the tokenizer cannot be read, or has no form in GGUF.
    """
    try:
        tokenizer = tokenizer_of(source)
    except MissingError:
        note = f"{source.path} has no tokenizer, so the file has none: it takes token ids only."
        return {MODEL: (ValueType.STRING, NO_TOKENIZER)}, (note,)
    fields = to_gguf(tokenizer, source.config.vocabulary)
    typed = {key: (_kind(value), value) for key, value in fields.items()}
    template = chat_template_of(source)
    if template is not None:
        typed[_TEMPLATE] = (ValueType.STRING, template)
    return typed, ()


def _kind(value: Any) -> MetadataType:
    if isinstance(value, list):
        return ArrayOf(_ELEMENTS[type(value[0])] if value else ValueType.STRING)
    return _KINDS[type(value)]
