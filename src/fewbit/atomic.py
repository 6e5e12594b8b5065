"""The old file or the whole new one: write beside the target, sync, then rename."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fewbit.errors import OutputError

_PARTIAL = ".partial"
"""How everything ends that is not whole yet: `.<name>.<8 characters>.partial`."""
_LONGEST_NAME = 190
"""Bytes of an output's name: file systems take 255, and what is made beside it adds up to 60."""
_ZEROS = 1 << 20
"""Bytes written at once where a file is given its room by writing."""
_OLD = ".old"
"""What a folder is called between leaving its place and its successor's arrival there."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that takes the place of `path` when the block ends without an error.

    Until then `path` keeps its old content; when the block raises, the new bytes are removed. Of a
    link the file behind it is replaced.

    Raises:
        OutputError: the folder does not exist or cannot be written, or the disk is full.
    """
    path = Path(os.path.realpath(path))
    try:
        descriptor, name = tempfile.mkstemp(_PARTIAL, f".{path.name}.", path.parent)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); choose another output."
        ) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _open_up(temporary, 0o666)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise OutputError(
            f"{path} was not written ({error.strerror or error}); its old content is untouched."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def is_stream(path: Path) -> bool:
    """Whether a pipe, a device or the like is there: neither a file nor a folder."""
    # Unlike Path's own, these answer for any name.
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))  # noqa: PTH110, PTH112, PTH113


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` with `content` atomically; raises as `replacing` does.

    A pipe or a device has no old content and no successor: it is written into.
    """
    if is_stream(path):
        _write_into(path, content)
        return
    with replacing(path) as file:
        file.write(content)


def _write_into(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise OutputError(f"{path} was not written ({error.strerror or error}).") from error


def reserve(path: Path, nbytes: int) -> None:
    """Make a file of zeros, in place of what was there, that has its room on the disk already.

    Whoever writes into a hole of a mapped file when the disk is full is ended by a signal.

    Raises:
        OutputError: there is no room, or the folder cannot be written; nothing is left.
    """
    try:
        with path.open("wb") as file:
            _allocate(file, nbytes)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OutputError(
            f"{path} was not written ({error.strerror}); make room, or choose another output."
        ) from error


def _allocate(file: BinaryIO, nbytes: int) -> None:
    if hasattr(os, "posix_fallocate") and nbytes:  # macOS has none, and it refuses 0 bytes
        os.posix_fallocate(file.fileno(), 0, nbytes)
        return
    for start in range(0, nbytes, _ZEROS):
        file.write(bytes(min(_ZEROS, nbytes - start)))


@contextlib.contextmanager
def creating_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `path` when the block ends without an error.

    Raises:
        OutputError: `path` exists and is not an empty folder, or cannot be written.
    """
    if not is_free(path):
        raise OutputError(f"{path} exists already; remove it or choose another output.")
    with _partial_folder(path) as partial:
        yield partial
        _complete(partial)
        partial.replace(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `path` when the block ends without an error.

    Whatever `path` held is removed then, and untouched otherwise; the caller has made sure that it
    may go.

    Raises:
        OutputError: `path` cannot be written.
    """
    with _partial_folder(path) as partial:
        yield partial
        _complete(partial)
        old = partial.with_name(partial.name + _OLD)
        try:
            if path.exists():
                path.rename(old)
            partial.rename(path)
            sync_folder(path.parent)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def arriving_together(*paths: Path, out: Path | None = None) -> Iterator[Path]:
    """Yield a folder for files that take the places of `paths`, by name, when the block ends.

    They do so in this order, each at once; so the last is there only where all others are. All
    `paths` lie in one folder.

    Args:
        paths: the files.
        out: the output that they are parts of, whose claim removes the folder after a kill; the
            last file by itself.

    Raises:
        OutputError: they cannot be written.
    """
    with _partial_folder(out or paths[-1]) as partial:
        yield partial
        for path in paths:
            (partial / path.name).replace(path)
        sync_folder(paths[-1].parent)


@contextlib.contextmanager
def _partial_folder(path: Path) -> Iterator[Path]:
    """Yield a folder beside `path` that is removed if it is still there afterwards."""
    try:
        partial = Path(tempfile.mkdtemp(_PARTIAL, f".{path.name}.", path.parent))
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); choose another output."
        ) from error
    try:
        yield partial
    except OSError as error:
        raise _not_written(path, error) from error
    except OutputError as error:
        if isinstance(error.__cause__, OSError) and str(partial) in str(error):
            raise _not_written(path, error.__cause__) from error  # its file is nobody's concern
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _not_written(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"{path} was not written ({error.strerror or error}); what was there is untouched."
    )


def _complete(folder: Path) -> None:
    _open_up(folder, 0o777)
    sync_folder(folder)


def _open_up(path: Path, mode: int) -> None:
    """Let others at what was made for us alone, as far as the user wants and the system can.

    File systems without modes (FAT, exFAT) refuse some; what they give instead will do.
    """
    with contextlib.suppress(OSError):
        path.chmod(mode & ~_umask())


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold an output for one writer at a time, by a locked file `.<name>.lock` next to it.

    What a killed writer left half-written beside it is removed first. The system lets go of the
    lock when its holder ends in whatever way.

    Raises:
        OutputError: another process writes the output, or its folder cannot be written.
    """
    if path.name in ("", ".."):
        raise OutputError(f"{path} has no name of its own; choose another output.")
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = _locked(lock)
    except BlockingIOError as error:
        raise OutputError(
            f"Another run is writing {path}; wait for it, or choose another output."
        ) from error
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); choose another output."
        ) from error
    try:
        _cleared(path)
        yield
    finally:
        lock.unlink(missing_ok=True)  # before it is let go, so that nobody waits for a dead file
        os.close(descriptor)


def _locked(lock: Path) -> int:
    """Return a descriptor that holds the lock of the file that is there now."""
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(lock) and os.path.samestat(os.fstat(descriptor), lock.stat()):  # noqa: PTH110
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _cleared(path: Path) -> None:
    try:
        _clear(path)
    except OSError as error:
        raise OutputError(
            f"What an earlier run left beside {path} cannot be removed ({error.strerror}); remove "
            "it, or choose another output."
        ) from error


def _clear(path: Path) -> None:
    """Remove what was not whole when its writer was killed; put back what it had moved away."""
    ours = re.compile(
        rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(_PARTIAL)}({re.escape(_OLD)})?"
    )
    for left in path.parent.iterdir():
        if not ours.fullmatch(left.name):
            continue
        if left.name.endswith(_OLD) and not path.exists():
            left.rename(path)
        elif left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def is_free(path: Path) -> bool:
    """Whether nothing or an empty folder is there.

    Raises:
        OutputError: that cannot be seen, or there is a folder whose place no other can take.
    """
    try:
        if not path.is_dir():
            return not path.exists()
        _require_movable(path)
        return next(path.iterdir(), None) is None
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror}); choose another output."
        ) from error


def _require_movable(folder: Path) -> None:
    if folder.is_symlink():
        raise OutputError(
            f"{folder} is a link to a folder, and the output would take the link's place; choose "
            "the folder behind it."
        )
    if folder.is_mount():
        raise OutputError(
            f"{folder} is where a file system is mounted, and no folder can take its place; choose "
            "a folder inside it."
        )


def free_bytes(out: Path) -> int | None:
    """Return the bytes left where an output goes; None where that cannot be told."""
    try:
        return shutil.disk_usage(out.absolute().parent).free
    except OSError:
        return None


def require_short(out: Path) -> None:
    """Check that what stands beside an output, and in it, can be named after it.

    Raises:
        OutputError: its name is too long for that.
    """
    length = len(os.fsencode(out.name))
    if length > _LONGEST_NAME:
        raise OutputError(
            f"{out} cannot be written (File name too long): files beside it add to its name of "
            f"{length} bytes; choose one of at most {_LONGEST_NAME}."
        )


def require_apart(out: Path, source: Path) -> None:
    """Check that writing `out` leaves everything of `source` as it is.

    Raises:
        OutputError: `out` is the source, lies in its folder, or is a folder around it.
    """
    # Unlike Path.resolve, realpath also answers for a loop of links, which the writer then names.
    written, read = Path(os.path.realpath(out)), Path(os.path.realpath(source))
    inside = written.is_relative_to(read) or read.is_relative_to(written)
    if inside:
        raise OutputError(
            f"{out} and the source {source} lie one in the other, and the source is only read; "
            "choose another output."
        )


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` durable, where the file system allows it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
