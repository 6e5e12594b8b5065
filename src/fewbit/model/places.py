"""Where a slot's tensor lies in a checkpoint; the experts of a layer may share one tensor.

GGUF files hold a layer's gates in one tensor [experts, width, hidden], its ups in another and its
downs in a third; old ones a tensor for each expert. Hugging Face folders hold a tensor for each
expert and matrix, but what `transformers` has in memory since version 5, and may be told to save,
are two tensors: [experts, 2 width, hidden], gate over up, and [experts, hidden, width].
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.model.config import MixtureConfig
from fewbit.model.families import expert_of, gguf_name
from fewbit.program import Slot


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """Where a slot's tensor lies, and how it becomes the slot's."""

    name: str
    order: NDArray[np.intp] | None = None
    """Stored row (of a vector: element) for each row of the slot; None where they agree."""
    offset: float = 0.0
    """Subtracted from the stored values."""
    shape: tuple[int, ...] = ()
    """What is stored under the name must have; empty: what the slot has."""
    rows: slice | None = None
    """Which rows of the stored tensor, its leading dimensions taken as one, are the slot's: those
    of one expert. None: all."""


def expert_in_gguf(
    mixture: MixtureConfig, hidden: int, slot: Slot, tensors: Collection[str]
) -> StoredWeight:
    """Return the place of an expert's matrix: in the tensor of all experts, or one of its own.

    Args:
        mixture: number and width of the experts.
        hidden: width of the residual stream.
        slot: of an expert.
        tensors: the names of what is stored.
    """
    number, name = _number(slot), gguf_name(slot)
    alone = name.replace("_exps.", f".{number}.")
    if name not in tensors and alone in tensors:
        return StoredWeight(alone)
    down = slot.split(".")[-2] == "down"
    rows, columns = (hidden, mixture.width) if down else (mixture.width, hidden)
    place = slice(number * rows, (number + 1) * rows)
    return StoredWeight(name, shape=(mixture.experts, rows, columns), rows=place)


def fused_huggingface(
    mixture: MixtureConfig, hidden: int, slot: Slot, tensors: Collection[str]
) -> StoredWeight | None:
    """Return the place of a router or an expert's matrix as `transformers` has them in memory.

    None where nothing is stored under those names. Arguments as of `expert_in_gguf`.
    """
    _, layer, *_ = slot.split(".")
    stem = f"model.layers.{layer}.mlp"
    site = slot.split(".")[-2]
    if site == "router":
        return StoredWeight(f"{stem}.gate.weight") if f"{stem}.gate.weight" in tensors else None
    name = f"{stem}.experts.{'down_proj' if site == 'down' else 'gate_up_proj'}"
    if expert_of(slot) is None or name not in tensors:
        return None
    return _fused(name, mixture, hidden, _number(slot), site)


def _fused(name: str, mixture: MixtureConfig, hidden: int, number: int, site: str) -> StoredWeight:
    width, experts = mixture.width, mixture.experts
    if site == "down":
        rows = slice(number * hidden, (number + 1) * hidden)
        return StoredWeight(name, shape=(experts, hidden, width), rows=rows)
    start = 2 * number * width + (width if site == "up" else 0)
    return StoredWeight(name, shape=(experts, 2 * width, hidden), rows=slice(start, start + width))


def _number(slot: Slot) -> int:
    number = expert_of(slot)
    assert number is not None, f"{slot} belongs to no expert"
    return number
