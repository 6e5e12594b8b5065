"""A checkpoint: tensors read lazily, configuration, tokenizer facts, and a hash of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fewbit.formats.spec import NumberFormat, QuantTensor


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor; `shape` is row-major: [outputs, inputs], or (n,) for a vector."""

    name: str
    format: NumberFormat
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class HuggingFaceFacts:
    """What the JSON files of a Hugging Face folder say, parsed; absent files are None or empty."""

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] | None
    tokenizer_json: bytes | None
    tokenizer_config: Mapping[str, Any] | None
    chat_template: str | None


@dataclass(frozen=True)
class GgufFacts:
    """The key-value metadata of a GGUF file.

    Arrays are lists; strings are str, or bytes where a token is not UTF-8.
    """

    metadata: Mapping[str, Any]


class Checkpoint(Protocol):
    """A checkpoint on disk, opened without reading its tensors."""

    @property
    def path(self) -> Path:
        """The file or folder."""
        ...

    @property
    def facts(self) -> HuggingFaceFacts | GgufFacts:
        """Configuration and tokenizer as stored."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every stored tensor by its stored name, in file order."""
        ...

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as stored, as a read-only view of the mapped file where possible.

        Tensors of more than two dimensions are flattened to [product of the others, last].
        """
        ...

    def release(self, name: str) -> None:
        """Tell the system that the tensor's mapped pages are not needed for now."""
        ...

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a tensor's stored bytes, hexadecimal."""
        ...
