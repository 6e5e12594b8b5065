"""Importance matrices: each input's sum of squares, in the two files that llama.cpp writes.

GGUF form: `general.type` is "imatrix"; `imatrix.datasets`, `imatrix.chunk_count` and
`imatrix.chunk_size` (tokens) describe the text; of each tensor there are F32 `<tensor>.in_sum2`
[inputs, experts] and `<tensor>.counts` [1, experts] in GGUF's order of dimensions.

Older .dat form, little-endian: int32 entries; of each int32 length and bytes of the name, int32
calls, int32 n and n float32; then int32 chunks, and int32 length and bytes of the data set's name.
The values are means times calls, those of all experts in one run, and 1 times calls for an expert
without data; how many experts there are stands nowhere, so such an entry has one row.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.atomic import write_bytes
from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_types import ArrayOf, ValueType
from fewbit.checkpoint.gguf_write import write_gguf
from fewbit.checkpoint.mapped import quoted
from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.formats.registry import F32, decode
from fewbit.formats.spec import QuantTensor
from fewbit.methods.shrinkage import shrunk
from fewbit.methods.statistics import InputStatistics

_SUMS = ".in_sum2"
_COUNTS = ".counts"
_MAGIC = b"GGUF"
_INT = struct.Struct("<i")
_LARGEST_FILE = 1 << 31
_LARGEST_NAME = 1 << 12
_EXACT = 2.0**24
"""Up to here every whole number is a float32, the type of GGUF's counts."""


@dataclass(frozen=True, eq=False)
class Importance:
    """One tensor's inputs: sums over all calibration tokens, apart for each expert."""

    sum_squares: NDArray[np.float32]
    """Sum of x^2, float32 [experts, inputs]; one row where the tensor has no experts."""
    counts: NDArray[np.int64]
    """How often each expert was reached, int64 [experts]: tokens, or calls in a .dat file."""

    def with_experts(self, experts: int) -> Importance:
        """Return the entry with this many rows; that of a .dat file has all experts in one.

        Raises:
            UsageError: the values do not divide, or the entry has another number of rows.
        """
        rows, width = self.sum_squares.shape
        if rows == experts:
            return self
        if rows != 1 or width % experts:
            raise UsageError(
                f"An importance of {rows} x {width} values does not divide into {experts} experts; "
                "take the importance matrix of this model."
            )
        return Importance(self.sum_squares.reshape(experts, -1), np.repeat(self.counts, experts))

    def statistics(self, expert: int = 0) -> InputStatistics:
        """Return what is known of the inputs, for solvers.

        The file holds squares alone: `largest` and `absolute` are those of inputs that always have
        the same magnitude.
        """
        count = int(self.counts[expert])
        squares = self.sum_squares[expert].astype(np.float64)
        magnitude = np.sqrt(squares / max(count, 1))
        return InputStatistics(
            count=count,
            squares=squares,
            largest=magnitude.astype(np.float32),
            absolute=magnitude * count,
        )

    def blended(self, expert: int) -> InputStatistics:
        """Return what is known of an expert's inputs, with a share of what is known of all's.

        So an expert that nothing reached has a prior and the others keep what they have; its
        `remarks` say how many tokens reached it. Where nothing reached any expert, there is nothing
        to blend, and squares are 0.
        """
        each = [self.statistics(number) for number in range(len(self.counts))]
        shared = functools.reduce(InputStatistics.plus, each)
        return each[expert] if shared.count == 0 else shrunk(each[expert], shared)


@dataclass(frozen=True, eq=False)
class ImportanceMatrix:
    """An importance matrix: entries by the name of the weight in llama.cpp's convention."""

    entries: Mapping[str, Importance]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    """Windows of text that were run."""
    chunk_size: int = 0
    """Tokens of a window; 0 where the file does not say (.dat)."""


def read_importance(path: Path) -> ImportanceMatrix:
    """Read a matrix in either form, told apart by the first bytes.

    Raises:
        MissingError: there is no such file.
        BadFileError: it is cut, damaged, or no importance matrix; the message says where.
    """
    if not path.is_file():
        raise MissingError(f"There is no importance matrix {path}; give a .gguf or .dat file.")
    try:
        with path.open("rb") as file:
            start = file.read(len(_MAGIC))
        return _read_gguf(path) if start == _MAGIC else _read_dat(path)
    except OSError as error:
        raise MissingError(
            f"The importance matrix {path} cannot be read ({error.strerror}); give another file."
        ) from error


