"""Writing safetensors files: header first, tensors one at a time, the file appearing as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fewbit.atomic import replacing, write_bytes
from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.huggingface import INDEX, WEIGHTS
from fewbit.checkpoint.parted import parted
from fewbit.checkpoint.safetensors_read import DTYPES, METADATA
from fewbit.errors import FaultError, UnsupportedError

_DATA_ALIGNMENT = 8


@dataclass(frozen=True)
class Part:
    """One entry of a file to be: what the header says of it."""

    name: str
    dtype: str
    """A name of `DTYPES`."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        count = 1
        for size in self.shape:
            count *= size
        return count * DTYPES[self.dtype].block_bytes


def plain_part(info: TensorInfo) -> Part:
    """Return the entry of a tensor that is stored element by element.

    Raises:
        UnsupportedError: its format is no element type of safetensors.
    """
    dtype = info.format.name.upper()
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"{info.name} is in {info.format.name}, which safetensors cannot store plainly; "
            f"it stores {', '.join(DTYPES)}."
        )
    return Part(info.name, dtype, info.shape)


def write_safetensors(
    path: Path,
    parts: Sequence[Part],
    content: Iterable[tuple[str, NDArray[Any]]],
    metadata: Mapping[str, str],
) -> None:
    """Write a file atomically.

    The header and the data are ordered by element width, widest first, then by place in `parts`,
    so that every tensor is aligned to its element; `content` may come in any order.

    Args:
        path: the file.
        parts: every entry.
        content: the data of every entry, exactly once, as (name, array), one at a time.
        metadata: free text for the header.

    Raises:
        OutputError: the file cannot be written.
        FaultError: the content is not what `parts` announces.
    """
    ordered = sorted(parts, key=lambda part: -DTYPES[part.dtype].block_bytes)
    head = _header(ordered, metadata)
    with replacing(path) as file:
        file.write(len(head).to_bytes(8, "little"))
        file.write(head)
        places = _places(ordered, 8 + len(head))
        for name, array in content:
            _write_part(file, name, array, places.pop(name, None))
        if places:
            raise FaultError(f"{path}: no content was given for {', '.join(places)}.")


def write_shards(
    folder: Path,
    parts: Sequence[Part],
    content: Iterable[tuple[str, NDArray[Any]]],
    metadata: Mapping[str, str],
    largest: int,
) -> None:
    """Write a folder's weights: one file, or numbered ones with an index, as transformers does.

    Args:
        folder: where they go.
        parts: every entry.
        content: the data of every entry, in the order of `parts` where they are several files.
        metadata: free text for the header of each file.
        largest: bytes of tensors in a file, at most, unless one tensor alone has more.

    Raises:
        OutputError, FaultError: as `write_safetensors`.
        UsageError: there are too many files.
    """
    shards = parted(parts, largest, "--shard-size")
    if len(shards) == 1:
        write_safetensors(folder / WEIGHTS, parts, content, metadata)
        return
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    places = {part.name: n for n, shard in enumerate(shards) for part in shard}
    for number, pairs in groupby(content, lambda pair: places[pair[0]]):
        write_safetensors(folder / names[number], shards[number], pairs, metadata)
    index = {
        "metadata": {"total_size": sum(part.nbytes for part in parts)},
        "weight_map": {name: names[number] for name, number in places.items()},
    }
    write_bytes(folder / INDEX, json.dumps(index, indent=2).encode() + b"\n")


def _header(parts: Sequence[Part], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for part in parts:
        begin, end = end, end + part.nbytes
        entries[part.name] = {
            "dtype": part.dtype,
            "shape": list(part.shape),
            "data_offsets": [begin, end],
        }
    head = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    return head + b" " * (-len(head) % _DATA_ALIGNMENT)


def _places(parts: Sequence[Part], start: int) -> dict[str, tuple[int, int]]:
    places: dict[str, tuple[int, int]] = {}
    for part in parts:
        places[part.name] = (start, part.nbytes)
        start += part.nbytes
    return places


def _write_part(
    file: BinaryIO, name: str, array: NDArray[Any], place: tuple[int, int] | None
) -> None:
    if place is None or place[1] != array.nbytes:
        expected = "nothing more" if place is None else f"{place[1]} bytes"
        raise FaultError(f"{name} brings {array.nbytes} bytes where {expected} was announced.")
    file.seek(place[0])
    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
