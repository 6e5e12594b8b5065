"""A model on disk seen through the slots of its Program.

Whatever the file, a slot's tensor comes out in one convention, that of Hugging Face checkpoints:
rows of q and k in the order that the rotation of halves needs, norm weights without the offset
that Gemma's norm adds. GGUF files differ in both. The offset is undone exactly: they store
y = fl(w + 1), and y - 1 is representable for every such y (for y >= 1/2 by Sterbenz's lemma, below
because w then lies in (-1, -1/2) or beyond -1, whose grid is no finer than 2^-24), so
fl((y - 1) + 1) is y again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.checkpoint import Checkpoint, GgufFacts, HuggingFaceFacts, TensorInfo
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.formats.registry import F32, FLOATS, decode, encode
from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.model.config import ModelConfig
from fewbit.model.decoder import slot_shapes
from fewbit.model.families import FAMILIES, expert_of, gguf_name, huggingface_name, is_router
from fewbit.model.gguf import ROPE_DIVISORS, from_gguf
from fewbit.model.huggingface import from_huggingface
from fewbit.model.places import StoredWeight, expert_in_gguf, fused_huggingface
from fewbit.program import Slot
from fewbit.records.kernels import Activations
from fewbit.records.kv import KvScales


@dataclass(frozen=True)
class ModelSource:
    """An opened model: configuration, checkpoint, and where each slot's tensor lies."""

    config: ModelConfig
    checkpoint: Checkpoint
    slots: Mapping[Slot, StoredWeight]
    """In order of first use by the Program."""
    unused: tuple[str, ...]
    """Stored tensors that the Program does not use, such as extra prediction heads."""

    @property
    def path(self) -> Path:
        """The file or folder."""
        return self.checkpoint.path

    @property
    def kv_scales(self) -> KvScales | None:
        """Static scales of keys and values that are stored with the model."""
        facts = self.checkpoint.facts
        return facts.kv_scales if isinstance(facts, HuggingFaceFacts) else None

    @property
    def edited(self) -> bool:
        """Whether some slot's tensor is another one than the files hold."""
        return False

    def info(self, slot: Slot) -> TensorInfo:
        """Return what is stored for a slot; of experts that share a tensor, the slot's part."""
        stored = self.slots[slot]
        info = self.checkpoint.tensors[stored.name]
        return info if stored.rows is None else _part(info, stored.rows)

    def read(self, slot: Slot) -> QuantTensor:
        """Return a slot's tensor in the convention of Hugging Face; a vector's shape is (1, n).

        A view of the mapped file where rows and values are as stored.
        """
        stored = self.slots[slot]
        tensor = self.checkpoint.read(stored.name)
        if stored.rows is not None:
            tensor = tensor.take_rows(stored.rows)
        if stored.order is not None:
            tensor = _reorder(tensor, stored.order)
        return _shift(tensor, stored.offset) if stored.offset else tensor

    def outline(self, slot: Slot) -> QuantTensor:
        """Return a slot's tensor without its bytes: codes are [rows, 0]."""
        info = self.info(slot)
        rows, columns = info.matrix_shape
        codes = np.empty((rows, 0), np.uint8)
        return QuantTensor(info.format, (rows, columns), codes, order=info.order)

    def activations(self, slot: Slot) -> Activations:
        """Return how the input of a slot's layer is to be rounded, where the format asks it."""
        return self.info(slot).activations

    def input_scale(self, slot: Slot) -> float | None:
        """Return the calibrated scale of the input of a slot's layer, where there is one."""
        return self.info(slot).input_scale

    def note(self, slot: Slot) -> str:
        """Return, in words, what of a slot's tensor is read otherwise than it is stored."""
        return self.info(slot).note

    def release(self, slot: Slot) -> None:
        """Tell the system that the mapped pages of a slot's tensor are not needed for now."""
        self.checkpoint.release(self.slots[slot].name)

    def close(self) -> None:
        """Let go of the files; tensors read before stay valid."""
        self.checkpoint.close()

    def __enter__(self) -> Self:
        """Return the source; leaving the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the source."""
        self.close()

    def huggingface_name(self, slot: Slot) -> str:
        """Return what a Hugging Face checkpoint of this family calls a slot's tensor."""
        return huggingface_name(FAMILIES[self.config.family], slot)


