"""A draft head on disk: `config.json` and safetensors, seen through the slots of its Programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.detect import CONFIG, MAX_CONFIG
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.strict_json import parse_object, read_bounded
from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import QuantTensor
from fewbit.model.head import HeadConfig, head_shapes, is_head, read_head_config
from fewbit.program import Slot
from fewbit.records.loading import FileStamp

EMBEDDING, HEAD = "embed.weight", "head.weight"
TO_TARGET, FROM_TARGET = "d2t", "t2d"

_IGNORED = (FROM_TARGET, "verifier_", "mask_hidden")
"""Stored beside the head's own: what says the same as `d2t`, and parts of the target."""

_FIRST = {
    "layers.0.input_layernorm.weight": "layers.0.embed_norm.weight",
    "layers.0.hidden_norm.weight": "layers.0.hidden_norm.weight",
    **{f"layers.0.self_attn.{s}_proj.bias": f"layers.0.{s}_state.bias" for s in "qkv"},
}
_NAMES = {
    "embed_tokens.weight": EMBEDDING,
    "fc.weight": "hidden.weight",
    "fc.bias": "hidden.bias",
    "input_norm.weight": "states_norm.weight",
    "norm.weight": "final_norm.weight",
    "lm_head.weight": HEAD,
}
_WIDE = {f"layers.0.self_attn.{site}_proj.weight": f"layers.0.{site}" for site in "qkv"}
"""Matrices over an embedding and a state side by side; each is two slots."""


def _stored_names(layers: int) -> dict[str, Slot]:
    """Return the slot for each name in one spelling, but for those of `_WIDE`."""
    found = _NAMES | _FIRST
    for n in range(layers):
        own, attention = f"layers.{n}", "self_attn."
        sites = {f"{attention}o": "o", **{f"mlp.{site}": site for site in ("gate", "up", "down")}}
        if n:
            sites |= {f"{attention}{site}": site for site in "qkv"}
            found[f"{own}.input_layernorm.weight"] = f"{own}.attn_norm.weight"
        found[f"{own}.post_attention_layernorm.weight"] = f"{own}.mlp_norm.weight"
        for stored, site in sites.items():
            for kind in ("weight", "bias"):
                found[f"{own}.{stored}_proj.{kind}"] = f"{own}.{site}.{kind}"
    return found


def _unused(plain: str) -> bool:
    """Whether a tensor says nothing that is run: parts of the target, or what `d2t` says.

    Readers of the form keep a norm of the states in every layer; those behind the first read none.
    """
    later = plain.endswith(".hidden_norm.weight") and not plain.startswith("layers.0.")
    return later or plain in (TO_TARGET, FROM_TARGET) or plain.startswith(_IGNORED)


@dataclass(frozen=True)
class HeadSource:
    """An opened head.

    `tensors` are its own, by slot; the embedding and the head's matrix may be missing, and are the
    target's then.
    """

    config: HeadConfig
    path: Path
    tensors: Mapping[Slot, QuantTensor]
    support: NDArray[np.int32] | None
    """int32 [n] ascending, the target's ids that it can propose; None for all, in their order."""
    columns: NDArray[np.int32] | None = None
    """int32 [n], the row of its matrix for each; None where they lie in that order."""
    stamps: tuple[FileStamp, ...] = ()
    """What tells its files from others."""

    @property
    def name(self) -> str:
        """What it is called in records."""
        return f"eagle3:{self.path.resolve().name}"


def is_head_folder(path: Path) -> bool:
    """Return whether a folder's configuration describes a draft head."""
    file = path / CONFIG
    return file.is_file() and is_head(parse_object(read_bounded(file, MAX_CONFIG), str(file)))


def open_head(path: Path) -> HeadSource:
    """Open a head of SGLang's form or of speculators'; the tensors are read into memory.

    Raises:
        BadFileError, MissingError, UnsupportedError: as `read_head_config`; or a tensor is absent,
            of another shape or format, or has no place in the head.
    """
    if not path.is_dir():
        raise MissingError(
            f"{path} is no folder; give that of a draft head, with its {CONFIG} and safetensors."
        )
    with HuggingFaceCheckpoint(path) as folder:
        config = read_head_config(folder.facts.config, str(path / CONFIG))
        names = {_plain(name): name for name in folder.tensors}
        config = replace(config, fuse_bias="fc.bias" in names)
        tensors = _tensors(folder, names, config.layer.layers)
        support, columns = _support(folder, names, config)
        stamps = folder.stamps()
    _check(path, config, tensors)
    return HeadSource(config, path, tensors, support, columns, stamps)


