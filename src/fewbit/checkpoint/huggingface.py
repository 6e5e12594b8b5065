"""Hugging Face folders: the JSON files, and tensors in one or several safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fewbit.checkpoint.checkpoint import HuggingFaceFacts, TensorInfo
from fewbit.checkpoint.detect import CONFIG, MAX_CONFIG, has_pickle, pickle_refused
from fewbit.checkpoint.mapped import ClosedByWith, MappedFile, quoted, unreadable
from fewbit.checkpoint.missing import missing_tensor
from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.checkpoint.strict_json import parse_object, read_bounded
from fewbit.errors import BadFileError, MissingError
from fewbit.formats.spec import QuantTensor
from fewbit.records.loading import FileStamp

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"

MAX_TOKENIZER = 1 << 28
"""That of Gemma 3 has 33 MB."""
MAX_INDEX = 1 << 25
MAX_TEMPLATE = 1 << 20


def read_facts(folder: Path) -> HuggingFaceFacts:
    """Read a folder's configuration and tokenizer.

    Raises:
        BadFileError: a file is too large, unreadable, no JSON, or a chat template is no text.
    """
    tokenizer_config = _optional_object(folder / TOKENIZER_CONFIG, MAX_CONFIG)
    config = folder / CONFIG
    return HuggingFaceFacts(
        config=parse_object(read_bounded(config, MAX_CONFIG), str(config)),
        generation_config=_optional_object(folder / GENERATION_CONFIG, MAX_CONFIG),
        tokenizer_json=_optional(folder / TOKENIZER, MAX_TOKENIZER),
        tokenizer_config=tokenizer_config,
        chat_template=_chat_template(folder, tokenizer_config or {}),
    )


def config_stamp(folder: Path) -> FileStamp:
    """Return what tells a folder's configuration from others."""
    with MappedFile(folder / CONFIG) as file:
        return file.stamp(file.size)


def weight_files(folder: Path) -> dict[str, SafetensorsFile]:
    """Open a folder's safetensors files.

    Returns:
        Which open file holds each tensor, in file order.

    Raises:
        BadFileError: a file or the index is damaged, or the index leaves the folder.
        MissingError: there are no weights, a shard is absent, or a listed tensor is.
        UnsupportedError: the weights are there as pickles only.
    """
    if (folder / WEIGHTS).is_file():
        file = SafetensorsFile(folder / WEIGHTS)
        if not file.header.tensors:
            file.close()
            raise MissingError(f"{file.path} holds no tensor; download it again.")
        return dict.fromkeys(file.header.tensors, file)
    if (folder / INDEX).is_file():
        return _open_shards(folder, _read_index(folder / INDEX))
    try:
        pickle = has_pickle(folder)
    except OSError as error:
        raise unreadable(folder, error) from error
    if pickle is not None:
        raise pickle_refused(folder / pickle)
    raise MissingError(f"{folder} has neither {WEIGHTS} nor {INDEX}; download its weights.")


def _optional(path: Path, largest: int) -> bytes | None:
    return read_bounded(path, largest) if path.is_file() else None


def _optional_object(path: Path, largest: int) -> dict[str, Any] | None:
    content = _optional(path, largest)
    return None if content is None else parse_object(content, str(path))


def _chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Return the template of its own file, else that of the tokenizer's configuration."""
    path = folder / CHAT_TEMPLATE
    content = _optional(path, MAX_TEMPLATE)
    if content is not None:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise BadFileError(f"{path} is not UTF-8; get it again from its publisher.") from None
    template = configured_template(tokenizer_config)
    if template is None or isinstance(template, str):
        return template
    raise BadFileError(
        f"{folder / TOKENIZER_CONFIG} has a chat_template that is no text but "
        f"{type(template).__name__}; get it again from its publisher."
    )


def configured_template(tokenizer_config: Mapping[str, Any]) -> Any:
    """Return what a tokenizer's configuration has as its chat template.

    A list of named templates stands for its `default` one.
    """
    template = tokenizer_config.get("chat_template")
    if not isinstance(template, list):
        return template
    named = [entry for entry in template if isinstance(entry, dict)]
    return next((t.get("template") for t in named if t.get("name") == "default"), None)


def _read_index(path: Path) -> dict[str, str]:
    """Return which file each tensor is in; every file name is a plain name."""
    index = parse_object(read_bounded(path, MAX_INDEX), str(path))
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFileError(
            f"{path} has no weight_map from tensors to files; get it again from its publisher."
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _plain(file):
            raise BadFileError(
                f"{path}: weight_map puts {quoted(name)} into {quoted(str(file))}, which is no "
                "plain name of a safetensors file beside it; get it again from its publisher."
            )
    return weight_map


def _plain(name: str) -> bool:
    return name.endswith(".safetensors") and not any(mark in name for mark in "/\\\0:")


def _open_shards(folder: Path, weight_map: Mapping[str, str]) -> dict[str, SafetensorsFile]:
    names = sorted(set(weight_map.values()))
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        shown = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        raise MissingError(
            f"{folder} lacks {len(absent)} of its {len(names)} shards ({shown}); download them."
        )
    opened: list[SafetensorsFile] = []
    try:
        for name in names:
            opened.append(SafetensorsFile(folder / name))
        return _match(folder / INDEX, weight_map, opened)
    except BaseException:
        for file in opened:
            file.close()
        raise


def _match(
    index: Path, weight_map: Mapping[str, str], shards: list[SafetensorsFile]
) -> dict[str, SafetensorsFile]:
    """Check that the index and the shards list the same tensors."""
    found: dict[str, SafetensorsFile] = {}
    for shard in shards:
        for name in shard.header.tensors:
            if weight_map.get(name) != shard.path.name:
                raise BadFileError(
                    f"{index} does not list the tensor {quoted(name)} of {shard.path.name}; "
                    "get the folder again from its publisher."
                )
            found[name] = shard
    for name, file in weight_map.items():
        if name not in found:
            raise MissingError(
                f"{index.parent / file} has no tensor {quoted(name)}, which {index.name} lists; "
                "download it again."
            )
    return found


class HuggingFaceCheckpoint(ClosedByWith):
    """A folder as a checkpoint; opening it reads the JSON files and the headers.

    Raises:
        as `read_facts` and `weight_files`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._facts = read_facts(path)
        self._files = weight_files(path)
        self._infos = {name: file.header.tensors[name].info for name, file in self._files.items()}

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def facts(self) -> HuggingFaceFacts:
        """Configuration and tokenizer."""
        return self._facts

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, shard after shard."""
        return MappingProxyType(self._infos)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The free text in the headers of all files of weights, by key."""
        files = dict.fromkeys(self._files.values())
        return {k: text for file in files for k, text in file.header.metadata.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing is left out."""
        return ()

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as read-only views of its file; raises MissingError without one."""
        return self._file(name).read(name)

    def release(self, name: str) -> None:
        """Let the system drop the tensor's pages."""
        self._file(name).release(name)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the tensor's bytes, hexadecimal."""
        return self._file(name).digest(name)

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return those of the configuration and of every file of weights."""
        files = dict.fromkeys(self._files.values())
        return (config_stamp(self._path), *(file.stamp() for file in files))

    def close(self) -> None:
        """Let go of the files; views stay valid."""
        for file in self._files.values():
            file.close()

    def _file(self, name: str) -> SafetensorsFile:
        try:
            return self._files[name]
        except KeyError:
            raise missing_tensor(self._path, name, self._files) from None
