"""Weights of compressed-tensors that are small floats: e4m3, and e2m1 in blocks.

e4m3 with a scale of the row or the tensor runs as it is, and mxfp4 becomes the GGUF type of that
name, value for value. The others have no kernel and are decoded: nvfp4 to bf16, in which models of
its kind compute, e4m3 in blocks to f32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.arrays import bad_tensor, floats_of, info_of, integers_of, require_shape
from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.compressed_config import Arguments, Group
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.packed_weight import PackedWeight, decoded_weight, float_info
from fewbit.errors import UnsupportedError
from fewbit.formats import fp8
from fewbit.formats.blocks import BLOCK, join_nibbles
from fewbit.formats.codebooks import E2M1_DOUBLED, MXFP4
from fewbit.formats.registry import BF16, BLOCK_FORMATS, F32, encoded_bytes
from fewbit.formats.spec import Fp8Spec, Granularity, QuantTensor

_NVFP4_RUN = 16
_NOT_ROUNDED = "its inputs are not rounded to {bits}-bit floats"


@dataclass(frozen=True)
class _Stored:
    """A module's weight, and what is stored for it."""

    folder: HuggingFaceCheckpoint
    module: str
    weights: Arguments
    parts: tuple[str, ...]
    notes: tuple[str, ...]

    def name(self, part: str) -> str:
        return f"{self.module}.{part}"

    def shape(self, part: str) -> tuple[int, int]:
        found = info_of(self.folder, self.name(part)).shape
        if len(found) != 2:
            raise bad_tensor(self.folder, self.name(part), f"has shape {found}, not two dimensions")
        return found[0], found[1]

    def decoded(self, reason: str) -> str:
        return "; ".join((*self.notes, reason))


def float_weight(
    folder: HuggingFaceCheckpoint, module: str, group: Group, parts: tuple[str, ...]
) -> PackedWeight:
    """Return a weight whose codes are floats.

    Raises:
        BadFileError: what is stored has another shape or type than the group says.
        UnsupportedError: floats of another kind; the message says which are read.
    """
    weights, inputs = group.weights, group.input_activations
    assert weights is not None
    notes = () if inputs is None else (_NOT_ROUNDED.format(bits=inputs.num_bits),)
    stored = _Stored(folder, module, weights, parts, notes)
    if weights.num_bits == 8:
        return _e4m3(stored)
    if weights.num_bits == 4 and weights.group_size == _NVFP4_RUN:
        return _nvfp4(stored)
    if weights.num_bits == 4 and weights.group_size == BLOCK:
        return _mxfp4(stored)
    raise UnsupportedError(
        f"{folder.path}: {module!a} has {weights.num_bits}-bit floats in groups of "
        f"{weights.group_size}; supported are fp8 (e4m3), nvfp4 and mxfp4."
    )


def _e4m3(stored: _Stored) -> PackedWeight:
    """Return e4m3 codes, or what they stand for where a scale belongs to less than a row."""
    name, shape = stored.name("weight"), stored.shape("weight")
    scales = info_of(stored.folder, stored.name("weight_scale"))
    rows = shape[0]
    match stored.weights.scope:
        case "tensor" if scales.shape in ((), (1,), (1, 1)):
            spec = Fp8Spec(Granularity.TENSOR)
        case "channel" if scales.shape in ((rows,), (rows, 1)):
            spec = Fp8Spec(Granularity.ROW)
        case "block" | "group":
            return _e4m3_blocks(stored, name, shape)
        case scope:
            raise bad_tensor(
                stored.folder,
                scales.name,
                f"has shape {scales.shape}, which a {scope} strategy of a weight {shape} has not",
            )

    def make() -> QuantTensor:
        codes = integers_of(stored.folder, name, "f8_e4m3")
        scale = floats_of(stored.folder, scales.name).astype(np.float32)
        return QuantTensor(spec, shape, codes, scale.reshape(spec.scale_shape(shape)))

    note = "; ".join(stored.notes)
    info = TensorInfo(name, spec, shape, encoded_bytes(spec, shape), note=note)
    return PackedWeight(info, stored.parts, make)


