"""Tensors dealt out to files of a largest size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from fewbit.errors import UsageError

MAX_FILES = 4096


class Sized(Protocol):
    """What is stored somewhere."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes there."""
        ...


SizedT = TypeVar("SizedT", bound=Sized)


def parted(items: Sequence[SizedT], largest: int, option: str) -> list[list[SizedT]]:
    """Return consecutive items in parts of at most so many bytes, none of them empty.

    Args:
        items: in the order of the files; one that is larger by itself is a part.
        largest: bytes of a part, at most.
        option: what set the size, for the error.

    Raises:
        UsageError: that makes more than 4,096 parts.
    """
    parts: list[list[SizedT]] = [[]]
    size = 0
    for item in items:
        if parts[-1] and size + item.nbytes > largest:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += item.nbytes
    if len(parts) > MAX_FILES:
        raise UsageError(
            f"Parts of {largest:,} bytes would be {len(parts)}, more than the {MAX_FILES} allowed; "
            f"give a larger {option}."
        )
    return parts
