"""How compressed-tensors rounds the inputs of a layer, in the roundings that our kernels have."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.checkpoint.arrays import bad_tensor, floats_of
from fewbit.checkpoint.compressed_config import Arguments, Group
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.formats.activations import ACTIVATION_RUN
from fewbit.records.kernels import Activations


@dataclass(frozen=True)
class InputRounding:
    """The rounding of a layer's input; notes say where it is another than asked for."""

    activations: Activations
    scale: float | None = None
    notes: tuple[str, ...] = ()


def input_rounding(folder: HuggingFaceCheckpoint, module: str, group: Group) -> InputRounding:
    """Return how the input of a layer with integer weights is to be rounded.

    Raises:
        BadFileError: a static scale is no single positive number.
        MissingError: it is absent.
    """
    asked = group.input_activations
    found = InputRounding(Activations.BF16) if asked is None else _rounding(folder, module, asked)
    if group.output_activations is None:
        return found
    notes = (*found.notes, "its outputs are not rounded")
    return InputRounding(found.activations, found.scale, notes)


def _rounding(folder: HuggingFaceCheckpoint, module: str, asked: Arguments) -> InputRounding:
    if asked.type == "float":
        note = f"its inputs are rounded to bf16 instead of {asked.num_bits}-bit floats"
        return InputRounding(Activations.BF16, None, (note,))
    if asked.num_bits == 8 and asked.symmetric:
        if not asked.dynamic and asked.scope == "tensor":
            return InputRounding(Activations.STATIC, _input_scale(folder, module))
        if asked.dynamic and asked.scope == "token":
            return InputRounding(Activations.TOKEN)
        if asked.dynamic and asked.scope == "group" and asked.group_size == ACTIVATION_RUN:
            return InputRounding(Activations.INT8)
    kind = "dynamic" if asked.dynamic else "static"
    zero = "" if asked.symmetric else " with a zero point"
    note = (
        f"its inputs are rounded to int8 with a scale per token instead of {kind} "
        f"int{asked.num_bits} per {asked.scope}{zero}"
    )
    return InputRounding(Activations.TOKEN, None, (note,))


def _input_scale(folder: HuggingFaceCheckpoint, module: str) -> float:
    name = f"{module}.input_scale"
    stored = floats_of(folder, name).reshape(-1)
    if len(stored) != 1 or not 0 < float(stored[0]) < float("inf"):
        raise bad_tensor(folder, name, f"holds {stored[:4].tolist()}, not one positive number")
    return float(stored[0])