def _e4m3_blocks(stored: _Stored, name: str, shape: tuple[int, int]) -> PackedWeight:
    """Return e4m3 codes times the scale of their block [height, width], or exponents (mxfp8)."""
    height, width = _block(stored)
    scale_name = stored.name("weight_scale")
    rows, columns = shape
    require_shape(stored.folder, scale_name, (-(-rows // height), -(-columns // width)))

    def values() -> NDArray[np.float32]:
        codes = integers_of(stored.folder, name, "f8_e4m3")
        fp8.require_numbers(QuantTensor(Fp8Spec(Granularity.ROW), shape, codes))
        scales = _block_scales(stored, scale_name)
        spread = scales.repeat(height, axis=0)[:rows].repeat(width, axis=1)[:, :columns]
        decoded: NDArray[np.float32] = fp8.VALUES[codes] * spread
        return decoded

    note = stored.decoded("no kernel reads e4m3 with scales of blocks, so it is decoded to f32")
    return decoded_weight(float_info(name, F32, shape, note), stored.parts, values)


def _block(stored: _Stored) -> tuple[int, int]:
    weights = stored.weights
    sizes = (1, weights.group_size or 0) if weights.scope == "group" else weights.block_structure
    if sizes is None or min(sizes) < 1:
        raise bad_tensor(
            stored.folder, stored.name("weight"), f"has no size of its blocks, but {sizes}"
        )
    return sizes


def _block_scales(stored: _Stored, name: str) -> NDArray[np.float32]:
    if info_of(stored.folder, name).format.name in ("u8", "f8_e8m0"):
        exponents = integers_of(stored.folder, name, "u8", "f8_e8m0").astype(np.int32)
        return np.ldexp(np.float32(1), exponents - 127)
    return floats_of(stored.folder, name).astype(np.float32)


def _nvfp4(stored: _Stored) -> PackedWeight:
    """Return e2m1 codes times e4m3 scales over the scale of the tensor."""
    shape = _fp4_shape(stored, _NVFP4_RUN)

    def values() -> NDArray[np.float32]:
        codes = integers_of(stored.folder, stored.name("weight_scale"), "f8_e4m3")
        whole = floats_of(stored.folder, stored.name("weight_global_scale")).reshape(-1)
        if len(whole) != 1 or not 0 < float(whole[0]) < float("inf"):
            raise bad_tensor(
                stored.folder,
                stored.name("weight_global_scale"),
                f"holds {whole[:4].tolist()}, not one positive number",
            )
        scales = fp8.VALUES[codes] / whole.astype(np.float32)
        elements = E2M1_DOUBLED[_fp4_codes(stored)].astype(np.float32) * np.float32(0.5)
        decoded: NDArray[np.float32] = elements * scales.repeat(_NVFP4_RUN, axis=1)
        return decoded

    note = stored.decoded("no kernel reads nvfp4, so it is decoded to bf16")
    info = float_info(stored.name("weight"), BF16, shape, note)
    return decoded_weight(info, stored.parts, values)


def _mxfp4(stored: _Stored) -> PackedWeight:
    """Return the GGUF type: its exponent is the same, its codes lie in other nibbles."""
    shape, spec = _fp4_shape(stored, BLOCK), BLOCK_FORMATS["mxfp4"].spec

    def make() -> QuantTensor:
        blocks = np.empty((shape[0], shape[1] // BLOCK), MXFP4)
        blocks["e"] = integers_of(stored.folder, stored.name("weight_scale"), "u8", "f8_e8m0")
        blocks["nibbles"] = join_nibbles(_fp4_codes(stored).reshape(*blocks.shape, BLOCK))
        return QuantTensor(spec, shape, blocks.view(np.uint8).reshape(shape[0], -1))

    note = "; ".join(stored.notes)
    info = TensorInfo(stored.name("weight"), spec, shape, encoded_bytes(spec, shape), note=note)
    return PackedWeight(info, stored.parts, make)


def _fp4_shape(stored: _Stored, run: int) -> tuple[int, int]:
    rows, pairs = stored.shape("weight_packed")
    if 2 * pairs % run:
        raise bad_tensor(
            stored.folder,
            stored.name("weight_packed"),
            f"has {2 * pairs} inputs, which do not divide into groups of {run}",
        )
    require_shape(stored.folder, stored.name("weight_scale"), (rows, 2 * pairs // run))
    return rows, 2 * pairs


def _fp4_codes(stored: _Stored) -> NDArray[np.uint8]:
    """Return the codes of two to a byte, the even input in the low nibble."""
    packed = integers_of(stored.folder, stored.name("weight_packed"), "u8")
    codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return codes.reshape(packed.shape[0], -1)
