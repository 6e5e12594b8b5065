"""Reading safetensors files: the header is checked as a whole before any tensor is looked at.

Layout (safetensors, docs/source/index.mdx): u64 header length, a JSON object, data. Ranges of the
data must cover it without holes or overlaps. We parse the header ourselves because the library's
NumPy interface copies every tensor and has no bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.mapped import ClosedByWith, MappedFile, quoted
from fewbit.checkpoint.stored import StoredTensor, find_stored
from fewbit.checkpoint.strict_json import parse_object
from fewbit.errors import BadFileError
from fewbit.formats.registry import BLOCK_FORMATS
from fewbit.formats.spec import BlockSpec, QuantTensor
from fewbit.records.loading import FileStamp

MAX_HEADER = 1 << 25
"""A third of the format's own bound of 100 MB; a header of 50,000 tensors has a quarter of it."""
MAX_DIMENSIONS = 8
METADATA = "__metadata__"

_NO_GGUF_ID = -1
DTYPES: Mapping[str, BlockSpec] = MappingProxyType(
    {
        **{
            name: BLOCK_FORMATS[name.lower()].spec
            for name in ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8")
        },
        **{
            name: BlockSpec(name.lower(), _NO_GGUF_ID, 1, width)
            for name, width in (
                ("U64", 8),
                ("U32", 4),
                ("U16", 2),
                ("U8", 1),
                ("BOOL", 1),
                ("F8_E4M3", 1),
                ("F8_E5M2", 1),
                ("F8_E8M0", 1),
            )
        },
    }
)
"""Element types by their name in a header; those without a GGUF id are listed, but never run."""


@dataclass(frozen=True)
class SafetensorsHeader:
    """A parsed header; `metadata` is the free text that writers add."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, StoredTensor]


def parse_safetensors(head: bytes, path: Path, size: int) -> SafetensorsHeader:
    """Read a header.

    Args:
        head: the JSON after the length.
        path: what the file is called in an error.
        size: bytes of the file.

    Raises:
        BadFileError: a dtype, shape or range cannot be right; the message names tensor and field.
    """
    described = parse_object(head, f"{path}: the header at byte 8")
    metadata = _metadata(described.pop(METADATA, {}), path)
    data_start = 8 + len(head)
    tensors = [_tensor(name, entry, path, data_start) for name, entry in described.items()]
    _check_cover(tensors, path, data_start, size)
    return SafetensorsHeader(
        MappingProxyType(metadata), MappingProxyType({t.info.name: t for t in tensors})
    )


def _bad(path: Path, field: str, problem: str) -> BadFileError:
    return BadFileError(
        f"{path}: {field} {problem}; the file is damaged or cut, get it again from its publisher."
    )


def _metadata(value: Any, path: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _bad(path, f"the field '{METADATA}' at byte 8", "is no map from text to text")
    return value


def _tensor(name: str, entry: Any, path: Path, data_start: int) -> StoredTensor:
    field = f"the tensor {quoted(name)} in the header at byte 8"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, field, "does not have exactly dtype, shape and data_offsets")
    form = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if form is None:
        known = ", ".join(DTYPES)
        raise _bad(
            path, field, f"has dtype {quoted(str(entry['dtype']))}, which is none of {known}"
        )
    shape = entry["shape"]
    if not _whole_numbers(shape, 1) or len(shape) > MAX_DIMENSIONS:
        raise _bad(
            path, field, f"has shape {quoted(str(shape))}, not up to {MAX_DIMENSIONS} sizes above 0"
        )
    offsets = entry["data_offsets"]
    if not _whole_numbers(offsets, 0) or len(offsets) != 2:
        raise _bad(path, field, f"has data_offsets {quoted(str(offsets))}, not two whole numbers")
    nbytes = math.prod(shape) * form.block_bytes
    begin, end = offsets
    if end - begin != nbytes:
        raise _bad(
            path, field, f"has data_offsets {begin} to {end}, but its shape asks for {nbytes} bytes"
        )
    return StoredTensor(TensorInfo(name, form, tuple(shape), nbytes), data_start + begin)


def _whole_numbers(value: Any, least: int) -> bool:
    # 2^64 bounds the numbers so that products of eight of them stay cheap.
    return isinstance(value, list) and all(
        type(number) is int and least <= number < 1 << 64 for number in value
    )


def _check_cover(tensors: list[StoredTensor], path: Path, data_start: int, size: int) -> None:
    expected = data_start
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        if tensor.offset != expected:
            word = "overlaps the one before" if tensor.offset < expected else "leaves a hole"
            raise _bad(
                path,
                f"the tensor {quoted(tensor.info.name)}",
                f"begins at byte {tensor.offset} instead of {expected}, so it {word}",
            )
        expected += tensor.info.nbytes
    if expected > size:
        raise _bad(path, "the data", f"ends at byte {expected}, beyond the file's {size} bytes")
    if expected < size:
        raise _bad(path, "the data", f"ends at byte {expected}, but the file has {size} bytes")


class SafetensorsFile(ClosedByWith):
    """A mapped safetensors file whose header has been checked.

    Raises:
        BadFileError: as `parse_safetensors`, or the header's length cannot be right.
    """

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        try:
            head = _head(self._file)
            self.header = parse_safetensors(head, path, self._file.size)
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as a read-only view; raises MissingError without one."""
        return self._stored(name).view(self._file)

    def release(self, name: str) -> None:
        """Let the system drop the tensor's pages."""
        self._file.release(*self._stored(name).place)

    def digest(self, *names: str) -> str:
        """Return the SHA-256 of the bytes of tensors, one after another, hexadecimal."""
        return self._file.sha256(*(self._stored(name).place for name in names))

    def stamp(self) -> FileStamp:
        """Return what tells the file from others."""
        return self._file.stamp(8 + int.from_bytes(self._file.data[:8], "little"))

    def close(self) -> None:
        """Let go of the file; views stay valid."""
        self._file.close()

    def _stored(self, name: str) -> StoredTensor:
        return find_stored(self._file, self.header.tensors, name)


def _head(file: MappedFile) -> bytes:
    if file.size < 8:
        raise _bad(file.path, "the header length at byte 0", f"is cut: the file has {file.size}")
    length = int.from_bytes(file.data[:8], "little")
    if length > MAX_HEADER:
        raise _bad(
            file.path, "the header length at byte 0", f"is {length}, more than {MAX_HEADER} allowed"
        )
    if length > file.size - 8:
        raise _bad(
            file.path,
            "the header length at byte 0",
            f"is {length}, but the file has {file.size - 8} bytes after it",
        )
    return file.data[8 : 8 + length]