def write_importance(path: Path, matrix: ImportanceMatrix) -> None:
    """Write a matrix atomically, in the form that the ending of the path names.

    A .dat file keeps one data set's name, has no chunk size, and gives experts without data ones.

    Raises:
        UsageError: the path ends in neither .gguf nor .dat.
        OutputError: the file cannot be written.
    """
    require_form(path)
    if path.suffix == ".gguf":
        _write_gguf(path, matrix)
    else:
        write_bytes(path, _dat(matrix))


def require_form(path: Path) -> None:
    """Refuse a path that names no form; raises UsageError."""
    if path.suffix not in (".gguf", ".dat"):
        raise UsageError(
            f"The importance matrix {path} must end in .gguf or .dat, which says its form."
        )


def _read_gguf(path: Path) -> ImportanceMatrix:
    with GgufCheckpoint(path) as file:
        metadata = file.facts.metadata
        kind = metadata.get("general.type")
        if kind != "imatrix":
            raise BadFileError(
                f"{path} is no importance matrix: general.type is {quoted(str(kind))}, not "
                "'imatrix'; make one with llama-imatrix or fewbit."
            )
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        entries = {name: _gguf_entry(file, name) for name in names}
        _refuse_strangers(path, file.tensors, entries)
        return ImportanceMatrix(
            MappingProxyType(entries),
            _datasets(path, metadata),
            _whole(path, metadata, "imatrix.chunk_count"),
            _whole(path, metadata, "imatrix.chunk_size"),
        )


def _gguf_entry(file: GgufCheckpoint, name: str) -> Importance:
    sums = _floats(file, name + _SUMS)
    if name + _COUNTS not in file.tensors:
        raise BadFileError(
            f"{file.path}: {quoted(name + _SUMS)} has no {quoted(_COUNTS)} beside it; the file is "
            "damaged, make it again."
        )
    counts = _floats(file, name + _COUNTS).reshape(-1)
    if len(counts) != len(sums):
        raise BadFileError(
            f"{file.path}: {quoted(name)} has sums of {len(sums)} experts and counts of "
            f"{len(counts)}; the file is damaged, make it again."
        )
    return _checked(file.path, name, sums, counts)


def _floats(file: GgufCheckpoint, name: str) -> NDArray[np.float32]:
    info = file.tensors[name]
    if info.format != F32 or len(info.shape) > 2:
        raise BadFileError(
            f"{file.path}: {quoted(name)} is {info.format.name} of shape {info.shape}, not f32 of "
            "experts x inputs; the file is damaged, make it again."
        )
    return np.array(decode(file.read(name)))


def _refuse_strangers(
    path: Path, tensors: Mapping[str, TensorInfo], entries: Mapping[str, Importance]
) -> None:
    known = {name + ending for name in entries for ending in (_SUMS, _COUNTS)}
    strangers = [name for name in tensors if name not in known]
    if strangers:
        raise BadFileError(
            f"{path}: the tensor {quoted(strangers[0])} belongs to no importance matrix; give the "
            "file that llama-imatrix or fewbit wrote."
        )


