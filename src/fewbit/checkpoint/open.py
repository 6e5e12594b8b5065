"""One way into every kind of checkpoint."""

from __future__ import annotations

from pathlib import Path

from fewbit.checkpoint.artefact import ArtefactCheckpoint
from fewbit.checkpoint.checkpoint import Checkpoint
from fewbit.checkpoint.detect import Kind, detect
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, a Hugging Face folder or an artefact of fewbit.

    Headers and configuration are read and checked; tensors are not.

    Raises:
        BadFileError, MissingError, UnsupportedError: what is there is no checkpoint, is damaged, or
            is of a kind that fewbit does not read; the message says which and what to do.
    """
    match detect(path):
        case Kind.GGUF:
            return GgufCheckpoint(path)
        case Kind.HUGGING_FACE:
            return HuggingFaceCheckpoint(path)
        case Kind.FEWBIT:
            return ArtefactCheckpoint(path)
