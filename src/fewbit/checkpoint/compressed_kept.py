"""Static scales of keys and values in folders of compressed-tensors.

`<attention>.k_scale` and `v_scale` hold one number each (with the strategy "tensor" of
`kv_cache_scheme`). They stay with the model, one for each head; what a model is run with, `--kv`
says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fewbit.checkpoint.arrays import bad_tensor, floats_of
from fewbit.checkpoint.compressed_config import Arguments
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.packed_folder import NOTHING_KEPT, KeptScales
from fewbit.records.kv import KvForm, KvScales

_PART = re.compile(r"model\.layers\.([0-9]{1,6})\.self_attn\.([kv])_scale")
_OTHERS = ("q_scale", "k_scale", "v_scale", "k_zero_point", "v_zero_point")


def kept_scales(folder: HuggingFaceCheckpoint, scheme: Arguments | None) -> KeptScales:
    """Return what is stored of keys and values; what has no form here is left out, and said.

    Raises:
        BadFileError: a scale is no single positive number.
    """
    parts = tuple(name for name in folder.tensors if name.rpartition(".")[2] in _OTHERS)
    if not parts:
        return NOTHING_KEPT
    form = _form(scheme)
    found = {
        (match[2], int(match[1])): _number(folder, name)
        for name in parts
        if form is not None and (match := _PART.fullmatch(name))
    }
    if form is not None and len(found) == len(parts):
        scales = _scales(form, found, folder.facts.config)
        if scales is not None:
            return KeptScales(parts, scales)
    kind = f"{scheme.type}{scheme.num_bits} per {scheme.scope}" if scheme else "an unknown type"
    note = (
        f"{len(parts)} stored scales for keys and values in {kind} are left out; what is read is "
        "one positive number for the keys and one for the values of every layer."
    )
    return KeptScales(parts, None, (note,))


def _form(scheme: Arguments | None) -> KvForm | None:
    if scheme is None or scheme.num_bits != 8 or not scheme.symmetric or scheme.scope != "tensor":
        return None
    return KvForm.INT8 if scheme.type == "int" else KvForm.FP8


def _number(folder: HuggingFaceCheckpoint, name: str) -> float:
    stored = floats_of(folder, name).reshape(-1)
    if len(stored) != 1 or not 0 < float(stored[0]) < float("inf"):
        raise bad_tensor(folder, name, f"holds {stored[:4].tolist()}, not one positive number")
    return float(stored[0])


def _scales(
    form: KvForm, found: Mapping[tuple[str, int], float], config: Mapping[str, object]
) -> KvScales | None:
    """Return the scales of every head; None where the layers do not count from 0 on."""
    layers = len(found) // 2
    if set(found) != {(side, layer) for side in "kv" for layer in range(layers)}:
        return None
    heads = config.get("num_key_value_heads", config.get("num_attention_heads"))
    if not isinstance(heads, int) or not 0 < heads < 1 << 16:
        return None
    keys, values = ([(found[side, n],) * heads for n in range(layers)] for side in "kv")
    return KvScales(form=form, keys=tuple(keys), values=tuple(values))
