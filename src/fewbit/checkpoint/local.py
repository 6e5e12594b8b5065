"""Models that are here already: no network, and none of what a network needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fewbit.checkpoint.catalogue import CATALOGUE, PackagedModel


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of everything fetched.

    FEWBIT_CACHE where it is set, else `fewbit` in XDG_CACHE_HOME or ~/.cache.
    """
    chosen = environment.get("FEWBIT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    shared = environment.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "fewbit"


def local_path(model: str, cache: Path) -> Path | None:
    """Return the path of a model that is here, or None where it would have to be fetched.

    A name of the catalogue comes before a path of that name.
    """
    if model in CATALOGUE:
        target = packaged_path(CATALOGUE[model], packaged_folder(model, cache))
        return target if is_whole(target, CATALOGUE[model]) else None
    path = Path(os.path.expanduser(model))  # noqa: PTH111 - Path's own raises for unknown users
    return path if model and _may_exist(path) else None


def packaged_folder(model: str, cache: Path) -> Path:
    """Return the folder in the cache of a model of the catalogue."""
    return cache / "models" / model


def packaged_path(model: PackagedModel, folder: Path) -> Path:
    """Return where a model of the catalogue lies in its folder."""
    return folder / model.member.rpartition("/")[2]


def is_whole(target: Path, model: PackagedModel) -> bool:
    """Whether the model is there with all of its bytes."""
    # The hash was checked before the file got its name; the size tells a file cut since then.
    return target.is_file() and target.stat().st_size == model.file_bytes


def _may_exist(path: Path) -> bool:
    """Whether something is there, or could be where the system does not let us look."""
    try:
        return path.exists()
    except OSError:
        return True
