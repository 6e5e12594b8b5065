"""Reading folders of compressed-tensors: each packed weight in the format that holds it.

What is stored for a module (compressed_tensors/compressors of the package 0.20.1):

* pack-quantized: `weight_packed` int32 [outputs, words], codes less -2^(bits-1); `weight_scale`;
  `weight_shape` int64 [2]; `weight_zero_point` packed along the outputs; `weight_g_idx`, the group
  of each input, in files made before August 2026.
* int-quantized: `weight` int8, `weight_scale`, `weight_zero_point` int8.
* float-quantized: `weight` e4m3, `weight_scale` of a row, the tensor or a block.
* nvfp4-pack-quantized: `weight_packed` uint8, two e2m1 a byte; `weight_scale` e4m3 of 16 inputs;
  `weight_global_scale`, which divides. mxfp4-pack-quantized: exponents of 32 inputs instead.
* `input_scale`, `input_zero_point` where inputs have a static scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.arrays import (
    bad_tensor,
    floats_of,
    info_of,
    integers_of,
    require_shape,
)
from fewbit.checkpoint.compressed_config import Arguments, Group, Targets, read_config
from fewbit.checkpoint.compressed_floats import float_weight
from fewbit.checkpoint.compressed_inputs import InputRounding, input_rounding
from fewbit.checkpoint.compressed_kept import kept_scales
from fewbit.checkpoint.detect import CONFIG
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.packed_folder import QUANTIZATION, PackedFolder
from fewbit.checkpoint.packed_weight import (
    IntegerWeight,
    PackedWeight,
    checked_groups,
    integer_weight,
)
from fewbit.errors import UnsupportedError
from fewbit.formats.pack import pack, unpack
from fewbit.formats.words import dense_words, from_padded_words, from_words, padded_words

_PACKED, _SCALE = ".weight_packed", ".weight_scale"
_PARTS = (
    *("weight_packed", "weight", "weight_scale", "weight_shape", "weight_zero_point"),
    *("weight_g_idx", "weight_global_scale", "input_scale", "input_zero_point"),
    *("input_global_scale", "output_scale", "output_zero_point"),
)


@dataclass(frozen=True)
class Module:
    """A packed module: its folder, name and group."""

    folder: HuggingFaceCheckpoint
    name: str
    group: Group
    inputs: InputRounding

    @property
    def weights(self) -> Arguments:
        """How its weight is quantized."""
        assert self.group.weights is not None
        return self.group.weights

    @property
    def parts(self) -> tuple[str, ...]:
        """The stored tensors that belong to the weight."""
        names = (f"{self.name}.{part}" for part in _PARTS)
        return tuple(name for name in names if name in self.folder.tensors)

    def part(self, name: str) -> str:
        """Return the name of a stored tensor."""
        return f"{self.name}.{name}"

    def has(self, name: str) -> bool:
        """Return whether a tensor is stored."""
        return self.part(name) in self.folder.tensors

    def bad(self, part: str, problem: str) -> Exception:
        """Return the error for a stored tensor."""
        return bad_tensor(self.folder, self.part(part), problem)


def open_compressed(folder: HuggingFaceCheckpoint) -> PackedFolder:
    """Return a folder of compressed-tensors with its packed weights in our formats.

    Raises:
        BadFileError, MissingError: configuration and tensors contradict each other, or are damaged.
        UnsupportedError: weights are packed in a way that is not read.
        NumericalError: a scale is NaN or infinite.
    """
    owner = str(folder.path / CONFIG)
    config = read_config(folder.facts.config[QUANTIZATION], owner)
    targets = Targets(config, owner)
    weights = [_weight(folder, name, targets.of(name)) for name in _modules(folder)]
    kept = kept_scales(folder, config.kv_cache_scheme)
    return PackedFolder(folder, weights, kept)


def _modules(folder: HuggingFaceCheckpoint) -> Iterator[str]:
    """Yield the modules with a packed weight."""
    for name, info in folder.tensors.items():
        module, _, part = name.rpartition(".")
        if part == "weight_packed" or (part == "weight" and info.format.name in ("i8", "f8_e4m3")):
            yield module


def _weight(folder: HuggingFaceCheckpoint, name: str, group: Group) -> PackedWeight:
    if group.weights is None:
        raise UnsupportedError(
            f"{folder.path}: the config group of {name!a} does not say how its weight is packed; "
            "supported are groups with weights."
        )
    module = Module(folder, name, group, input_rounding(folder, name, group))
    if group.weights.type == "float":
        return float_weight(folder, name, group, module.parts)
    return integer_weight(_packed(module) if module.has("weight_packed") else _plain(module))


def _packed(module: Module) -> IntegerWeight:
    """Describe a weight of pack-quantized."""
    bits, rows, columns = module.weights.num_bits, *_shape(module)
    if not 2 <= bits <= 8:
        raise UnsupportedError(
            f"{module.folder.path}: {module.name!a} has {bits} bits; supported are 2 to 8."
        )
    dense = _is_dense(module, bits, columns)
    common = _common(module, (rows, columns))
    name = module.part("weight_packed")
    require_shape(
        module.folder,
        name,
        (rows, dense_words(columns, bits) if dense else padded_words(columns, bits)),
    )

    def codes() -> NDArray[np.uint8]:
        return _row_codes(integers_of(module.folder, name, "i32"), bits, columns, dense=dense)

    zeros = _zeros(module, rows, common.groups, dense=dense)
    return replace(common, codes=codes, zeros=zeros)


def _plain(module: Module) -> IntegerWeight:
    """Describe a weight of int-quantized."""
    name = module.part("weight")
    info = info_of(module.folder, name)
    if len(info.shape) != 2:
        raise module.bad("weight", f"has shape {info.shape} where two dimensions are expected")
    rows, columns = info.shape
    bits = module.weights.num_bits
    if not 2 <= bits <= 8:
        raise UnsupportedError(
            f"{module.folder.path}: {module.name!a} has {bits} bits; supported are 2 to 8."
        )
    half = 1 << (bits - 1)

    def codes() -> NDArray[np.uint8]:
        signed = integers_of(module.folder, name, "i8").astype(np.int16)
        if signed.min() < -half or signed.max() >= half:
            raise module.bad("weight", f"has codes beyond {bits} bits")
        return pack((signed + half).astype(np.uint8), bits)

    common = _common(module, (rows, columns))
    zeros = _zeros(module, rows, common.groups, dense=True)
    return replace(common, codes=codes, zeros=zeros)


def _common(module: Module, shape: tuple[int, int]) -> IntegerWeight:
    """Describe what both ways of storing integers share; codes and zero points are yet to come."""
    groups = _groups(module, shape)
    return IntegerWeight(
        name=module.part("weight"),
        parts=module.parts,
        shape=shape,
        bits=module.weights.num_bits,
        groups=groups,
        codes=_not_yet,
        scales=partial(_scales, module, shape[0], groups),
        group_of=_group_of(module, shape[1], groups),
        activations=module.inputs.activations,
        input_scale=module.inputs.scale,
        notes=module.inputs.notes,
    )


def _not_yet() -> NDArray[np.uint8]:
    raise AssertionError("the codes are not described yet")


def _shape(module: Module) -> tuple[int, int]:
    shape = integers_of(module.folder, module.part("weight_shape"), "i64", "i32").reshape(-1)
    packed = info_of(module.folder, module.part("weight_packed")).shape
    if len(shape) != 2 or len(packed) != 2 or shape[0] != packed[0] or not 0 < shape[1] < 1 << 32:
        raise module.bad("weight_shape", f"says {shape[:4].tolist()}, but {packed} words are there")
    return int(shape[0]), int(shape[1])


def _is_dense(module: Module, bits: int, columns: int) -> bool:
    """Tell codes that may straddle words from those that do not, by the number of words."""
    words = info_of(module.folder, module.part("weight_packed")).shape[1]
    dense, padded = words == dense_words(columns, bits), words == padded_words(columns, bits)
    if not dense and not padded:
        raise module.bad("weight_packed", f"has {words} words for {columns} codes of {bits} bits")
    if dense and padded and 32 % bits and columns > 32 // bits:
        raise UnsupportedError(
            f"{module.folder.path}: {columns} codes of {bits} bits in {words} words, as in "
            f"{module.part('weight_packed')!a}, may be packed in two ways; supported are inputs in "
            "multiples of 32, which tell them apart."
        )
    return dense


def _groups(module: Module, shape: tuple[int, int]) -> int:
    """Return the scales of a row, after checking that they are as the strategy says."""
    found = info_of(module.folder, module.part("weight_scale")).shape
    rows, columns = shape
    scope, size = module.weights.scope, module.weights.group_size
    if scope == "tensor" and found in ((), (1,), (1, 1)):
        return 1
    if scope == "channel" and found in ((rows,), (rows, 1)):
        return 1
    if scope == "group" and size is not None and size > 0 and found == (rows, -(-columns // size)):
        return found[1]
    raise module.bad(
        "weight_scale", f"has shape {found}, which a {scope} strategy of a weight {shape} has not"
    )


def _scales(module: Module, rows: int, groups: int) -> NDArray[np.floating]:
    stored = floats_of(module.folder, module.part("weight_scale"))
    per_row = stored.reshape(-1, groups) if stored.size > 1 else stored.reshape(1, 1)
    return np.broadcast_to(per_row, (rows, groups))


def _group_of(module: Module, columns: int, groups: int) -> NDArray[np.integer] | None:
    """Return the group of each input, None where groups are runs of equal length."""
    size = module.weights.group_size
    if module.weights.scope == "group" and size is not None and columns % size:
        return np.arange(columns) // size
    if not module.has("weight_g_idx"):
        return None
    require_shape(module.folder, module.part("weight_g_idx"), (columns,))
    found = integers_of(module.folder, module.part("weight_g_idx"), "i32", "i64")
    return checked_groups(found, groups, partial(module.bad, "weight_g_idx"))


def _zeros(
    module: Module, rows: int, groups: int, *, dense: bool
) -> Callable[[], NDArray[np.uint8]] | None:
    """Return what reads the zero points, None where there are none."""
    if module.weights.symmetric:
        return None
    bits, name = module.weights.num_bits, module.part("weight_zero_point")
    if info_of(module.folder, name).format.name == "i8":
        require_shape(
            module.folder, name, (rows, groups), (rows,) if groups == 1 else (rows, groups)
        )
        return lambda: _signed_zeros(module, bits).reshape(rows, groups)
    words = dense_words(rows, bits) if dense else padded_words(rows, bits)
    require_shape(module.folder, name, (words, groups))

    def packed() -> NDArray[np.uint8]:
        stored = integers_of(module.folder, name, "i32").T
        return unpack(_row_codes(stored, bits, rows, dense=dense), bits, rows).T

    return packed


def _signed_zeros(module: Module, bits: int) -> NDArray[np.uint8]:
    half = 1 << (bits - 1)
    stored = integers_of(module.folder, module.part("weight_zero_point"), "i8").astype(np.int16)
    if stored.min() < -half or stored.max() >= half:
        raise module.bad("weight_zero_point", f"has zero points beyond {bits} bits")
    zeros: NDArray[np.uint8] = (stored + half).astype(np.uint8)
    return zeros


def _row_codes(
    words: NDArray[np.int32], bits: int, columns: int, *, dense: bool
) -> NDArray[np.uint8]:
    read = from_words if dense else from_padded_words
    return read(words, bits, columns)
