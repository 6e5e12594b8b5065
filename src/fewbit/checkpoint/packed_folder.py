"""Hugging Face folders whose weights another tool packed, seen through their plain names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from fewbit.checkpoint.checkpoint import HuggingFaceFacts, TensorInfo
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.mapped import ClosedByWith
from fewbit.checkpoint.missing import missing_tensor
from fewbit.checkpoint.packed_weight import PackedWeight
from fewbit.errors import BadFileError, UnsupportedError
from fewbit.formats.spec import QuantTensor
from fewbit.records.kv import KvScales
from fewbit.records.loading import FileStamp

QUANTIZATION = "quantization_config"
"""Where config.json says how the weights are packed."""

ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)


@dataclass(frozen=True)
class KeptScales:
    """Stored scales of keys and values."""

    parts: tuple[str, ...] = ()
    """Stored tensors that hold them, which are not listed on their own."""
    scales: KvScales | None = None
    notes: tuple[str, ...] = ()
    """Sentences, where they are left out."""


NOTHING_KEPT = KeptScales()


class PackedFolder(ClosedByWith):
    """A folder whose packed weights are tensors like others.

    `facts` leave out how the weights are packed, since the tensors say it.

    Args:
        folder: the opened folder.
        weights: every packed weight; what they are made from is not listed on its own.
        kept: what is stored of keys and values.
    """

    def __init__(
        self,
        folder: HuggingFaceCheckpoint,
        weights: Sequence[PackedWeight],
        kept: KeptScales = NOTHING_KEPT,
    ) -> None:
        self._folder = folder
        self._notes = kept.notes
        self._weights = {weight.info.name: weight for weight in weights}
        self._infos = _infos(folder.tensors, weights, kept.parts)
        config = {k: v for k, v in folder.facts.config.items() if k != QUANTIZATION}
        self._facts = replace(folder.facts, config=config, kv_scales=kept.scales)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    @property
    def facts(self) -> HuggingFaceFacts:
        """Configuration and tokenizer."""
        return self._facts

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its plain name; a packed one stands where its first part lies."""
        return MappingProxyType(self._infos)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is stored and not read."""
        return self._notes

    def read(self, name: str) -> QuantTensor:
        """Return a tensor, a packed one in its format; raises MissingError without one."""
        weight = self._weights.get(name)
        if weight is not None:
            return weight.make()
        return self._folder.read(self._known(name))

    def release(self, name: str) -> None:
        """Let the system drop the pages of a tensor's parts."""
        for part in self._parts(name):
            self._folder.release(part)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the tensor's bytes, hexadecimal; of several parts, of their own."""
        parts = self._parts(name)
        if len(parts) == 1:
            return self._folder.digest(parts[0])
        digests = "".join(f"{part} {self._folder.digest(part)}\n" for part in parts)
        return hashlib.sha256(digests.encode()).hexdigest()

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return those of the configuration and of every file of weights."""
        return self._folder.stamps()

    def close(self) -> None:
        """Let go of the files; views stay valid."""
        self._folder.close()

    def _parts(self, name: str) -> tuple[str, ...]:
        weight = self._weights.get(name)
        return (self._known(name),) if weight is None else weight.parts

    def _known(self, name: str) -> str:
        if name not in self._infos:
            raise missing_tensor(self.path, name, self._infos)
        return name


def stated_config(
    stated: Mapping[str, Any], kind: type[ConfigT], method: str, owner: object
) -> ConfigT:
    """Return a `quantization_config` as a record.

    Args:
        stated: what config.json says.
        kind: the record; fields that it does not have are not read.
        method: the tool's name, for messages.
        owner: the file, for messages.

    Raises:
        BadFileError: a field is missing or has another type than it must.
    """
    try:
        return msgspec.convert(dict(stated), kind)
    except msgspec.ValidationError as error:
        raise BadFileError(
            f"{owner}: the quantization_config of {method} cannot be read ({error}); get the file "
            "again from its publisher."
        ) from None


def require_layout(layout: str, supported: Sequence[str], method: str, owner: object) -> None:
    """Refuse what a tool stores in a layout that is not read.

    Raises:
        UnsupportedError: the message names those that are.
    """
    if layout not in supported:
        raise UnsupportedError(
            f"{owner}: the {method} layout {layout[:40]!a} is not supported; there is "
            f"{' and '.join(supported)}."
        )


def _infos(
    stored: Mapping[str, TensorInfo], weights: Sequence[PackedWeight], left_out: Sequence[str]
) -> dict[str, TensorInfo]:
    of_part = {part: weight.info for weight in weights for part in weight.parts}
    hidden = set(left_out)
    infos: dict[str, TensorInfo] = {}
    for name, info in stored.items():
        if name not in hidden:
            shown = of_part.get(name, info)
            infos.setdefault(shown.name, shown)
    return infos