def open_model(path: Path) -> ModelSource:
    """Open a GGUF file, a Hugging Face folder or an artefact, and find every slot's tensor.

    Raises:
        BadFileError, MissingError, UnsupportedError: the checkpoint or its configuration cannot be
            used, a tensor is missing or of another shape, or one is there inside a layer that the
            Program would leave out; or it was prepared as a draft.
    """
    source = open_draft_model(path)
    if source.config.head_rows is None:
        return source
    source.close()
    raise UnsupportedError(
        f"{path} was prepared as a draft: its head has {source.config.head_rows:,} of "
        f"{source.config.vocabulary:,} tokens, so it cannot stand alone; give it to its target "
        "with --draft."
    )


def open_draft_model(path: Path) -> ModelSource:
    """Open a model of any kind, one whose head was cut included; raises as `open_model`."""
    checkpoint = open_checkpoint(path)
    try:
        return source_of(checkpoint)
    except BaseException:
        checkpoint.close()
        raise


def source_of(checkpoint: Checkpoint) -> ModelSource:
    """Return the model in an opened checkpoint; raises as `open_model`."""
    config = _read_config(checkpoint)
    shapes = slot_shapes(config)
    place = gguf_place if isinstance(checkpoint.facts, GgufFacts) else _huggingface_place
    slots = {slot: place(config, slot, checkpoint.tensors) for slot in shapes}
    for slot, shape in shapes.items():
        _check_shape(checkpoint, slots[slot], shape)
    _check_routers(checkpoint, slots)
    _check_kv_scales(checkpoint, config)
    unused = _unused(checkpoint, config, slots)
    return ModelSource(config, checkpoint, slots, unused)


def as_stored(stored: StoredWeight, tensor: QuantTensor, form: NumberFormat) -> QuantTensor:
    """Return a slot's tensor as a file with that convention stores it; undoes `ModelSource.read`.

    Args:
        stored: the convention.
        tensor: [rows, columns] in a format whose rows do not depend on each other, or (1, n).
        form: the format in the file: the tensor's own, or of a vector any float format that holds
            its values.
    """
    if stored.order is not None and tensor.shape[0] > 1:
        return tensor.take_rows(np.argsort(stored.order))
    if stored.order is None and not stored.offset and tensor.spec == form:
        return tensor
    values = decode(tensor) + np.float32(stored.offset)
    if stored.order is not None:
        values = values[:, np.argsort(stored.order)]
    return encode(values, form)


