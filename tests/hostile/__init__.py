"""Files from strangers: each is made here, and each must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hostile:
    """A file or folder that must be refused.

    `write` makes it inside a folder and returns the path to open; `says` is what the refusal must
    contain (a regular expression): the field, the byte where there is one, the cause.
    """

    name: str
    write: Callable[[Path], Path]
    says: str


def file_of(name: str, content: bytes) -> Callable[[Path], Path]:
    """Return a writer of one file."""

    def write(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return write
