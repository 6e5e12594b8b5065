"""What a path holds, judged by its first bytes; whatever is no checkpoint is named and refused."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from fewbit.checkpoint.mapped import unreadable
from fewbit.checkpoint.strict_json import parse_object, read_bounded
from fewbit.errors import BadFileError, MissingError, UnsupportedError

CONFIG = "config.json"
MAX_CONFIG = 1 << 24
QUANT_METHOD = "fewbit"

_HEAD = 4096
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_CONVERSION = "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
_PICKLE = (
    "is a pickle, which can run code when loaded; where you trust it, convert it to safetensors "
    f"with transformers ({_CONVERSION})"
)


class Kind(Enum):
    """The kinds of checkpoint."""

    GGUF = "gguf"
    HUGGING_FACE = "hugging face"
    FEWBIT = "fewbit"


def detect(path: Path) -> Kind:
    """Return the kind of the checkpoint at `path`.

    Raises:
        MissingError: nothing is there, or a folder without a model.
        BadFileError: empty, unreadable, a web page, a Git LFS pointer, or an unknown kind of file.
        UnsupportedError: a pickle, a zip archive, or one safetensors file without its folder.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise MissingError(
            f"{path} does not exist; give a file, a folder, or a name that `fewbit pull` knows."
        ) from None
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from error
    if stat.S_ISDIR(mode):
        return _detect_folder(path)
    if not stat.S_ISREG(mode):
        raise BadFileError(f"{path} is neither a file nor a folder; give the path of a model.")
    return _detect_file(path)


def has_pickle(folder: Path) -> str | None:
    """Return the name of a pickle of weights in a folder, if there is one."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in PICKLES)
    return names[0] if names else None


def pickle_refused(path: Path) -> UnsupportedError:
    """Return the error for a pickle."""
    return UnsupportedError(f"{path} {_PICKLE}.")


def _unusable(path: Path, error: Exception) -> BadFileError:
    if isinstance(error, OSError):
        return unreadable(path, error)
    return BadFileError(f"{str(path)!a} is no usable path ({error}); give the path of a model.")


def _detect_folder(path: Path) -> Kind:
    try:
        if (path / CONFIG).is_file():
            config = parse_object(read_bounded(path / CONFIG, MAX_CONFIG), str(path / CONFIG))
            quantization = config.get("quantization_config")
            ours = isinstance(quantization, dict) and (
                quantization.get("quant_method") == QUANT_METHOD
            )
            return Kind.FEWBIT if ours else Kind.HUGGING_FACE
        files = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".gguf")
    except OSError as error:
        raise unreadable(path, error) from error
    if files:
        raise MissingError(
            f"{path} is a folder without {CONFIG}, but it holds {files[0]}; give that file's path."
        )
    raise MissingError(f"{path} is a folder without {CONFIG}; give the folder of a model.")


def _detect_file(path: Path) -> Kind:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from error
    if head.startswith(b"GGUF"):
        return Kind.GGUF
    raise _refusal(path, head)


@dataclass(frozen=True)
class _Stranger:
    """A kind of file that is no checkpoint, and what to tell its owner."""

    recognizes: Callable[[Path, bytes], bool]
    error: type[BadFileError | UnsupportedError]
    message: str


def _is_web_page(_path: Path, head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    return text.startswith((b"<!doctype", b"<html", b"<head", b"<body", b"<!--", b"<?xml"))


def _is_pickle(path: Path, head: bytes) -> bool:
    protocol = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    return protocol or b"data.pkl" in head or path.suffix in PICKLES


_STRANGERS = (
    _Stranger(lambda _, head: not head, BadFileError, "is empty; download it again"),
    _Stranger(
        _is_web_page,
        BadFileError,
        "is a web page, not a model; download the file itself, not its page",
    ),
    _Stranger(
        lambda _, head: head.startswith(b"version https://git-lfs.github.com"),
        BadFileError,
        "is a Git LFS pointer, the file itself was not downloaded; run `git lfs pull` where you "
        "cloned it",
    ),
    _Stranger(_is_pickle, UnsupportedError, _PICKLE),
    _Stranger(
        lambda _, head: head.startswith(b"PK\x03\x04"),
        UnsupportedError,
        "is a zip archive; unpack it and give the model inside",
    ),
    _Stranger(
        lambda path, head: path.suffix == ".safetensors" or head[8:10] == b'{"',
        UnsupportedError,
        "is a safetensors file, which has weights but no configuration; give the folder that holds "
        f"it and {CONFIG}",
    ),
)


def _refusal(path: Path, head: bytes) -> BadFileError | UnsupportedError:
    """Say what a file that is no GGUF is."""
    for stranger in _STRANGERS:
        if stranger.recognizes(path, head):
            return stranger.error(f"{path} {stranger.message}.")
    return BadFileError(
        f"{path} begins with the bytes {head[:8].hex(' ')}, which no kind of checkpoint that "
        "fewbit reads begins with; give a GGUF file or a folder with config.json and safetensors."
    )
