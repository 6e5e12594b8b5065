"""A place in a GGUF header that moves only over bytes that exist."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from fewbit.errors import BadFileError

MAX_HEADER = 1 << 26
"""Bytes before the data. A vocabulary of 262,144 with its merges takes about 15 MB."""

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class Cursor:
    """Takes numbers and strings from the start of a file on.

    `elements` counts those of all arrays so far; `keys` maps each metadata key to its value's byte.
    """

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
        length = self.number(U64, field)
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
        count: int = self.number(U64, field)
        if count > largest:
            raise self.bad(field, f"is {count}, more than the {largest} allowed", start)
        if count * width > self.limit - self.at:
            raise self.bad(
                field, f"is {count}, but only {self.limit - self.at} bytes follow", start
            )
        return count
