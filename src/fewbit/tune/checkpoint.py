"""What a stopped tuning needs to go on as if it had not been stopped: one file, replaced whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fewbit.atomic import write_bytes
from fewbit.formats.spec import QuantTensor
from fewbit.program import Slot

_PARTS = ("codes", "scales", "zeros", "order")


@dataclass(frozen=True, eq=False)
class Standing:
    """Where a tuning stands after a look at the held-out windows."""

    step: int
    """Steps done."""
    kept: int
    """The step of the best values; 0 for the start."""
    stale: int
    """Looks since then."""
    trajectory: tuple[tuple[int, float], ...]
    """Steps and divergences of all looks."""

    @property
    def least(self) -> float:
        """The least divergence seen."""
        return min(value for _, value in self.trajectory)

    @property
    def setbacks(self) -> int:
        """How many looks found no less than all before them."""
        values = [value for _, value in self.trajectory]
        before = accumulate(values[:-1], min)
        return sum(value >= least for least, value in zip(before, values[1:], strict=True))

    def after_step(self) -> Standing:
        """Return where it stands one step later."""
        return replace(self, step=self.step + 1)

    def after_look(self, divergence: float, *, better: bool) -> Standing:
        """Return where it stands after a look that found this divergence."""
        return replace(
            self,
            kept=self.step if better else self.kept,
            stale=0 if better else self.stale + 1,
            trajectory=(*self.trajectory, (self.step, divergence)),
        )


def write(
    path: Path,
    key: str,
    standing: Standing,
    state: Mapping[str, Tensor],
    best: Mapping[Slot, QuantTensor],
) -> None:
    """Replace the checkpoint; raises OutputError as `atomic.write_bytes`.

    Args:
        path: the file.
        key: names the job; another one does not read this file.
        standing: how far it is.
        state: everything that is trained, with its moments.
        best: the tensors with the least held-out divergence; empty where that is the start.
    """
    kept = {f"best/{slot}/{part}": array for slot, part, array in _arrays(best)}
    note = {"key": key, "standing": json.dumps(vars(standing))}
    write_bytes(path, save({**state, **kept}, metadata=note))


def read(
    path: Path, key: str, state: Mapping[str, Tensor], start: Mapping[Slot, QuantTensor]
) -> tuple[Standing, dict[Slot, QuantTensor]] | None:
    """Fill `state` from a checkpoint and return where it stood and the best tensors.

    Returns:
        None where there is no checkpoint of this job; a damaged one counts as none.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            note = file.metadata() or {}
            stored = set(file.keys())
            if note.get("key") != key or not state.keys() <= stored:
                return None
            with torch.no_grad():
                for name, part in state.items():
                    part.copy_(file.get_tensor(name))
            best = {name: file.get_tensor(name) for name in stored - state.keys()}
            return _standing(note["standing"]), _tensors(start, best)
    except (SafetensorError, OSError):
        return None


def _standing(text: str) -> Standing:
    found = json.loads(text)
    trajectory = tuple((int(step), float(value)) for step, value in found["trajectory"])
    return Standing(found["step"], found["kept"], found["stale"], trajectory)


def _arrays(tensors: Mapping[Slot, QuantTensor]) -> list[tuple[Slot, str, Tensor]]:
    found = []
    for slot, tensor in tensors.items():
        for part in _PARTS:
            array = getattr(tensor, part)
            if array is not None:
                found.append((slot, part, torch.from_numpy(np.array(array))))
    return found


def _tensors(
    start: Mapping[Slot, QuantTensor], arrays: Mapping[str, Tensor]
) -> dict[Slot, QuantTensor]:
    """Return tensors like those of the start, made of named arrays; none where there are none."""
    if not arrays:
        return {}

    def part(slot: Slot, name: str) -> NDArray[np.generic] | None:
        found = arrays.get(f"best/{slot}/{name}")
        return None if found is None else found.numpy()

    return {
        slot: QuantTensor(like.spec, like.shape, *(part(slot, name) for name in _PARTS))  # type: ignore[arg-type]
        for slot, like in start.items()
    }
