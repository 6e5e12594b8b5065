"""Repositories of the Hugging Face hub: safetensors with their JSON files, or one GGUF file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fewbit.atomic import write_bytes
from fewbit.checkpoint.detect import CONFIG, PICKLES, pickle_refused
from fewbit.checkpoint.gguf_split import parts_of
from fewbit.checkpoint.huggingface import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from fewbit.errors import DownloadError, FewbitError, MissingError, UsageError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

DATA_FILES = (CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, INDEX)
"""What is fetched beside the weights; no code, no pickles."""

_WEIGHTS = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors")
"""Where a repository has such files, others are the same weights once more, or an adapter's."""

_DONE = ".complete"


def pull_repository(model: str, folder: Path, require_room: Callable[[Path, int], None]) -> Path:
    """Return the folder of `org/name`, or the file of `org/name/file.gguf`, fetched if absent.

    A repository once fetched is used as it is, without asking the hub again. A fetch that was cut
    goes on where it stopped.

    Raises:
        DownloadError: the hub cannot be reached, has no such repository or asks for a licence.
        UsageError: the repository has several GGUF files.
        UnsupportedError: it has its weights as pickles only.
        MissingError: it has no weights.
    """
    repository, wanted = "/".join(model.split("/")[:2]), model.split("/")[2:]
    marker = folder / ("-".join([_DONE, *wanted]))
    if marker.is_file():
        return folder / marker.read_text()
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415  (a third of a second to import)

        result = _fetch(HfApi(), repository, wanted, folder, require_room)
    except FewbitError:
        raise
    except Exception as error:  # the HTTP client's classes differ between releases of the hub's
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DownloadError(
            f"{model} could not be fetched from the Hugging Face hub ({reason}); check the name, "
            "the network and, for a gated model, your token."
        ) from error
    write_bytes(marker, result.encode())
    return folder / result


def choose_files(sizes: Mapping[str, int], repository: str, wanted: list[str]) -> list[str]:
    """Return which files of a repository to fetch.

    Args:
        sizes: bytes by name of every file of the repository.
        repository: its name, for errors.
        wanted: the one GGUF file asked for, or nothing; of a split one any part stands for all.

    Raises:
        MissingError, UnsupportedError, UsageError: as `pull_repository`.
    """
    ggufs = sorted(name for name in sizes if name.endswith(".gguf"))
    models = list(dict.fromkeys(tuple(parts_of(name, ggufs)) for name in ggufs))
    if wanted:
        if wanted[0] not in ggufs:
            there = ", ".join(ggufs) or "no GGUF file"
            raise MissingError(f"{repository} has no file {wanted[0]}; it has {there}.")
        return list(next(parts for parts in models if wanted[0] in parts))
    tensors = sorted(name for name in sizes if name.endswith(".safetensors") and "/" not in name)
    weights = [name for name in tensors if _WEIGHTS.fullmatch(name)] or tensors
    if weights:
        return weights + [name for name in DATA_FILES if name in sizes]
    if len(models) == 1:
        return list(models[0])
    if models:
        raise UsageError(
            f"{repository} has {len(models)} GGUF files; ask for one, such as "
            f"{repository}/{models[0][0]}."
        )
    pickles = sorted(name for name in sizes if name.endswith(PICKLES))
    if pickles:
        raise pickle_refused(Path(repository) / pickles[0])
    raise MissingError(f"{repository} has neither safetensors nor GGUF files; choose another.")


def _fetch(
    api: HfApi,
    repository: str,
    wanted: list[str],
    folder: Path,
    require_room: Callable[[Path, int], None],
) -> str:
    """Fetch the files of one commit; return the result's path inside the folder."""
    info = api.model_info(repository, files_metadata=True)
    sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}
    files = choose_files(sizes, repository, wanted)
    require_room(folder, sum(sizes[name] for name in files))
    api.snapshot_download(repository, revision=info.sha, local_dir=folder, allow_patterns=files)
    return files[0] if files[0].endswith(".gguf") else ""