def _datasets(path: Path, metadata: Mapping[str, Any]) -> tuple[str, ...]:
    names = metadata.get("imatrix.datasets", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadFileError(f"{path}: imatrix.datasets is no list of texts; make the file again.")
    return tuple(names)


def _whole(path: Path, metadata: Mapping[str, Any], key: str) -> int:
    value = metadata.get(key)
    if type(value) is not int or value < 0:
        raise BadFileError(
            f"{path}: {key} is {quoted(str(value))}, no whole number; make the file again."
        )
    return value


def _checked(
    path: Path, name: str, sums: NDArray[np.float32], counts: NDArray[np.floating]
) -> Importance:
    if not np.isfinite(sums).all() or (sums < 0).any():
        expert, column = (int(i) for i in np.argwhere(~(np.isfinite(sums) & (sums >= 0)))[0])
        raise BadFileError(
            f"{path}: the sum of squares of {quoted(name)} is {sums[expert, column]} at input "
            f"{column}, expert {expert}; calibrate again, the model may have overflowed."
        )
    if not np.isfinite(counts).all() or (counts < 0).any() or (counts != np.rint(counts)).any():
        raise BadFileError(
            f"{path}: a count of {quoted(name)} is no whole number; the file is damaged, make it "
            "again."
        )
    return Importance(sums, counts.astype(np.int64))


class _DatReader:
    """A place in a .dat file that moves only over bytes that exist."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.content = content
        self.at = 0

    def bad(self, field: str, problem: str) -> BadFileError:
        return BadFileError(
            f"{self.path}: {field} at byte {self.at} {problem}; the file is cut, damaged, or no "
            "importance matrix, so make it again."
        )

    def number(self, field: str, largest: int) -> int:
        """Take an int32 from 0 to `largest`."""
        (value,) = _INT.unpack(self._bytes(_INT.size, field))
        if not 0 <= value <= largest:
            self.at -= _INT.size
            raise self.bad(field, f"is {value}, not from 0 to {largest}")
        return int(value)

    def text(self, field: str, largest: int) -> str:
        raw = self._bytes(self.number(f"the length of {field}", largest), field)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.at -= len(raw)
            raise self.bad(field, "is not UTF-8") from None

    def floats(self, count: int, field: str) -> NDArray[np.float32]:
        return np.frombuffer(self._bytes(4 * count, field), "<f4").astype(np.float32)

    def _bytes(self, size: int, field: str) -> bytes:
        left = len(self.content) - self.at
        if size > left:
            raise self.bad(field, f"needs {size} bytes, but {left} are left")
        self.at += size
        return self.content[self.at - size : self.at]


def _read_dat(path: Path) -> ImportanceMatrix:
    if path.stat().st_size > _LARGEST_FILE:
        raise BadFileError(f"{path} has over 2 GiB, more than an importance matrix; give another.")
    reader = _DatReader(path, path.read_bytes())
    entries: dict[str, Importance] = {}
    for _ in range(reader.number("the number of entries", 1 << 16)):
        name, entry = _dat_entry(reader)
        if name in entries:
            raise reader.bad(f"the entry {quoted(name)}", "appears a second time")
        entries[name] = entry
    if not entries:
        raise reader.bad("the number of entries", "is 0")
    # The oldest files end here.
    more = reader.at < len(reader.content)
    chunks = reader.number("the number of chunks", (1 << 31) - 1) if more else 0
    dataset = reader.text("the data set's name", 1 << 16) if more else ""
    if reader.at < len(reader.content):
        raise reader.bad("the end", f"is followed by {len(reader.content) - reader.at} bytes")
    datasets = (dataset,) if dataset else ()
    return ImportanceMatrix(MappingProxyType(entries), datasets, chunks)


def _dat_entry(reader: _DatReader) -> tuple[str, Importance]:
    name = reader.text("an entry's name", _LARGEST_NAME)
    field = f"the entry {quoted(name)}"
    calls = reader.number(f"the calls of {field}", (1 << 31) - 1)
    values = reader.number(f"the values of {field}", (1 << 31) - 1)
    if not values:
        raise reader.bad(field, "has no values")
    sums = reader.floats(values, field)[None]
    # Without a number of calls the values are the means themselves.
    return name, _checked(reader.path, name, sums, np.array([max(calls, 1)], np.float64))


def _write_gguf(path: Path, matrix: ImportanceMatrix) -> None:
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, entry in matrix.entries.items():
        tensors[name + _SUMS] = entry.sum_squares
        tensors[name + _COUNTS] = entry.counts.astype(np.float32)[:, None]
    infos = [TensorInfo(name, F32, values.shape, values.nbytes) for name, values in tensors.items()]

    def read(name: str) -> QuantTensor:
        values = np.ascontiguousarray(tensors[name], "<f4")
        return QuantTensor(F32, (values.shape[0], values.shape[1]), values.view(np.uint8))

    write_gguf(path, _facts(matrix), infos, read)


def _facts(matrix: ImportanceMatrix) -> GgufFacts:
    return GgufFacts(
        {
            "general.type": "imatrix",
            "imatrix.datasets": list(matrix.datasets),
            "imatrix.chunk_count": matrix.chunks,
            "imatrix.chunk_size": matrix.chunk_size,
        },
        {
            "general.type": ValueType.STRING,
            "imatrix.datasets": ArrayOf(ValueType.STRING),
            "imatrix.chunk_count": ValueType.UINT32,
            "imatrix.chunk_size": ValueType.UINT32,
        },
    )


def _dat(matrix: ImportanceMatrix) -> bytes:
    parts = [_INT.pack(len(matrix.entries))]
    for name, entry in matrix.entries.items():
        raw = name.encode()
        calls = _calls(entry, matrix.chunk_size)
        mean = np.divide(
            entry.sum_squares,
            entry.counts[:, None],
            where=entry.counts[:, None] > 0,
            out=np.ones_like(entry.sum_squares),
        )
        values = (mean * np.float32(calls)).astype("<f4")
        parts += [_INT.pack(len(raw)), raw, _INT.pack(calls), _INT.pack(values.size)]
        parts.append(values.tobytes())
    dataset = (matrix.datasets[-1] if matrix.datasets else "").encode()
    parts += [_INT.pack(matrix.chunks), _INT.pack(len(dataset)), dataset]
    return b"".join(parts)


def _calls(entry: Importance, chunk_size: int) -> int:
    """Return how many chunks reached the tensor, at least 1."""
    return max(1, -(-int(entry.counts.max()) // max(chunk_size, 1)))
