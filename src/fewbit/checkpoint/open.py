"""One way into every kind of checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from fewbit.checkpoint import awq, compressed_config, gptq, torchao
from fewbit.checkpoint.artefact import ArtefactCheckpoint
from fewbit.checkpoint.checkpoint import Checkpoint
from fewbit.checkpoint.compressed_tensors import open_compressed
from fewbit.checkpoint.detect import Kind, detect
from fewbit.checkpoint.gguf_split import open_gguf
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.packed_folder import QUANTIZATION
from fewbit.errors import UnsupportedError

_PACKED: Mapping[str, Callable[[HuggingFaceCheckpoint], Checkpoint]] = MappingProxyType(
    {
        compressed_config.METHOD: open_compressed,
        gptq.METHOD: gptq.open_gptq,
        awq.METHOD: awq.open_awq,
        torchao.METHOD: torchao.open_torchao,
    }
)
"""By `quant_method`, what reads a folder whose weights another tool packed."""


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or all parts of a split one, a Hugging Face folder or a fewbit artefact.

    Headers and configuration are read and checked; tensors are not.

    Raises:
        BadFileError, MissingError, UnsupportedError: what is there is no checkpoint, is damaged, or
            is of a kind that fewbit does not read; the message says which and what to do.
    """
    match detect(path):
        case Kind.GGUF:
            return open_gguf(path)
        case Kind.HUGGING_FACE:
            return _open_folder(path)
        case Kind.FEWBIT:
            return ArtefactCheckpoint(path)


def _open_folder(path: Path) -> Checkpoint:
    folder = HuggingFaceCheckpoint(path)
    try:
        return _unpacked(folder)
    except BaseException:
        folder.close()
        raise


def _unpacked(folder: HuggingFaceCheckpoint) -> Checkpoint:
    """Return a folder whose packed weights, if it has any, are tensors like others."""
    stated = folder.facts.config.get(QUANTIZATION)
    if stated is None:
        return folder
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    if not isinstance(method, str) or method not in _PACKED:
        raise UnsupportedError(
            f"{folder.path} is quantized by the method {str(method)[:80]!a}, which is not "
            f"supported; supported are {', '.join(_PACKED)}, plain weights, artefacts of fewbit "
            "and GGUF files."
        )
    return _PACKED[method](folder)
