"""A model whose head has only some of the tokens: less to read for each token that it drafts.

The head of a small model with a large vocabulary is much of what a step reads. A draft may leave
out the tokens that are rare in text: it never proposes them, and the exact rules see to the rest.
The input embedding stays whole, since a text has every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_types import ArrayOf, ValueType
from fewbit.checkpoint.gguf_write import overlay
from fewbit.checkpoint.mapped import ClosedByWith
from fewbit.errors import BadFileError, FaultError, UsageError
from fewbit.formats.registry import encoded_bytes
from fewbit.formats.spec import QuantTensor
from fewbit.model.families import gguf_name
from fewbit.model.gguf import KEPT
from fewbit.model.gguf_view import as_gguf
from fewbit.model.weights import ModelSource, source_of
from fewbit.records.loading import FileStamp

TARGET = "fewbit.draft.target"
"""The key with the name of the model that a draft was prepared for."""

_HEAD, _EMBEDDING = gguf_name("head.weight"), gguf_name("embed.weight")


class CutHead(ClosedByWith):
    """A GGUF checkpoint with the head's rows of some ids; satisfies `Checkpoint`.

    A table shared by input and output becomes two.

    Args:
        origin: the model, as a GGUF file.
        kept: int32 [n], ascending ids of its vocabulary.
        target: the name of the model that it will draft for.
    """

    def __init__(self, origin: ModelSource, kept: NDArray[np.int32], target: str) -> None:
        facts = origin.checkpoint.facts
        if not isinstance(facts, GgufFacts):
            raise FaultError("A head is cut in the GGUF form of a model only.")
        self.origin = origin
        self.notes = origin.checkpoint.notes
        self._table = _EMBEDDING if origin.config.tied else _HEAD
        self._kept = kept
        self._facts = overlay(
            facts,
            {
                KEPT: (ArrayOf(ValueType.INT32), kept.tolist()),
                TARGET: (ValueType.STRING, target),
            },
        )

    @property
    def path(self) -> Path:
        """The file or folder behind it."""
        return self.origin.path

    @property
    def facts(self) -> GgufFacts:
        """The metadata, with the kept ids."""
        return self._facts

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its name; the head has fewer rows."""
        infos = dict(self.origin.checkpoint.tensors)
        whole = infos[self._table]
        rows, columns = len(self._kept), whole.shape[1]
        size = encoded_bytes(whole.format, (rows, columns))
        infos[_HEAD] = replace(whole, name=_HEAD, shape=(rows, columns), nbytes=size)
        return MappingProxyType(infos)

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as stored; of the head the kept rows."""
        tensor = self.origin.checkpoint.read(self._name(name))
        return tensor.take_rows(self._kept) if name == _HEAD else tensor

    def release(self, name: str) -> None:
        """Let the system drop a tensor's pages."""
        self.origin.checkpoint.release(self._name(name))

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the tensor behind one, whole."""
        return self.origin.checkpoint.digest(self._name(name))

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return those of the files behind it."""
        return self.origin.checkpoint.stamps()

    def close(self) -> None:
        """Let go of the model behind it."""
        self.origin.close()

    def _name(self, name: str) -> str:
        return self._table if name == _HEAD else name


def cut_head(source: ModelSource, kept: NDArray[np.int32], target: str) -> ModelSource:
    """Return a model with the head's rows of `kept` alone, as the GGUF file that it would be.

    Args:
        source: any model with a whole head.
        kept: int32 [n], ascending ids of its vocabulary.
        target: the name of the model that it will draft for.

    Raises:
        UsageError: `source` was cut already.
        UnsupportedError: as `as_gguf`.
    """
    if source.config.head_rows is not None:
        raise UsageError(
            f"{source.path} was prepared as a draft already; give the model that it was made from."
        )
    return source_of(CutHead(as_gguf(source), kept, target))


def kept_ids(source: ModelSource) -> NDArray[np.int32] | None:
    """Return the ids whose rows a cut head has, int32 [n] ascending; None for a whole head.

    Raises:
        BadFileError: they are no ascending ids of the vocabulary.
    """
    if source.config.head_rows is None:
        return None
    facts = source.checkpoint.facts
    stored = facts.metadata[KEPT] if isinstance(facts, GgufFacts) else []
    if not _ascend_below(source.config.vocabulary, stored):
        raise BadFileError(
            f"{source.path}: {KEPT} must have ascending ids below {source.config.vocabulary}; "
            "prepare the draft again."
        )
    return np.array(stored, np.int32)


def _ascend_below(limit: int, stored: Sequence[object]) -> bool:
    """Return whether these are integers, each above the one before, in [0, limit)."""
    before = -1
    for token in stored:
        if not isinstance(token, int) or isinstance(token, bool) or not before < token < limit:
            return False
        before = token
    return True
