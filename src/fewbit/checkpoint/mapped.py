"""A file mapped into memory for reading, and how to speak of one that is not sound."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import BadFileError, UsageError
from fewbit.records.loading import FileStamp

_HASH_STEP = 1 << 24


class ClosedByWith(ABC):
    """What closes itself at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class MappedFile(ClosedByWith):
    """Read-only bytes of a file; nothing is loaded until it is looked at.

    Raises:
        BadFileError: the file is empty, or the system cannot read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                self.size, self.mtime_ns = found.st_size, found.st_mtime_ns
                if self.size == 0:
                    raise BadFileError(f"{path} is empty; download it again.")
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise unreadable(path, error) from error

    @property
    def data(self) -> mmap.mmap:
        """The bytes.

        Raises:
            UsageError: the file was closed.
        """
        if self._map is None:
            raise UsageError(f"{self.path} was closed; open the checkpoint again to read it.")
        return self._map

    def array(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return a read-only view, uint8 [nbytes]; the caller has checked the range.

        Raises:
            BadFileError: the file has another size than when it was opened. To look at what was cut
                off would end the process.
        """
        assert 0 <= offset <= offset + nbytes <= self.size
        if self.data.size() != self.size:
            raise BadFileError(
                f"{self.path} has {self.data.size()} bytes, and had {self.size} when it was "
                "opened: something writes to it; get it again, then begin anew."
            )
        if nbytes == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.data, np.uint8, nbytes, offset)

    def release(self, offset: int, nbytes: int) -> None:
        """Let the system drop the whole pages inside a range; they come back when looked at."""
        page = mmap.PAGESIZE
        first = -(-offset // page) * page
        length = (offset + nbytes) // page * page - first
        if length > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED, first, length)

    def sha256(self, *ranges: tuple[int, int]) -> str:
        """Return the SHA-256 of (offset, nbytes) ranges in turn, without keeping their pages."""
        digest = hashlib.sha256()
        for offset, nbytes in ranges:
            for start in range(offset, offset + nbytes, _HASH_STEP):
                length = min(_HASH_STEP, offset + nbytes - start)
                digest.update(self.array(start, length).data)
                self.release(start, length)
        return digest.hexdigest()

    def stamp(self, described: int) -> FileStamp:
        """Return what tells this file from others; its first `described` bytes describe tensors."""
        return FileStamp(
            name=self.path.name,
            size=self.size,
            mtime_ns=self.mtime_ns,
            header_sha256=hashlib.sha256(self.array(0, described).data).hexdigest(),
        )

    def close(self) -> None:
        """Let go of the file; while views of it are alive, the last one of them does."""
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None


def unreadable(path: Path, error: OSError) -> BadFileError:
    """Return the error for a file or folder that the system does not let us read."""
    return BadFileError(
        f"{path} cannot be read ({error.strerror or error}); check its permissions and the disk."
    )


def quoted(name: str) -> str:
    """Return a name from a file fit for a message: quoted, escaped where not ASCII, shortened."""
    return ascii(name if len(name) <= 64 else name[:61] + "...")
