"""Reading GGUF files: every length and offset is checked before it is used.

The layout is that of the gguf specification (ggml, docs/gguf.md), versions 2 and 3, little-endian:
magic, version, counts, metadata, tensor infos, padding, data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_types import SCALARS, ArrayOf, MetadataType, ValueType
from fewbit.checkpoint.mapped import ClosedByWith, MappedFile, quoted
from fewbit.checkpoint.missing import missing_tensor
from fewbit.errors import BadFileError, UnsupportedError
from fewbit.formats.registry import GGUF_TYPES
from fewbit.formats.spec import QuantTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_DIMENSIONS = 4

MAX_HEADER = 1 << 26
"""Bytes before the data. A vocabulary of 262,144 with its merges takes about 15 MB."""
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ELEMENTS = 1 << 23
"""Elements of all metadata arrays together: a million tokens with scores, types and merges fit."""
MAX_KEY_BYTES = (1 << 16) - 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
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
class StoredTensor:
    """A tensor's description and where its bytes begin in the file."""

    info: TensorInfo
    offset: int


@dataclass(frozen=True)
class GgufLayout:
    """A parsed header."""

    facts: GgufFacts
    alignment: int
    tensors: Mapping[str, StoredTensor]


class _Cursor:
    """A place in the header; it moves only over bytes that exist."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.limit = min(len(data), MAX_HEADER)
        self.elements = 0
        self.keys: dict[str, int] = {}

    def bad(self, field: str, problem: str, at: int | None = None) -> BadFileError:
        """Return an error that names the field and its place."""
        place = self.at if at is None else at
        return BadFileError(
            f"{self.path}: {field} at byte {place} {problem}; "
            "the file is damaged or cut, get it again from its publisher."
        )

    def require(self, size: int, field: str) -> None:
        """Check that `size` bytes follow."""
        left = self.limit - self.at
        if size <= left:
            return
        if self.at + size <= len(self.data):
            raise self.bad(field, f"runs past the {MAX_HEADER} bytes allowed for metadata")
        raise self.bad(field, f"claims {size} bytes, but {left} are left in the file")

    def number(self, form: struct.Struct, field: str) -> Any:
        """Take one number."""
        self.require(form.size, field)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def raw(self, field: str) -> bytes:
        """Take a string's bytes: a u64 length, then that many."""
        length = self.number(_U64, field)
        self.require(length, field)
        start = self.at
        self.at += length
        return self.data[start : self.at]

    def name(self, field: str, largest: int) -> str:
        """Take a string that must be UTF-8 and not empty."""
        start = self.at
        raw = self.raw(field)
        if not raw:
            raise self.bad(field, "is empty", start)
        if len(raw) > largest:
            raise self.bad(field, f"has {len(raw)} bytes, more than the {largest} allowed", start)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.bad(field, "is not UTF-8", start) from None

    def count(self, field: str, largest: int, width: int) -> int:
        """Take a u64 count of things of at least `width` bytes each."""
        start = self.at
        count: int = self.number(_U64, field)
        if count > largest:
            raise self.bad(field, f"is {count}, more than the {largest} allowed", start)
        if count * width > self.limit - self.at:
            raise self.bad(
                field, f"is {count}, but only {self.limit - self.at} bytes follow", start
            )
        return count


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
    cursor = _Cursor(data, path)
    _take_version(cursor)
    tensor_count = cursor.count("the tensor count", MAX_TENSORS, 32)
    key_count = cursor.count("the key count", MAX_KEYS, 13)
    facts = _take_metadata(cursor, key_count)
    alignment = _alignment(cursor, facts)
    _check_sizes(cursor, facts.metadata)
    described = [_take_tensor(cursor, alignment) for _ in range(tensor_count)]
    data_start = -(-cursor.at // alignment) * alignment
    return GgufLayout(facts, alignment, _place(cursor, described, data_start))


def _take_version(cursor: _Cursor) -> None:
    cursor.require(4, "the magic")
    if cursor.data[:4] != MAGIC:
        raise cursor.bad("the magic", "is not 'GGUF'")
    cursor.at = 4
    version = cursor.number(_U32, "the version")
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


def _take_metadata(cursor: _Cursor, count: int) -> GgufFacts:
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


def _take_type(cursor: _Cursor, field: str) -> ValueType:
    start = cursor.at
    number = cursor.number(_U32, field)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.bad(field, f"has the unknown type {number}", start) from None


def _take_value(cursor: _Cursor, field: str) -> tuple[MetadataType, Any]:
    kind = _take_type(cursor, field)
    if kind is not ValueType.ARRAY:
        return kind, _take_scalar(cursor, kind, field)
    start = cursor.at
    element = _take_type(cursor, field)
    if element is ValueType.ARRAY:
        raise cursor.bad(field, "is an array of arrays, which no model file uses", start)
    return ArrayOf(element), _take_array(cursor, element, field)


def _take_scalar(cursor: _Cursor, kind: ValueType, field: str) -> Any:
    if kind is ValueType.STRING:
        return _text(cursor.raw(field))
    start = cursor.at
    value = cursor.number(SCALARS[kind], field)
    if kind is not ValueType.BOOL:
        return value
    if value > 1:
        raise cursor.bad(field, f"is the boolean {value}, neither 0 nor 1", start)
    return bool(value)


def _take_array(cursor: _Cursor, element: ValueType, field: str) -> list[Any]:
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


def _take_strings(cursor: _Cursor, length: int, field: str) -> list[str | bytes]:
    """Take an array of strings; one loop without calls, as a vocabulary has 150,000 of them."""
    data, at, limit, unpack = cursor.data, cursor.at, cursor.limit, _U64.unpack_from
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


def _alignment(cursor: _Cursor, facts: GgufFacts) -> int:
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


def _check_sizes(cursor: _Cursor, metadata: Mapping[str, Any]) -> None:
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


def _take_tensor(cursor: _Cursor, alignment: int) -> StoredTensor:
    """Take a tensor info; its offset is still relative to the data."""
    name = cursor.name("a tensor's name", MAX_KEY_BYTES)
    field = f"the tensor {quoted(name)}"
    start = cursor.at
    dimensions = cursor.number(_U32, field)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.bad(field, f"has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}", start)
    sizes = tuple(cursor.number(_U64, field) for _ in range(dimensions))
    if 0 in sizes:
        raise cursor.bad(field, f"has the dimensions {sizes}, one of them 0", start)
    type_at = cursor.at
    type_id = cursor.number(_U32, field)
    form = GGUF_TYPES.get(type_id)
    if form is None:
        raise cursor.bad(field, f"has the unknown type {type_id}", type_at)
    if sizes[0] % form.block_size:
        raise cursor.bad(
            field, f"has rows of {sizes[0]}, no multiple of {form.name}'s {form.block_size}", start
        )
    offset_at = cursor.at
    offset = cursor.number(_U64, field)
    if offset % alignment:
        raise cursor.bad(field, f"has offset {offset}, not aligned to {alignment}", offset_at)
    shape = sizes[::-1]
    nbytes = form.row_bytes(sizes[0])
    for size in sizes[1:]:
        nbytes *= size
    return StoredTensor(TensorInfo(name, form, shape, nbytes), offset)


def _place(
    cursor: _Cursor, described: list[StoredTensor], data_start: int
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


def _check_disjoint(cursor: _Cursor, tensors: list[StoredTensor]) -> None:
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in zip(ordered, ordered[1:], strict=False):
        if before.offset + before.info.nbytes > after.offset:
            raise cursor.bad(
                f"the tensor {quoted(after.info.name)}",
                f"overlaps {quoted(before.info.name)}",
                after.offset,
            )


class GgufCheckpoint(ClosedByWith):
    """A GGUF file as a checkpoint; opening it reads the header only.

    Raises:
        BadFileError, UnsupportedError: as `parse_gguf`, or the file is one part of several.
    """

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        try:
            self._layout = parse_gguf(self._file.data, path)
            _refuse_part(path, self._layout.facts.metadata)
        except BaseException:
            self._file.close()
            raise
        self._infos = {name: stored.info for name, stored in self._layout.tensors.items()}

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def facts(self) -> GgufFacts:
        """The metadata."""
        return self._layout.facts

    @property
    def alignment(self) -> int:
        """Bytes to a multiple of which every tensor's data is aligned."""
        return self._layout.alignment

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the order of the header."""
        return MappingProxyType(self._infos)

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as read-only views of the file; raises MissingError without one."""
        stored = self._stored(name)
        rows, columns = stored.info.matrix_shape
        codes = self._file.array(stored.offset, stored.info.nbytes)
        return QuantTensor(stored.info.format, (rows, columns), codes.reshape(rows, -1))

    def release(self, name: str) -> None:
        """Let the system drop the tensor's pages."""
        stored = self._stored(name)
        self._file.release(stored.offset, stored.info.nbytes)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the tensor's bytes, hexadecimal."""
        stored = self._stored(name)
        return self._file.sha256((stored.offset, stored.info.nbytes))

    def close(self) -> None:
        """Let go of the file; views stay valid."""
        self._file.close()

    def _stored(self, name: str) -> StoredTensor:
        try:
            return self._layout.tensors[name]
        except KeyError:
            raise missing_tensor(self.path, name, self._infos) from None


def _refuse_part(path: Path, metadata: Mapping[str, Any]) -> None:
    parts = metadata.get("split.count", 1)
    if type(parts) is int and parts > 1:
        raise UnsupportedError(
            f"{path} is one of {parts} parts of a split GGUF file; join them first "
            "(llama-gguf-split --merge)."
        )
