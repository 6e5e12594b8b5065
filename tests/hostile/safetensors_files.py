"""Safetensors files that lie, each beside a sound configuration: line 2 of the cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile import Hostile

WEIGHTS = "model.safetensors"


def safetensors(header: Any, data: bytes = b"") -> bytes:
    """Return a file; `header` is a value for JSON, or the JSON itself."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


def entry(begin: int, end: int, shape: Any = None, dtype: Any = "F32") -> dict[str, Any]:
    shape = [(end - begin) // 4] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def sound() -> bytes:
    """Return a file that must be read."""
    header = {
        "__metadata__": {"format": "pt"},
        "matrix": entry(0, 24, [2, 3]),
        "half": entry(24, 32, [4], "BF16"),
        "scalar": entry(32, 36, []),
    }
    return safetensors(header, bytes(range(36)))


def folder_with(**files: bytes) -> Callable[[Path], Path]:
    """Return a writer of a model folder; `__` in a name stands for a dot."""

    def write(folder: Path) -> Path:
        (folder / "config.json").write_bytes(b"{}")
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_bytes(content)
        return folder

    return write


def _sparse_header(claimed: int, size: int) -> Callable[[Path], Path]:
    """Return a writer of a file of `size` bytes that takes no room on disk."""

    def write(folder: Path) -> Path:
        folder_with()(folder)
        with (folder / WEIGHTS).open("wb") as file:
            file.write(claimed.to_bytes(8, "little"))
            file.truncate(size)
        return folder

    return write


def _twice(first: str, second: str) -> bytes:
    one = json.dumps(entry(0, 4))
    return f'{{"{first}":{one},"{second}":{one}}}'.encode()


_FOUR = bytes(4)
_LARGE = 1 << 62

_CONTENT: dict[str, tuple[bytes, str]] = {
    "an empty file": (b"", "is empty"),
    "seven bytes": (bytes(7), "header length at byte 0 is cut"),
    "a header longer than the file": (
        (1000).to_bytes(8, "little") + b"{}",
        "header length at byte 0 is 1000, but the file has 2",
    ),
    "a header length of 2^64 - 1": (b"\xff" * 8 + b"{}", "header length at byte 0 is 18446744"),
    "a header of no JSON": (safetensors(b"{]"), "header at byte 8 is not sound JSON"),
    "a header that is not UTF-8": (safetensors(b'{"\xff":1}'), "not sound JSON.*utf-8"),
    "a header that is a list": (safetensors([]), "holds a list"),
    "a header nested 100,000 deep": (safetensors(b"[" * 100_000), "nests too deeply"),
    "a header of a million values": (safetensors(b"[" + b"[]," * (1 << 19)), "more than 524288"),
    "a header with NaN": (safetensors(b'{"w":NaN}'), "NaN is no JSON number"),
    "a number of 5,000 digits": (safetensors(b'{"w":' + b"9" * 5000 + b"}"), "not sound JSON"),
    "a name with half a character": (
        safetensors(json.dumps({"w\ud800": entry(0, 4)}).encode(), _FOUR),
        "half of a pair",
    ),
    "one name twice": (safetensors(_twice("w", "w"), _FOUR), "'w' appears twice"),
    "overlapping ranges": (
        safetensors({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        "'b' begins at byte .* overlaps",
    ),
    "the same range twice": (safetensors(_twice("a", "b"), _FOUR), "'b' .* overlaps"),
    "a hole": (
        safetensors({"a": entry(0, 4), "b": entry(8, 12)}, bytes(12)),
        "'b' begins at byte .* leaves a hole",
    ),
    "a hole at the start": (safetensors({"a": entry(4, 8)}, bytes(8)), "'a' .* leaves a hole"),
    "a range beyond the end": (safetensors({"a": entry(0, 8)}, _FOUR), "beyond the file's"),
    "trailing bytes": (safetensors({"a": entry(0, 4)}, bytes(5)), "the data ends at byte"),
    "a shape that multiplies past 2^64": (
        safetensors({"a": entry(0, 4, [_LARGE, 4, 4])}, _FOUR),
        "'a' .* its shape asks for 29514790517935282585",
    ),
    "a shape times a width that wraps to the range": (
        safetensors({"a": entry(0, 0, [_LARGE])}),
        "'a' .* its shape asks for 18446744073709551616",
    ),
    "a shape that is not its range": (safetensors({"a": entry(0, 4, [2])}, _FOUR), "asks for 8"),
    "a negative size": (safetensors({"a": entry(0, 4, [-1])}, _FOUR), r"'a' .* shape '\[-1\]'"),
    "a size of 0": (safetensors({"a": entry(0, 0, [0])}), r"shape '\[0\]'"),
    "a size that is a float": (safetensors({"a": entry(0, 4, [1.0])}, _FOUR), r"shape '\[1.0\]'"),
    "a size that is a boolean": (safetensors({"a": entry(0, 4, [True])}, _FOUR), "shape"),
    "a shape that is a number": (safetensors({"a": entry(0, 4, 1)}, _FOUR), "shape '1'"),
    "nine dimensions": (safetensors({"a": entry(0, 4, [1] * 9)}, _FOUR), "shape"),
    "an unknown dtype": (safetensors({"a": entry(0, 4, [1], "F99")}, _FOUR), "dtype 'F99'"),
    "a dtype that is a list": (safetensors({"a": entry(0, 4, [1], ["F32"])}, _FOUR), "dtype"),
    "offsets backwards": (safetensors({"a": entry(4, 0, [1])}, _FOUR), "data_offsets 4 to 0"),
    "negative offsets": (safetensors({"a": entry(-4, 0, [1])}, _FOUR), "not two whole numbers"),
    "three offsets": (
        safetensors({"a": {**entry(0, 4), "data_offsets": [0, 4, 4]}}, _FOUR),
        "not two whole numbers",
    ),
    "an entry without a shape": (
        safetensors({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, _FOUR),
        "'a' .* exactly dtype, shape and data_offsets",
    ),
    "an entry with a field too many": (
        safetensors({"a": {**entry(0, 4), "code": "x"}}, _FOUR),
        "'a' .* exactly",
    ),
    "an entry that is a number": (safetensors({"a": 1}), "'a' .* exactly"),
    "metadata that is no text": (safetensors({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata that is a list": (safetensors({"__metadata__": []}), "__metadata__"),
    "no tensor at all": (safetensors({}), "holds no tensor"),
}

HOSTILE = (
    *(
        Hostile(name, folder_with(model__safetensors=content), says)
        for name, (content, says) in _CONTENT.items()
    ),
    Hostile(
        "a header over 100 MB", _sparse_header(100_000_001, 1 << 27), "is 100000001, more than"
    ),
)
