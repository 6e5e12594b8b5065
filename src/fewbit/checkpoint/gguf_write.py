"""Writing GGUF files (version 3): metadata with its types kept, tensors one at a time."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fewbit.atomic import replacing
from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_header import DEFAULT_ALIGNMENT, MAGIC
from fewbit.checkpoint.gguf_split import part_path, split_keys
from fewbit.checkpoint.gguf_types import SCALARS, ArrayOf, MetadataType, ValueType
from fewbit.checkpoint.parted import parted
from fewbit.errors import FaultError, UnsupportedError, UsageError
from fewbit.formats.registry import GGUF_TYPES
from fewbit.formats.spec import BlockSpec, QuantTensor

VERSION = 3
_OPTION = "--split-size"


def overlay(facts: GgufFacts, changes: Mapping[str, tuple[MetadataType, Any] | None]) -> GgufFacts:
    """Return metadata with some keys set, added at the end, or (None) removed."""
    metadata, types = dict(facts.metadata), dict(facts.types)
    for key, change in changes.items():
        if change is None:
            metadata.pop(key, None)
            types.pop(key, None)
        else:
            types[key], metadata[key] = change
    return GgufFacts(metadata, types)


def write_gguf(
    path: Path,
    facts: GgufFacts,
    tensors: Sequence[TensorInfo],
    read: Callable[[str], QuantTensor],
) -> None:
    """Write a file atomically.

    The metadata of a file that was read, with its tensors in the same order, gives the same header.

    Args:
        path: the file.
        facts: the metadata with the type of every key; `general.alignment` is honoured.
        tensors: what to write, in this order; shapes as in `TensorInfo`.
        read: gives each tensor when its turn comes; only one is held at a time.

    Raises:
        OutputError: the file cannot be written.
        UnsupportedError: a tensor's format is no GGUF type.
        UsageError: a value does not fit its type, or has none.
        FaultError: `read` gives another format or size than announced.
    """
    alignment = _alignment(facts)
    head = _header(facts, tensors, alignment)
    with replacing(path) as file:
        file.write(head + bytes(-len(head) % alignment))
        for info in tensors:
            _write_tensor(file, info, read(info.name), alignment)


def part_paths(out: Path, tensors: Sequence[TensorInfo], largest: int) -> list[Path]:
    """Return the files that `write_gguf_parts` writes; raises UsageError for too many."""
    count = len(parted(tensors, largest, _OPTION))
    return [out] if count == 1 else [part_path(out, number, count) for number in range(count)]


def write_gguf_parts(
    out: Path,
    facts: GgufFacts,
    tensors: Sequence[TensorInfo],
    read: Callable[[str], QuantTensor],
    largest: int,
) -> None:
    """Write a file in numbered parts, each atomically; one that fits is a plain file.

    The first part has the metadata.

    Args:
        out: the file's name without numbers.
        facts: as of `write_gguf`.
        tensors: as of `write_gguf`.
        read: as of `write_gguf`.
        largest: bytes of tensors in a part, at most, unless one tensor alone has more.

    Raises:
        OutputError, UnsupportedError, UsageError, FaultError: as `write_gguf`.
    """
    parts = parted(tensors, largest, _OPTION)
    if len(parts) == 1:
        write_gguf(out, facts, tensors, read)
        return
    for number, part in enumerate(parts):
        keys = split_keys(number, len(parts), len(tensors))
        own = overlay(facts if number == 0 else _bare(facts), keys)
        write_gguf(part_path(out, number, len(parts)), own, part, read)


def _bare(facts: GgufFacts) -> GgufFacts:
    """Return what parts after the first need of the metadata."""
    key = "general.alignment"
    own = {key: facts.metadata[key]} if key in facts.metadata else {}
    return GgufFacts(own, {name: facts.types[name] for name in own})


def header_bytes(facts: GgufFacts, tensors: Sequence[TensorInfo]) -> int:
    """Return how many bytes come before the data of a file, and at most between its tensors."""
    alignment = _alignment(facts)
    return len(_header(facts, tensors, alignment)) + alignment * (len(tensors) + 1)


def _alignment(facts: GgufFacts) -> int:
    return int(facts.metadata.get("general.alignment", DEFAULT_ALIGNMENT))


def _header(facts: GgufFacts, tensors: Sequence[TensorInfo], alignment: int) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(facts.metadata))]
    for key, value in facts.metadata.items():
        parts.append(_string(key))
        parts.append(_typed_value(key, facts.types.get(key), value))
    offset = 0
    for info in tensors:
        sizes = info.shape[::-1] or (1,)
        parts.append(_string(info.name))
        parts.append(struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
        parts.append(struct.pack("<IQ", _type_id(info), offset))
        offset += -(-info.nbytes // alignment) * alignment
    return b"".join(parts)


def _type_id(info: TensorInfo) -> int:
    form = info.format
    if not isinstance(form, BlockSpec) or GGUF_TYPES.get(form.type_id) != form:
        known = ", ".join(spec.name for spec in GGUF_TYPES.values())
        raise UnsupportedError(
            f"{info.name} is in {form.name}, which is no GGUF type; there are {known}."
        )
    return form.type_id


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(8, "little") + raw


def _typed_value(key: str, kind: MetadataType | None, value: Any) -> bytes:
    if kind is None:
        raise UsageError(
            f"The metadata key '{key}' has no type, so it cannot be written; give one."
        )
    try:
        if not isinstance(kind, ArrayOf):
            return struct.pack("<I", kind) + _scalar(kind, value)
        head = struct.pack("<IIQ", ValueType.ARRAY, kind.element, len(value))
        return head + _elements(kind.element, value)
    except (struct.error, TypeError, ValueError, OverflowError, AttributeError) as error:
        shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
        raise UsageError(
            f"The metadata key '{key}' cannot be written as {kind} from {shown} ({error})."
        ) from error


def _scalar(kind: ValueType, value: Any) -> bytes:
    return _string(value) if kind is ValueType.STRING else SCALARS[kind].pack(value)


def _elements(element: ValueType, values: Sequence[Any]) -> bytes:
    if element is ValueType.STRING:
        return b"".join(map(_string, values))
    form = SCALARS[element]
    return struct.pack(f"<{len(values)}{form.format[1:]}", *values)


def _write_tensor(file: BinaryIO, info: TensorInfo, tensor: QuantTensor, alignment: int) -> None:
    if tensor.spec != info.format or tensor.codes.nbytes != info.nbytes:
        raise FaultError(
            f"{info.name} brings {tensor.codes.nbytes} bytes of {tensor.spec.name} where "
            f"{info.nbytes} of {info.format.name} were announced."
        )
    file.write(np.ascontiguousarray(tensor.codes).data)
    file.write(bytes(-info.nbytes % alignment))
