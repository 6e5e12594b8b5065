"""What an export goes to: which formats a target holds, and how it writes them.

A target never decides silently. For each slot its `Layout` names the format that the tensor gets
there (`Holding`); where that does not hold the source's values, it says why, and the command asks
the user before anything is written. What the plan found out and the writer needs is in the layout
too: a target itself holds nothing of a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from fewbit.errors import UnsupportedError, UsageError
from fewbit.export.cost import expected_error
from fewbit.formats.recode import holds
from fewbit.formats.registry import BF16, encoded_bytes
from fewbit.formats.spec import NumberFormat
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.records.export import AbsentTensor, UnusedTensor

if TYPE_CHECKING:
    from fewbit.export.job import Job
    from fewbit.model.gguf_tokenizer import TokenizerMetadata


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """What a user may choose; a target refuses what it does not know (`refuse_settings`)."""

    dtype: NumberFormat = BF16
    """What integers become where the target has floats only."""
    split_bytes: int | None = None
    """Bytes of tensors in one part of a GGUF file, at most; None for one file."""
    shard_bytes: int | None = None
    """Bytes of tensors in one of a folder's files of weights, at most; None for 5 GB."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """In which format a target holds one slot's tensor."""

    stored: str
    """Its name in the export."""
    format: NumberFormat
    """What `Job.read` gives the writer, in the convention of Hugging Face."""
    bytes: int
    reason: str = ""
    """Why the source's format is not held; empty where every value stays in a format like it."""
    expected_error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a target holds a model, from headers and the tokenizer alone."""

    holdings: Mapping[Slot, Holding]
    """Of every slot, in the Program's order."""
    notes: tuple[str, ...] = ()
    """What the export says otherwise than the source."""
    tokens: TokenizerMetadata | None = None
    """The tokenizer as the export's metadata has it, where the target makes it: a large vocabulary
    takes seconds, and the writer takes it from here."""
    unused: tuple[UnusedTensor, ...] = ()
    """The source's tensors that the export has without a slot."""
    beside: int = 0
    """Bytes of the export's own tensors that are no slot's, such as scales of keys and values."""

    @property
    def formats(self) -> dict[Slot, NumberFormat]:
        """The format of every slot in the export."""
        return {slot: holding.format for slot, holding in self.holdings.items()}

    @property
    def bytes(self) -> int:
        """Those of all tensors of the export."""
        slots = sum(holding.bytes for holding in self.holdings.values())
        return slots + self.beside + sum(tensor.bytes for tensor in self.unused)


class Target(Protocol):
    """A format of others. Frozen, and cheap to make: what it writes with is imported by `write`."""

    @property
    def name(self) -> str:
        """As `--to` names it."""
        ...

    @property
    def container(self) -> Literal["file", "folder"]:
        """What is written: one file (or numbered parts of one), or a folder."""
        ...

    def layout(self, source: ModelSource) -> Layout:
        """Decide what becomes of every slot.

        Raises:
            UnsupportedError: the target has no place for a tensor, or for the configuration.
        """
        ...

    def absent(self, source: ModelSource) -> tuple[AbsentTensor, ...]:
        """Return the tensors of the source that the export will not have, with the reason."""
        ...

    def refusals(
        self, source: ModelSource, formats: Mapping[Slot, NumberFormat]
    ) -> tuple[str, ...]:
        """Return, as sentences, what runtimes of this target would refuse to load or to run."""
        ...

    def write(self, job: Job) -> None:
        """Write the export with its sidecars and its manifest, whole or not at all.

        Reads each slot once by `job.read` and keeps one tensor in memory at a time.
        """
        ...


def held(
    source: ModelSource, slot: Slot, stored: str, candidates: Sequence[NumberFormat]
) -> Holding:
    """Return how a target with these formats holds a slot's tensor.

    The first candidate that holds the source's format takes it, value for value; where none does,
    the one of least expected error, the first of equals.

    Args:
        source: the model.
        slot: one of its slots.
        stored: its name in the export.
        candidates: the target's formats for this tensor, the preferred ones first. Those that do
            not divide its columns are passed over.

    Raises:
        UnsupportedError: no candidate divides the tensor's columns.
    """
    info = source.info(slot)
    shape = info.matrix_shape
    fitting = [form for form in candidates if divides(form, shape)]
    if not fitting:
        names = ", ".join(form.name for form in candidates)
        raise UnsupportedError(
            f"{info.name} has {shape[1]} columns, which none of {names} divides; export to a "
            "target with floats, gguf or hf for example."
        )
    for form in fitting:
        if holds(form, info.format, shape[1]):
            return Holding(stored=stored, format=form, bytes=encoded_bytes(form, shape))
    costs = {form: expected_error(info.format, form, shape[1]) for form in fitting}
    best = min(fitting, key=costs.__getitem__)
    return Holding(
        stored=stored,
        format=best,
        bytes=encoded_bytes(best, shape),
        reason=f"{info.format.name} is not held",
        expected_error=costs[best],
    )


def dtype_of(settings: ExportSettings) -> NumberFormat:
    """Return the one setting that folders have.

    Raises:
        UsageError: another is set.
    """
    if settings.split_bytes is not None:
        raise UsageError("--split-size is for --to gguf; give --shard-size for a folder.")
    return settings.dtype


def divides(form: NumberFormat, shape: tuple[int, int]) -> bool:
    """Return whether a format's groups or blocks divide the columns of a matrix."""
    try:
        encoded_bytes(form, shape)
    except UsageError:
        return False
    return True
