"""A checkpoint: tensors read lazily, configuration, tokenizer facts, and a hash of each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.gguf_types import MetadataType
from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.records.kernels import Activations
from fewbit.records.kv import KvScales
from fewbit.records.loading import FileStamp


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor; `shape` is row-major: [outputs, inputs], or (n,) for a vector."""

    name: str
    format: NumberFormat
    shape: tuple[int, ...]
    nbytes: int
    activations: Activations = Activations.INT8
    """How the layer's input is to be rounded, where the format is an integer one."""
    input_scale: float | None = None
    """The calibrated scale of the layer's input, a float32 number; `Activations.STATIC` has one."""
    note: str = ""
    """In words: what `read` gives otherwise than it is stored, such as scales rounded to fp16."""
    order: NDArray[np.int32] | None = field(default=None, compare=False)
    """That of the columns, where the format has one: int32 [columns], as in `QuantTensor`."""

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """What `read` gives: (1, n) for a vector, [product of the others, last] from 3-D on."""
        return math.prod(self.shape[:-1]), self.shape[-1] if self.shape else 1


@dataclass(frozen=True)
class HuggingFaceFacts:
    """What the JSON files of a Hugging Face folder say, parsed; absent files are None or empty."""

    config: Mapping[str, Any]
    generation_config: Mapping[str, Any] | None
    tokenizer_json: bytes | None
    tokenizer_config: Mapping[str, Any] | None
    chat_template: str | None
    mlp_rotation: int = 0
    """Elements of each block of a down projection's input that a Hadamard matrix rotates; 0 where
    none does."""
    kv_scales: KvScales | None = None
    """Static scales of keys and values that are stored with the model."""


@dataclass(frozen=True)
class GgufFacts:
    """The key-value metadata of a GGUF file.

    Arrays are lists; strings are str, or bytes where a token is not UTF-8. `types` holds each
    key's stored type, so that a file can be written again with the same bytes.
    """

    metadata: Mapping[str, Any]
    types: Mapping[str, MetadataType] = field(default_factory=dict)


class Checkpoint(Protocol):
    """A checkpoint on disk, opened without reading its tensors; `with` closes it."""

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

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what the files hold beside tensors that is left out."""
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
        """Return the SHA-256 of a tensor's stored bytes, hexadecimal.

        A tensor stored in several parts is hashed as codes, scales, zero points, then order.
        """
        ...

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return what tells the files that decide the weights from others, without reading them."""
        ...

    def close(self) -> None:
        """Let go of the files. Views returned by `read` stay valid; reading again is an error."""
        ...

    def __enter__(self) -> Self:
        """Return the checkpoint."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        ...


def content_digest(checkpoint: Checkpoint, known: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the SHA-256 of the lines `<tensor's digest>  <tensor's name>`, in file order.

    `known` has digests that were taken already, by name; they are not taken again.
    """
    names = checkpoint.tensors
    lines = (f"{known.get(name) or checkpoint.digest(name)}  {name}\n" for name in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
