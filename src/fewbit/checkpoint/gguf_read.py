"""A GGUF file as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_header import parse_gguf
from fewbit.checkpoint.mapped import ClosedByWith, MappedFile
from fewbit.checkpoint.stored import StoredTensor, find_stored
from fewbit.formats.spec import QuantTensor
from fewbit.records.loading import FileStamp


class GgufCheckpoint(ClosedByWith):
    """One GGUF file as a checkpoint; opening it reads the header only.

    Raises:
        BadFileError, UnsupportedError: as `parse_gguf`.
    """

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        try:
            self._layout = parse_gguf(self._file.data, path)
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

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing is left out."""
        return ()

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as read-only views of the file; raises MissingError without one."""
        return self._stored(name).view(self._file)

    def release(self, name: str) -> None:
        """Let the system drop the tensor's pages."""
        self._file.release(*self._stored(name).place)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the tensor's bytes, hexadecimal."""
        return self._file.sha256(self._stored(name).place)

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return the file's; what describes its tensors is all that lies before them."""
        first = min((t.offset for t in self._layout.tensors.values()), default=self._file.size)
        return (self._file.stamp(first),)

    def close(self) -> None:
        """Let go of the file; views stay valid."""
        self._file.close()

    def _stored(self, name: str) -> StoredTensor:
        return find_stored(self._file, self._layout.tensors, name)