def interleaved_rows(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Return, for each row of a q or k slot, its row in a GGUF file of a Llama.

    llama.cpp rotates neighbours there, so its converter stores row j of the first half of a head
    at 2 j and of the second half at 2 j + 1.
    """
    head = np.arange(head_dim).reshape(head_dim // 2, 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * head_dim + head).reshape(-1).astype(np.intp)


def _read_config(checkpoint: Checkpoint) -> ModelConfig:
    facts = checkpoint.facts
    if not isinstance(facts, GgufFacts):
        config = from_huggingface(facts.config, str(checkpoint.path / "config.json"))
        return replace(config, mlp_rotation=facts.mlp_rotation)
    divisors: tuple[float, ...] = ()
    if ROPE_DIVISORS in checkpoint.tensors:
        divisors = tuple(float(d) for d in decode(checkpoint.read(ROPE_DIVISORS)).reshape(-1))
    return from_gguf(facts.metadata, checkpoint.tensors, divisors, str(checkpoint.path))


def _huggingface_place(config: ModelConfig, slot: Slot, tensors: Collection[str]) -> StoredWeight:
    name = huggingface_name(FAMILIES[config.family], slot)
    if name in tensors or config.mixture is None:
        return StoredWeight(name)
    return fused_huggingface(config.mixture, config.hidden, slot, tensors) or StoredWeight(name)


def gguf_place(config: ModelConfig, slot: Slot, tensors: Collection[str] = ()) -> StoredWeight:
    """Return where a GGUF file has a slot's tensor, and in which convention.

    Args:
        config: of the model.
        slot: one of its slots.
        tensors: the names of what the file stores; old files have a tensor for each expert. Without
            names the layout is that of new files.
    """
    name = gguf_name(slot)
    site = slot.split(".")[-2]
    if site.endswith("_norm"):
        return StoredWeight(name, offset=config.norm_offset)
    if site in ("q", "k") and FAMILIES[config.family].gguf_permuted:
        heads = config.heads if site == "q" else config.kv_heads
        return StoredWeight(name, interleaved_rows(heads, config.head_dim))
    if config.mixture is not None and expert_of(slot) is not None:
        return expert_in_gguf(config.mixture, config.hidden, slot, tensors)
    return StoredWeight(name)


def _check_shape(checkpoint: Checkpoint, stored: StoredWeight, shape: tuple[int, int]) -> None:
    info = checkpoint.tensors.get(stored.name)
    if info is None:
        raise MissingError(
            f"{checkpoint.path} has no tensor '{stored.name}', which its configuration calls for; "
            "the file is incomplete, fetch it again."
        )
    wanted = stored.shape or (shape if len(info.shape) > 1 else shape[1:])
    if tuple(info.shape) != wanted:
        raise BadFileError(
            f"{checkpoint.path}: the tensor '{stored.name}' has shape {tuple(info.shape)}, but the "
            f"configuration calls for {wanted}; one of them is damaged, fetch the model again."
        )


def _check_kv_scales(checkpoint: Checkpoint, config: ModelConfig) -> None:
    facts = checkpoint.facts
    scales = facts.kv_scales if isinstance(facts, HuggingFaceFacts) else None
    if scales is not None and not scales.fits(config.layers, config.kv_heads):
        raise BadFileError(
            f"{checkpoint.path}: the scales of keys and values are not one positive number for "
            f"each of {config.kv_heads} heads in {config.layers} layers; the file is damaged, "
            "write it again."
        )


def _check_routers(checkpoint: Checkpoint, slots: Mapping[Slot, StoredWeight]) -> None:
    """Refuse a router whose input would be rounded: experts are chosen in float32."""
    for slot, stored in slots.items():
        form = checkpoint.tensors[stored.name].format
        if is_router(slot) and form not in FLOATS:
            raise UnsupportedError(
                f"{checkpoint.path}: the router '{stored.name}' is in {form.name}; a mixture's "
                f"router must be in {', '.join(f.name for f in FLOATS)}, because experts are "
                "chosen in float32."
            )


def _unused(
    checkpoint: Checkpoint, config: ModelConfig, slots: Mapping[Slot, StoredWeight]
) -> tuple[str, ...]:
    """Return the tensors that no slot takes; refuse one inside a layer that the Program runs."""
    used = {stored.name for stored in slots.values()} | {ROPE_DIVISORS}
    left = [name for name in checkpoint.tensors if name not in used and not _derived(name)]
    for name in left:
        layer = re.match(r"(?:blk|model\.layers)\.(\d{1,9})\.", name)
        if layer and int(layer[1]) < config.layers:
            raise UnsupportedError(
                f"{checkpoint.path}: the tensor '{name}' has no place in a model of family "
                f"'{config.family}' with this configuration, so running without it would give "
                "other results; supported are the tensors of the plain architecture."
            )
    return tuple(left)


def _derived(name: str) -> bool:
    """Return whether a tensor holds only what the configuration says anyway (old Llama files)."""
    return name.endswith(".rotary_emb.inv_freq")


def _part(info: TensorInfo, rows: slice) -> TensorInfo:
    """Describe some rows of a tensor whose rows take equal bytes."""
    all_rows, columns = info.matrix_shape
    count = len(range(*rows.indices(all_rows)))
    return replace(info, shape=(count, columns), nbytes=info.nbytes // all_rows * count)


def _reorder(tensor: QuantTensor, order: NDArray[np.intp]) -> QuantTensor:
    if tensor.shape[0] > 1:
        return tensor.take_rows(order)
    values = decode(tensor)[:, order]
    return _f32(values)


def _shift(tensor: QuantTensor, offset: float) -> QuantTensor:
    return _f32(decode(tensor) - np.float32(offset))


def _f32(values: NDArray[np.float32]) -> QuantTensor:
    rows, columns = values.shape
    return QuantTensor(F32, (rows, columns), np.ascontiguousarray(values).view(np.uint8))
