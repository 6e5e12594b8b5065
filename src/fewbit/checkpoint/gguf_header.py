"""Parsing a GGUF header: every length, count, type and offset is checked before it is used.

The layout is that of the gguf specification (ggml, docs/gguf.md), versions 2 and 3, little-endian:
magic, version, counts, metadata, tensor infos, padding, data.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_cursor import U32, U64, Cursor
from fewbit.checkpoint.gguf_types import SCALARS, ArrayOf, MetadataType, ValueType
from fewbit.checkpoint.mapped import quoted
from fewbit.checkpoint.stored import StoredTensor
from fewbit.errors import UnsupportedError
from fewbit.formats.registry import GGUF_TYPES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_DIMENSIONS = 4

MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 14
MAX_ELEMENTS = 1 << 22
"""Elements of all metadata arrays together: a million tokens with scores, types and merges fit."""
MAX_KEY_BYTES = (1 << 16) - 1

_LARGEST_SIZES = MappingProxyType(
    {
        "block_count": 1 << 12,
        "embedding_length": 1 << 20,
        "context_length": (1 << 31) - 1,
        "attention.head_count": 1 << 16,
    }
)
"""Hyperparameters that are counts, with a bound beyond any model; none of them may be 0."""


@dataclass(frozen=True)
class GgufLayout:
    """A parsed header."""

    facts: GgufFacts
    alignment: int
    tensors: Mapping[str, StoredTensor]


def parse_gguf(data: mmap.mmap, path: Path) -> GgufLayout:
    """Read a header.

    Args:
        data: the whole file.
        path: what the file is called in an error.

    Raises:
        BadFileError: a length, offset, count, type or name cannot be right; the message names the
            field and the byte.
        UnsupportedError: a version, byte order or layout that fewbit does not read.
    """
    cursor = Cursor(data, path)
    _take_version(cursor)
    tensor_count = cursor.count("the tensor count", MAX_TENSORS, 32)
    key_count = cursor.count("the key count", MAX_KEYS, 13)
    facts = _take_metadata(cursor, key_count)
    alignment = _alignment(cursor, facts)
    _check_sizes(cursor, facts.metadata)
    described = [_take_tensor(cursor, alignment) for _ in range(tensor_count)]
    data_start = -(-cursor.at // alignment) * alignment
    return GgufLayout(facts, alignment, _place(cursor, described, data_start))


def _take_version(cursor: Cursor) -> None:
    cursor.require(4, "the magic")
    if cursor.data[:4] != MAGIC:
        raise cursor.bad("the magic", "is not 'GGUF'")
    cursor.at = 4
    version = cursor.number(U32, "the version")
    if version in VERSIONS:
        return
    if version and version & 0xFFFF == 0:
        raise UnsupportedError(
            f"{cursor.path} is a big-endian GGUF file; convert it to little-endian "
            "(gguf-convert-endian of the gguf package does)."
        )
    raise UnsupportedError(
        f"{cursor.path} is GGUF version {version} (byte 4); versions 2 and 3 are supported, "
        "convert the model again with a current tool."
    )


def _take_metadata(cursor: Cursor, count: int) -> GgufFacts:
    metadata: dict[str, Any] = {}
    types: dict[str, MetadataType] = {}
    for index in range(count):
        start = cursor.at
        key = cursor.name(f"key {index}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.bad(f"the key {quoted(key)}", "appears a second time", start)
        cursor.keys[key] = cursor.at
        types[key], metadata[key] = _take_value(cursor, f"the value of {quoted(key)}")
    return GgufFacts(MappingProxyType(metadata), MappingProxyType(types))


def _take_type(cursor: Cursor, field: str) -> ValueType:
    start = cursor.at
    number = cursor.number(U32, field)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.bad(field, f"has the unknown type {number}", start) from None


def _take_value(cursor: Cursor, field: str) -> tuple[MetadataType, Any]:
    kind = _take_type(cursor, field)
    if kind is not ValueType.ARRAY:
        return kind, _take_scalar(cursor, kind, field)
    start = cursor.at
    element = _take_type(cursor, field)
    if element is ValueType.ARRAY:
        raise cursor.bad(field, "is an array of arrays, which no model file uses", start)
    return ArrayOf(element), _take_array(cursor, element, field)


def _take_scalar(cursor: Cursor, kind: ValueType, field: str) -> Any:
    if kind is ValueType.STRING:
        return _text(cursor.raw(field))
    start = cursor.at
    value = cursor.number(SCALARS[kind], field)
    if kind is not ValueType.BOOL:
        return value
    if value > 1:
        raise cursor.bad(field, f"is the boolean {value}, neither 0 nor 1", start)
    return bool(value)


def _take_array(cursor: Cursor, element: ValueType, field: str) -> list[Any]:
    width = 8 if element is ValueType.STRING else SCALARS[element].size
    length = cursor.count(f"the length of {field}", MAX_ELEMENTS - cursor.elements, width)
    cursor.elements += length
    if element is ValueType.STRING:
        return _take_strings(cursor, length, field)
    start = cursor.at
    cursor.at += length * width
    dtype = np.dtype(SCALARS[element].format)
    numbers: list[Any] = np.frombuffer(cursor.data, dtype, length, start).tolist() if length else []
    if element is ValueType.BOOL:
        if any(number > 1 for number in numbers):
            raise cursor.bad(field, "has a boolean that is neither 0 nor 1", start)
        return [bool(number) for number in numbers]
    return numbers


def _take_strings(cursor: Cursor, length: int, field: str) -> list[str | bytes]:
    """Take an array of strings; one loop without calls, as a vocabulary has 150,000 of them."""
    data, at, limit, unpack = cursor.data, cursor.at, cursor.limit, U64.unpack_from
    strings: list[str | bytes] = []
    for index in range(length):
        begin = at + 8
        end = begin + unpack(data, at)[0] if begin <= limit else limit + 1
        if end > limit:
            cursor.at = at
            cursor.raw(f"string {index} of {field}")
        raw = data[begin:end]
        try:
            strings.append(raw.decode())
        except UnicodeDecodeError:
            strings.append(raw)
        at = end
    cursor.at = at
    return strings


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _alignment(cursor: Cursor, facts: GgufFacts) -> int:
    key = "general.alignment"
    if key not in facts.metadata:
        return DEFAULT_ALIGNMENT
    kind, value = facts.types[key], facts.metadata[key]
    at = cursor.keys[key]
    if kind is not ValueType.UINT32:
        name = kind.name if isinstance(kind, ValueType) else "ARRAY"
        raise cursor.bad(f"the key '{key}'", f"has the type {name} instead of UINT32", at)
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        problem = f"is {value}, no power of two from 8 to {MAX_ALIGNMENT}"
        raise cursor.bad(f"the key '{key}'", problem, at)
    return int(value)


def _check_sizes(cursor: Cursor, metadata: Mapping[str, Any]) -> None:
    key = "general.architecture"
    architecture = metadata.get(key, "")
    if not isinstance(architecture, str):
        raise cursor.bad(f"the key '{key}'", "is no text", cursor.keys[key])
    for name, largest in _LARGEST_SIZES.items():
        key = f"{architecture}.{name}"
        value = metadata.get(key, 1)
        for size in value if isinstance(value, list) else [value]:
            if type(size) is not int or not 1 <= size <= largest:
                problem = f"is {quoted(str(size))}, no whole number from 1 to {largest}"
                raise cursor.bad(f"the key {quoted(key)}", problem, cursor.keys[key])


def _take_tensor(cursor: Cursor, alignment: int) -> StoredTensor:
    """Take a tensor info; its offset is still relative to the data."""
    name = cursor.name("a tensor's name", MAX_KEY_BYTES)
    field = f"the tensor {quoted(name)}"
    start = cursor.at
    dimensions = cursor.number(U32, field)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.bad(field, f"has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}", start)
    sizes = tuple(cursor.number(U64, field) for _ in range(dimensions))
    if 0 in sizes:
        raise cursor.bad(field, f"has the dimensions {sizes}, one of them 0", start)
    type_at = cursor.at
    type_id = cursor.number(U32, field)
    form = GGUF_TYPES.get(type_id)
    if form is None:
        raise cursor.bad(field, f"has the unknown type {type_id}", type_at)
    if sizes[0] % form.block_size:
        raise cursor.bad(
            field, f"has rows of {sizes[0]}, no multiple of {form.name}'s {form.block_size}", start
        )
    offset_at = cursor.at
    offset = cursor.number(U64, field)
    if offset % alignment:
        raise cursor.bad(field, f"has offset {offset}, not aligned to {alignment}", offset_at)
    shape = sizes[::-1]
    nbytes = form.row_bytes(sizes[0])
    for size in sizes[1:]:
        nbytes *= size
    return StoredTensor(TensorInfo(name, form, shape, nbytes), offset)


def _place(
    cursor: Cursor, described: list[StoredTensor], data_start: int
) -> Mapping[str, StoredTensor]:
    """Turn offsets into places in the file; every tensor lies inside it, and none twice."""
    placed: dict[str, StoredTensor] = {}
    size = len(cursor.data)
    for tensor in described:
        name, nbytes = tensor.info.name, tensor.info.nbytes
        offset = data_start + tensor.offset
        if name in placed:
            raise cursor.bad(f"the tensor {quoted(name)}", "appears a second time")
        if offset + nbytes > size:
            raise cursor.bad(
                f"the tensor {quoted(name)}",
                f"has {nbytes} bytes, which end at {offset + nbytes} in a file of {size}",
                offset,
            )
        placed[name] = StoredTensor(tensor.info, offset)
    _check_disjoint(cursor, list(placed.values()))
    return MappingProxyType(placed)


def _check_disjoint(cursor: Cursor, tensors: list[StoredTensor]) -> None:
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.info.nbytes > after.offset:
            raise cursor.bad(
                f"the tensor {quoted(after.info.name)}",
                f"overlaps {quoted(before.info.name)}",
                after.offset,
            )
