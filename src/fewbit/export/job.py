"""One export at work: tensors given to the writer one by one, and the record of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from fewbit.atomic import claimed, free_bytes, is_free, require_apart, require_short
from fewbit.checkpoint.own_manifest import require_unaltered
from fewbit.errors import BadFileError, NumericalError, OutputError
from fewbit.export.conversion import convert
from fewbit.export.manifest import Written, manifest_of
from fewbit.export.plan import PlannedExport
from fewbit.export.target import ExportSettings
from fewbit.formats.spec import QuantTensor, digest
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.progress import Progress, unwatched
from fewbit.records.base import from_json, to_json
from fewbit.records.figures import size
from fewbit.records.manifest import Card, Manifest, manifest_path

_GGUF = ".gguf"


class Job:
    """A plan being carried out.

    A writer reads every slot once, in an order of its own, and asks for the manifest after the
    last.
    """

    def __init__(
        self,
        planned: PlannedExport,
        out: Path,
        settings: ExportSettings,
        progress: Progress = unwatched,
        card: Card | None = None,
    ) -> None:
        self.planned = planned
        self.out = out
        self.settings = settings
        self.card = card
        self._progress = progress
        self._written: dict[Slot, Written] = {}
        self._mapped: Slot | None = None
        """The slot that was read last: the writer may still look at its pages."""

    @property
    def source(self) -> ModelSource:
        """What is exported."""
        return self.planned.source

    def read(
        self, slot: Slot, arrange: Callable[[QuantTensor], QuantTensor] = lambda tensor: tensor
    ) -> QuantTensor:
        """Return a slot's tensor in the format of its holding.

        Its conversion is recorded. The source's pages are let go at the next call, after the
        tensor, which may be a view of them, was written.

        Args:
            slot: whose tensor.
            arrange: brings it from the Program's order of rows and values into the export's.

        Raises:
            NumericalError: a value is beyond the format's range; the message names the tensor.
        """
        self._let_go()
        self._mapped = slot
        holding = self.planned.holdings[slot]
        try:
            converted = convert(self.source.read(slot), holding.format)
        except NumericalError as error:
            raise NumericalError(f"{self.source.info(slot).name}: {error}") from error
        tensor = arrange(converted.tensor)
        self._written[slot] = Written(holding.bytes, digest(tensor), converted.relative_error)
        self._progress("exporting", len(self._written), len(self.planned.holdings))
        return tensor

    def _let_go(self) -> None:
        if self._mapped is not None:
            self.source.release(self._mapped)
            self._mapped = None

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest of the export; every slot has been read.

        Of a source that has none every tensor is hashed, once.
        """
        self._let_go()
        return manifest_of(self.planned, self._written)

    def manifest_json(self) -> bytes:
        """Return the manifest as the file's content."""
        return to_json(self.manifest)


def export(
    planned: PlannedExport,
    out: Path,
    settings: ExportSettings,
    progress: Progress = unwatched,
    card: Card | None = None,
) -> Manifest:
    """Carry a plan out, and return the manifest that was written with it.

    The source is only read; the export appears as a whole or not at all.

    Args:
        planned: the plan.
        out: a new folder, or a new file.
        settings: what the user chose.
        progress: told of each tensor.
        card: makes the model card of a folder; None for none.

    Raises:
        BadFileError: the source is not what its manifest has the hashes of.
        NumericalError: a value is beyond its format's range; says where.
        OutputError: `out` exists, lies in the source, is being written by another run, or cannot
            be written, or the disk has no room for its tensors.
        UnsupportedError: as the target's writer says.
    """
    with claimed(out):
        require_free(planned, out)
        _require_room(planned, out)
        _require_unaltered(planned, progress)
        job = Job(planned, out, settings, progress, card)
        planned.target.write(job)
        return job.manifest


def require_free(planned: PlannedExport, out: Path) -> None:
    """Check that an export may be written.

    Raises:
        OutputError: `out` or its manifest exists already, lies in the source, or has a name that
            is too long, or none of a file or of a folder.
    """
    require_short(out)
    require_apart(out, planned.source.path)
    _require_named(planned, out)
    if planned.target.container == "file":
        require_absent(planned, [out])
    elif not is_free(out):
        raise _taken(out)


def _require_named(planned: PlannedExport, out: Path) -> None:
    """Refuse a name that says another kind, since names tell where a manifest lies."""
    container = planned.target.container
    if (container == "file") != (out.suffix.lower() == _GGUF):
        raise OutputError(
            f"{out} is to be a {container}, and the names of files, and of files alone, end in "
            f"{_GGUF}; choose another name."
        )


def _require_room(planned: PlannedExport, out: Path) -> None:
    """Refuse to begin what the disk has no room for; raises OutputError."""
    free, needed = free_bytes(out), planned.record.bytes
    if free is not None and free < needed:
        raise OutputError(
            f"{out} needs {size(needed)} for its tensors, and the disk has {size(free)} left; make "
            "room or choose another output."
        )


def _require_unaltered(planned: PlannedExport, progress: Progress) -> None:
    """Refuse to continue a manifest that has the hashes of other bytes; raises BadFileError."""
    if planned.before is None:
        return

    def each(hashed: Callable[[str], list[str]], names: Iterable[str]) -> Iterator[list[str]]:
        listed = list(names)
        for number, name in enumerate(listed, 1):
            yield hashed(name)
            progress("checking", number, len(listed))

    require_unaltered(planned.source.checkpoint, planned.before, each)


def require_absent(planned: PlannedExport, paths: Sequence[Path]) -> None:
    """Check that neither the files of an export nor its manifest are there.

    A writer that was killed while they took their places leaves its manifest, and perhaps files,
    but never the first of them; the same export takes their places.

    Raises:
        OutputError: one is there, or that cannot be seen.
    """
    manifest = manifest_path(paths[0])
    if not _is_there(paths[0]) and _came_alone(planned, manifest):
        return
    for path in (*paths, manifest):
        if _is_there(path):
            raise _taken(path)


def _is_there(path: Path) -> bool:
    return not is_free(path) or path.is_dir()


def _came_alone(planned: PlannedExport, manifest: Path) -> bool:
    """Whether a manifest is of this very plan."""
    try:
        found = from_json(Manifest, manifest.read_bytes(), name=str(manifest))
    except (OSError, BadFileError):
        return False
    return found.export is not None and found.export.plan == planned.record


def _taken(path: Path) -> OutputError:
    return OutputError(f"{path} exists already; remove it or choose another output.")
