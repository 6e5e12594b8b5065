"""Any model as the GGUF file that it would be.

The view is a checkpoint: its metadata, names, shapes and order of rows are those of a GGUF file,
its values those of the model behind it. So whatever works on GGUF files (plans, solvers, the
writer) works on a Hugging Face folder, and the reader of GGUF files checks the metadata: the view
must give back the same Program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay
from fewbit.checkpoint.mapped import ClosedByWith
from fewbit.checkpoint.missing import missing_tensor
from fewbit.errors import UnsupportedError
from fewbit.formats.registry import F32, GGUF_TYPES, encode, encoded_bytes
from fewbit.formats.spec import BlockSpec, NumberFormat, QuantTensor, join_rows
from fewbit.model.binding import is_vector
from fewbit.model.families import is_router
from fewbit.model.gguf import ROPE_DIVISORS
from fewbit.model.gguf_metadata import to_gguf
from fewbit.model.gguf_tokenizer import TokenizerMetadata, tokenizer_metadata
from fewbit.model.places import StoredWeight
from fewbit.model.weights import ModelSource, as_stored, gguf_place, source_of
from fewbit.model.written import same_program
from fewbit.program import Slot
from fewbit.records.base import readable
from fewbit.records.loading import FileStamp

Read = Callable[[Slot, StoredWeight, NumberFormat], QuantTensor]
"""Gives a slot's tensor in the convention and the type that the file stores it in."""


class GgufView(ClosedByWith):
    """A model's tensors under their names in a GGUF file.

    Args:
        origin: the model; a GGUF file keeps its metadata and what no slot uses.
        formats: of each slot's tensor: GGUF types, one for all experts of a tensor.
        read: gives each slot's tensor as the file stores it; None for the model's own.
        tokens: what `tokenizer_metadata` gave for the model, where it was asked before.
    """

    def __init__(
        self,
        origin: ModelSource,
        formats: Mapping[Slot, NumberFormat],
        read: Read | None = None,
        tokens: TokenizerMetadata | None = None,
    ) -> None:
        self.origin = origin
        self.notes: tuple[str, ...] = ()
        self.tokens = tokens
        self._formats = formats
        self._read = read or self._as_stored
        self._extras: dict[str, QuantTensor] = {}
        self._facts = self._made_facts()
        self._parts = self._placed()
        self._infos = self._described()

    @property
    def path(self) -> Path:
        """The file or folder behind it."""
        return self.origin.path

    @property
    def facts(self) -> GgufFacts:
        """The metadata that the file would have."""
        return self._facts

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its name in the file."""
        return MappingProxyType(self._infos)

    @property
    def extras(self) -> Collection[str]:
        """The names of the tensors that are no slot's."""
        return self._extras.keys()

    def read(self, name: str) -> QuantTensor:
        """Return a tensor as the file would store it; raises MissingError without one."""
        if name in self._extras:
            return self._extras[name]
        form = self._info(name).format
        parts = self._parts[name]
        return join_rows([self._read(slot, place, form) for slot, place in parts])

    def _as_stored(self, slot: Slot, place: StoredWeight, form: NumberFormat) -> QuantTensor:
        return as_stored(place, self.origin.read(slot), form)

    def slots_of(self, name: str) -> tuple[Slot, ...]:
        """Return the slots whose tensors lie in a tensor of the file, in the order of its rows."""
        return tuple(slot for slot, _ in self._parts.get(name, ()))

    def release(self, name: str) -> None:
        """Let the system drop the pages of the tensors behind one."""
        for slot in self.slots_of(name):
            self.origin.release(slot)

    def digest(self, name: str) -> str:
        """Return a SHA-256 over those of the tensors behind one, or of a tensor of its own."""
        if name in self._extras:
            return hashlib.sha256(self._extras[name].codes.tobytes()).hexdigest()
        self._info(name)
        stored = dict.fromkeys(self.origin.slots[slot].name for slot in self.slots_of(name))
        digests = [self.origin.checkpoint.digest(found) for found in stored]
        return (
            digests[0]
            if len(digests) == 1
            else hashlib.sha256("".join(digests).encode()).hexdigest()
        )

    def stamps(self) -> tuple[FileStamp, ...]:
        """Return those of the files behind it."""
        return self.origin.checkpoint.stamps()

    def close(self) -> None:
        """Let go of the model behind it."""
        self.origin.close()

    def _made_facts(self) -> GgufFacts:
        facts = self.origin.checkpoint.facts
        if isinstance(facts, GgufFacts):
            used = {place.name for place in self.origin.slots.values()}
            names = (name for name in self.origin.checkpoint.tensors if name not in used)
            self._extras = {name: self.origin.checkpoint.read(name) for name in names}
            return facts
        found, name = to_gguf(self.origin.config), readable(self.origin.path.resolve().name)
        self.tokens = self.tokens or tokenizer_metadata(self.origin)
        tokens, notes = self.tokens
        self.notes = (*found.notes, *notes)
        if found.divisors:
            values = np.array([found.divisors], np.float32)
            self._extras[ROPE_DIVISORS] = encode(values, F32)
        return overlay(
            GgufFacts({}),
            {
                **found.metadata,
                "general.type": (ValueType.STRING, "model"),
                "general.name": (ValueType.STRING, name),
                **tokens,
            },
        )

    def _placed(self) -> dict[str, list[tuple[Slot, StoredWeight]]]:
        parts: dict[str, list[tuple[Slot, StoredWeight]]] = {}
        for slot, stored in self.origin.slots.items():
            from_gguf = isinstance(self.origin.checkpoint.facts, GgufFacts)
            place = stored if from_gguf else gguf_place(self.origin.config, slot)
            parts.setdefault(place.name, []).append((slot, place))
        for found in parts.values():
            found.sort(key=lambda part: (part[1].rows or slice(0)).start or 0)
        return parts

    def _described(self) -> dict[str, TensorInfo]:
        infos = {}
        for name, parts in self._parts.items():
            slot, place = parts[0]
            rows, columns = self.origin.info(slot).matrix_shape
            form = self._formats[slot]
            size = len(parts) * encoded_bytes(form, (rows, columns))
            alone = (columns,) if is_vector(slot) else (rows, columns)
            infos[name] = TensorInfo(name, form, place.shape or alone, size)
        for name, tensor in self._extras.items():
            found = self.origin.checkpoint.tensors.get(name)
            infos[name] = found or TensorInfo(name, tensor.spec, tensor.shape[1:], tensor.nbytes)
        return infos

    def _info(self, name: str) -> TensorInfo:
        if name not in self._infos:
            raise missing_tensor(self.path, name, self._infos)
        return self._infos[name]


