"""Reading AWQ folders (AutoAWQ's "gemm" layout): 4 bits with a zero point for each group.

A module has `qweight` int32 [inputs, outputs / 8] and `qzeros` int32 [groups, outputs / 8], both
packed along the outputs in an order of their own (`words.AWQ_ORDER`), and `scales` [groups,
outputs]. Zero points are stored as they are.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.arrays import bad_tensor, floats_of, info_of, integers_of, require_shape
from fewbit.checkpoint.detect import CONFIG
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.packed_folder import (
    QUANTIZATION,
    PackedFolder,
    require_layout,
    stated_config,
)
from fewbit.checkpoint.packed_weight import IntegerWeight, integer_weight
from fewbit.formats.pack import pack
from fewbit.formats.words import unpack_awq

METHOD = "awq"
GEMM = "gemm"
"""The layout that is read; `gemv` and others are packed otherwise."""

_QWEIGHT = ".qweight"
_BITS = 4


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The `quantization_config` of AWQ; what does not change the layout is not read."""

    bits: Literal[4] = 4
    group_size: int = 128
    zero_point: bool = True
    version: str = GEMM


def open_awq(folder: HuggingFaceCheckpoint) -> PackedFolder:
    """Return an AWQ folder with its packed weights in our formats.

    Raises:
        BadFileError, MissingError: configuration and tensors contradict each other.
        UnsupportedError: another layout than gemm.
        NumericalError: a scale is NaN or infinite.
    """
    config = _read_config(folder)
    modules = (n.removesuffix(_QWEIGHT) for n in folder.tensors if n.endswith(_QWEIGHT))
    return PackedFolder(folder, [integer_weight(_weight(folder, m, config)) for m in modules])


def _read_config(folder: HuggingFaceCheckpoint) -> Config:
    owner = folder.path / CONFIG
    config = stated_config(folder.facts.config[QUANTIZATION], Config, "AWQ", owner)
    require_layout(config.version.lower(), (GEMM,), "AWQ", owner)
    return config


def _weight(folder: HuggingFaceCheckpoint, module: str, config: Config) -> IntegerWeight:
    packed = info_of(folder, f"{module}.qweight").shape
    if len(packed) != 2:
        raise bad_tensor(folder, f"{module}.qweight", f"has shape {packed}, not two dimensions")
    inputs, outputs = packed[0], 8 * packed[1]
    size = config.group_size if config.group_size > 0 else inputs
    groups = -(-inputs // size)
    require_shape(folder, f"{module}.scales", (groups, outputs))
    if config.zero_point:
        require_shape(folder, f"{module}.qzeros", (groups, packed[1]))

    def codes() -> NDArray[np.uint8]:
        words = integers_of(folder, f"{module}.qweight", "i32")
        return pack(np.ascontiguousarray(unpack_awq(words).T), _BITS)

    def zeros() -> NDArray[np.uint8]:
        return unpack_awq(integers_of(folder, f"{module}.qzeros", "i32")).T

    names = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    return IntegerWeight(
        name=f"{module}.weight",
        parts=tuple(name for name in names if name in folder.tensors),
        shape=(outputs, inputs),
        bits=_BITS,
        groups=groups,
        codes=codes,
        scales=lambda: floats_of(folder, f"{module}.scales").T,
        zeros=zeros if config.zero_point else None,
        group_of=None if inputs % size == 0 else np.arange(inputs) // size,
    )