def _plain(name: str) -> str:
    """Return a stored name in one spelling."""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _tensors(
    folder: HuggingFaceCheckpoint, names: Mapping[str, str], layers: int
) -> dict[Slot, QuantTensor]:
    slots = _stored_names(layers)
    found: dict[Slot, QuantTensor] = {}
    for plain, name in names.items():
        if _unused(plain):
            continue
        if plain not in slots and plain not in _WIDE:
            raise UnsupportedError(
                f"{folder.path}: the tensor '{name}' has no place in an EAGLE-3 head of {layers} "
                f"layer{'s' if layers > 1 else ''}, so drafting without it would be worse than "
                "what was trained."
            )
        tensor = folder.read(name)
        if tensor.spec not in FLOATS:
            raise UnsupportedError(
                f"{folder.path}: the tensor '{name}' is in {tensor.spec.name}; supported are "
                f"{', '.join(form.name for form in FLOATS)}."
            )
        if plain in _WIDE:
            found |= _halves(_WIDE[plain], tensor)
        else:
            found[slots[plain]] = tensor
    return found


def _halves(stem: str, tensor: QuantTensor) -> dict[Slot, QuantTensor]:
    """Cut a matrix over an embedding and a state into one over each."""
    rows, columns = tensor.shape
    half = columns // 2
    width = tensor.codes.shape[1] // columns
    codes = tensor.codes[:, : columns * width]
    cut = half * width
    return {
        f"{stem}_embed.weight": replace(
            tensor, shape=(rows, half), codes=np.ascontiguousarray(codes[:, :cut])
        ),
        f"{stem}_state.weight": replace(
            tensor, shape=(rows, columns - half), codes=np.ascontiguousarray(codes[:, cut:])
        ),
    }


def _support(
    folder: HuggingFaceCheckpoint, names: Mapping[str, str], config: HeadConfig
) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]:
    """Return which of the target's ids the head's rows stand for, ascending, and their order."""
    rows, vocabulary = config.layer.head_rows, config.layer.vocabulary
    assert rows is not None
    if TO_TARGET not in names:
        if rows == vocabulary:
            return None, None
        raise MissingError(
            f"{folder.path} has no tensor '{TO_TARGET}', which says what the {rows} tokens of the "
            "head are to the target; fetch the head again."
        )
    info = folder.tensors[names[TO_TARGET]]
    if info.format.name != "i64" or info.shape != (rows,):
        raise BadFileError(
            f"{folder.path}: '{TO_TARGET}' is {info.format.name} of shape {info.shape}; it must be "
            f"i64 of shape ({rows},), one offset for each of the head's tokens."
        )
    offsets = folder.read(names[TO_TARGET]).codes.reshape(-1).view("<i8")
    # Bounded first: a hostile offset may overflow a sum.
    inside = (offsets >= -rows) & (offsets < vocabulary)
    ids = np.arange(rows) + np.where(inside, offsets, -rows - 1)
    outside = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if outside.size:
        raise BadFileError(
            f"{folder.path}: '{TO_TARGET}' maps token {outside[0]} outside the target's "
            f"{vocabulary} tokens; the file is damaged, fetch it again."
        )
    return _in_order(folder.path, ids)


def _in_order(
    path: Path, ids: NDArray[np.int64]
) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]:
    order = np.argsort(ids, kind="stable")
    support = ids[order].astype(np.int32)
    twice = np.flatnonzero(np.diff(support) == 0)
    if twice.size:
        raise BadFileError(
            f"{path}: '{TO_TARGET}' maps two tokens to the target's {support[twice[0]]}; the file "
            "is damaged, fetch it again."
        )
    columns = order.astype(np.int32)
    return support, None if np.array_equal(columns, np.arange(len(columns))) else columns


def _check(path: Path, config: HeadConfig, tensors: Mapping[Slot, QuantTensor]) -> None:
    """Refuse a head with a tensor missing, one too many, or one of another shape."""
    shapes = head_shapes(config)
    stored = {slot: name for name, slot in _stored_names(config.layer.layers).items()}
    for slot, shape in shapes.items():
        name = stored.get(slot, slot)
        if slot not in tensors:
            if slot in (EMBEDDING, HEAD):
                continue
            raise MissingError(
                f"{path} has no tensor for '{name}', which its configuration calls for; fetch the "
                "head again."
            )
        if tensors[slot].shape != shape:
            raise BadFileError(
                f"{path}: the tensor for '{name}' has shape {tensors[slot].shape}, but the "
                f"configuration calls for {shape}; one of them is damaged, fetch the head again."
            )
    extra = sorted(tensors.keys() - shapes.keys())
    if extra:
        raise UnsupportedError(
            f"{path}: the tensor for '{stored.get(extra[0], extra[0])}' has no place in this head "
            "as it is configured."
        )
