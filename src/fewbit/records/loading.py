"""How a model came into memory: from kept packed weights or by packing, and what it takes."""

from __future__ import annotations

from fewbit.records.base import Record
from fewbit.records.figures import size


class FileStamp(Record, frozen=True, kw_only=True):
    """What tells a file of a checkpoint from another without reading its tensors."""

    name: str
    size: int
    mtime_ns: int
    """When it was last written, in nanoseconds since 1970."""
    header_sha256: str
    """Of the bytes that describe its tensors; of the whole file where it has none."""


class PackedPlace(Record, frozen=True, kw_only=True):
    """A packed matrix in a file of them."""

    slot: str
    source: str
    """The stored format, by the native packer's name."""
    bits: int
    group: int
    asymmetric: bool
    rows: int
    columns: int
    offset: int
    """Bytes from the file's start; a multiple of 64."""
    size: int


class PackedPlan(Record, frozen=True, kw_only=True):
    """Everything that decides the bytes of a file of packed weights, checksums apart."""

    layout: int
    """The version of the layout inside a matrix."""
    fewbit: str
    """The version of fewbit, which decides how a slot follows from the files."""
    files: tuple[FileStamp, ...]
    places: tuple[PackedPlace, ...]


class PackedHeader(Record, frozen=True, kw_only=True):
    """The description at the start of a file of packed weights."""

    plan: PackedPlan
    checksums: tuple[str, ...]
    """Of each place's bytes, 16 hexadecimal digits."""


class MemoryPlan(Record, frozen=True, kw_only=True):
    """The bytes that a model needs, counted before any of it is loaded."""

    weights: int
    """Packed matrices, and vectors in float32."""
    store: int
    """Keys and values when every page is in use; reserved, and taken page by page."""
    workspace: int
    """What a step's rows take, at most; logits that are asked for come on top."""
    states: int = 0
    """Of a head, the target's hidden states that may wait to be read."""
    available: int | None
    """What the system had left; None where it does not say."""
    limit: str
    """What set `available`, in words."""

    @property
    def needed(self) -> int:
        """All of it."""
        return self.weights + self.store + self.workspace + self.states

    @property
    def yet_to_take(self) -> int:
        """What of it still counts as free when the model was loaded: it is taken as it is used."""
        return self.store + self.workspace

    @property
    def described(self) -> str:
        """The same in words."""
        parts = {
            "weights": self.weights,
            "keys and values": self.store,
            "workspace": self.workspace,
            "states of its target": self.states,
        }
        listed = ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)
        return f"{size(self.needed)} of memory ({listed})"


class LoadRecord(Record, frozen=True, kw_only=True):
    """How a model was made ready to run."""

    memory: MemoryPlan
    packed: str = ""
    """The file of packed weights that was used; empty where the weights were packed."""
    kept: str = ""
    """The file of packed weights that was written."""
    notes: tuple[str, ...] = ()
    """Sentences: why a file of packed weights was not used or not written."""
    seconds: float
    """From the opened model to the one ready to run."""