def as_gguf(source: ModelSource) -> ModelSource:
    """Return a model as the GGUF file that it would be, its matrices in the types they have.

    Vectors and routers come in float32, as llama.cpp wants them. A GGUF file is itself.

    Raises:
        UnsupportedError: a matrix is in a format that is no GGUF type, or GGUF cannot say something
            that changes what the model computes, its tokenizer included.
    """
    if isinstance(source.checkpoint.facts, GgufFacts):
        return source
    return viewed(GgufView(source, {slot: own_type(source, slot) for slot in source.slots}))


def origin_of(source: ModelSource) -> ModelSource:
    """Return the model behind one that is seen as a GGUF file, and any other as it is."""
    checkpoint = source.checkpoint
    return checkpoint.origin if isinstance(checkpoint, GgufView) else source


def viewed(view: GgufView) -> ModelSource:
    """Return the model that a view's reader finds in it.

    Raises:
        UnsupportedError: it is not the model behind the view.
    """
    found = source_of(view)
    wanted = view.origin.config
    if not isinstance(view.origin.checkpoint.facts, GgufFacts):
        wanted = to_gguf(wanted).config
    if not same_program(found.config, wanted):
        raise UnsupportedError(
            f"The configuration of {view.path} has no exact form as GGUF metadata; write a folder "
            "instead."
        )
    return found


def own_type(source: ModelSource, slot: Slot) -> NumberFormat:
    """Return the GGUF type of a slot's tensor as it is: float32 for vectors and routers.

    Raises:
        UnsupportedError: a matrix is in no GGUF type.
    """
    form = source.info(slot).format
    if is_vector(slot) or is_router(slot):
        return F32
    if is_gguf_type(form):
        return form
    raise UnsupportedError(
        f"{source.info(slot).name} is in {form.name}, which GGUF has no type for; write a folder, "
        "or export to GGUF with `fewbit export --to gguf`."
    )


def is_gguf_type(form: NumberFormat) -> bool:
    """Return whether a format is a type of GGUF files."""
    return isinstance(form, BlockSpec) and GGUF_TYPES.get(form.type_id) == form
