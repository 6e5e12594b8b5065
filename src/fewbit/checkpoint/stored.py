"""A tensor's place in a mapped file, for the formats that keep its bytes in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.mapped import MappedFile
from fewbit.checkpoint.missing import missing_tensor
from fewbit.formats.spec import QuantTensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's description and where its bytes begin in the file."""

    info: TensorInfo
    offset: int

    @property
    def place(self) -> tuple[int, int]:
        """Offset and length of its bytes."""
        return self.offset, self.info.nbytes

    def view(self, file: MappedFile) -> QuantTensor:
        """Return the tensor as a read-only view of the file."""
        rows, columns = self.info.matrix_shape
        codes = file.array(*self.place).reshape(rows, -1)
        return QuantTensor(self.info.format, (rows, columns), codes)


def find_stored(file: MappedFile, tensors: Mapping[str, StoredTensor], name: str) -> StoredTensor:
    """Return a file's tensor by its name; raises MissingError, with near names, without one."""
    try:
        return tensors[name]
    except KeyError:
        raise missing_tensor(file.path, name, tensors) from None
