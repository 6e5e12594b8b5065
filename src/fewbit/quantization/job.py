"""A quantization as a job: one at a time on an output, stopped at good places, taken up again.

Beside an output `out` a job has `.out.lock` while it runs and, where work is kept, `.out.work`:
`asked.key` says what was asked for, and what is done lies in files that appear as a whole.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TypeVar

import numpy as np

from fewbit.atomic import claimed, write_bytes
from fewbit.checkpoint.checkpoint import content_digest
from fewbit.errors import BadFileError, OutputError, StoppedError, UsageError
from fewbit.model.weights import ModelSource
from fewbit.quantization.planned import Container
from fewbit.records.base import Record, from_json, to_json
from fewbit.records.kept import program_digest
from fewbit.records.recipe import Recipe
from fewbit.runtime.chooser import choose_isa

ASKED = "asked.key"
"""The file that says what work was asked for."""

RecordT = TypeVar("RecordT", bound=Record)


class Resume(Enum):
    """What becomes of the work that an earlier run left."""

    AUTO = "auto"
    """It is gone on with; where there is none, the job begins."""
    REQUIRED = "required"
    """It is gone on with, and it must be there."""
    NEVER = "never"
    """It is deleted, and the job begins anew."""


class Asked(Record, frozen=True, kw_only=True):
    """What a job was asked for: a later run goes on only where all of it is the same."""

    build: str
    """Hash of fewbit's own files: another build may solve to other bits."""
    numpy: str
    """Of NumPy, whose factorizations round as its BLAS does."""
    kernels: str
    """The instruction set, since kernels of another may round sums otherwise."""
    source: str
    """Hash of the source's tensors."""
    recipe: Recipe
    container: str
    options: str = ""
    """Whatever else decides the bits, such as a target size."""


class Stop:
    """A wish to stop, from a signal's handler to the loop that honours it at its next good place.

    Mutable on purpose: it is the one thing that a handler can reach.
    """

    def __init__(self) -> None:
        self.times = 0
        """How often it was asked for."""
        self._waits = False

    def ask(self) -> bool:
        """Note the wish; return whether the job ends by itself soon, at a place to go on from."""
        self.times += 1
        return self._waits and self.times == 1

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """Say that inside the block `check` is called wherever something was just kept."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def check(self) -> None:
        """End the job here if that was asked for; raises StoppedError."""
        if self.times:
            raise StoppedError("stopped at a good place")


class Job:
    """A claim on an output, and where what is done on the way to it is kept."""

    def __init__(self, out: Path, stop: Stop) -> None:
        self.out = out
        self.folder = work_folder(out)
        """Where work lies; absent until `begin`."""
        self.stop = stop
        self.begun = False

    def begin(self, what: Asked) -> None:
        """Make the folder for work, or go on with the one that an earlier run left.

        Raises:
            UsageError: that one was asked for something else.
            OutputError: the folder cannot be written.
        """
        self.require_same(ASKED, what)
        self.begun = True

    def require_same(self, name: str, wanted: Record) -> None:
        """Keep a record of what work was made from, or compare it with the one that was kept.

        Raises:
            UsageError: they differ, or the kept one cannot be read; what is there stays.
            OutputError: the folder cannot be written.
        """
        path = self.folder / name
        if path.exists():
            _compare(self.folder, path, wanted)
            return
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{self.folder} cannot be written ({error.strerror}); choose another output."
            ) from error
        write_bytes(path, to_json(wanted))

    def kept(self, name: str, kind: type[RecordT], make: Callable[[], RecordT]) -> RecordT:
        """Return a record that an earlier run kept under this name, or make it and keep it.

        One that cannot be read is made anew.
        """
        path = self.folder / name
        with contextlib.suppress(OSError, BadFileError):
            return from_json(kind, path.read_bytes(), name=str(path))
        made = make()
        write_bytes(path, to_json(made))
        return made

    def has_work(self) -> bool:
        """Whether something is kept that a later run would have to do again."""
        try:
            return any(path.suffix != ".key" for path in self.folder.iterdir())
        except OSError:
            return False

    def forget(self) -> None:
        """Delete what is kept."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def claimed_job(out: Path, resume: Resume = Resume.AUTO, stop: Stop | None = None) -> Iterator[Job]:
    """Claim an output for one job; its work goes when the block ends, and stays when it is stopped.

    Raises:
        OutputError: another job has the output, or it cannot be written.
        UsageError: earlier work is required, and there is none.
        StoppedError: an interrupt or a signal came, and there is something to go on from.
    """
    job = Job(out, stop or Stop())
    with claimed(out):
        if resume is Resume.NEVER:
            job.forget()
        if resume is Resume.REQUIRED and not (job.folder / ASKED).exists():
            raise UsageError(
                f"There is no work on {out} to go on with ({job.folder} is not there); leave "
                "--resume required out to begin."
            )
        try:
            yield job
        except BaseException as error:
            if not job.has_work():
                job.forget()
            elif _is_stop(error) and job.stop.times < 2:
                raise StoppedError(
                    f"Stopped; what is done lies in {job.folder}, and the same job goes on there."
                ) from error
            raise
        job.forget()


def asked(source: ModelSource, recipe: Recipe, container: Container, options: str = "") -> Asked:
    """Return what is asked for, with the hash of the source, which reads all of it."""
    return Asked(
        build=program_digest(),
        numpy=np.__version__,
        kernels=choose_isa(),
        source=content_digest(source.checkpoint),
        recipe=recipe,
        container=container.value,
        options=options,
    )


def work_folder(out: Path) -> Path:
    """Return where the work on an output lies: beside it."""
    return out.with_name(f".{out.name}.work")


def kept_bytes(out: Path) -> int:
    """Return the bytes that the work on an output takes, as far as they can be counted."""
    total = 0
    with contextlib.suppress(OSError):
        for path in work_folder(out).rglob("*"):
            total += path.stat().st_size
    return total


def _is_stop(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt | SystemExit | StoppedError)


def _compare(folder: Path, path: Path, wanted: RecordT) -> None:
    advice = "give the command that it was begun with, or begin anew with --resume never"
    try:
        earlier = from_json(type(wanted), path.read_bytes(), name=str(path))
    except (OSError, BadFileError) as error:
        raise UsageError(f"The work in {folder} cannot be read ({error}); {advice}.") from error
    names = type(wanted).__struct_fields__
    other = [n for n in names if getattr(earlier, n) != getattr(wanted, n)]
    if other:
        raise UsageError(
            f"The work in {folder} was done with another {' and '.join(other)}; {advice}."
        )
