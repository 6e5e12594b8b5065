"""Reading torchao's safetensors folders: integers in int8 arrays, and e4m3.

The header's metadata describes each tensor by the name of its class and its attributes (torchao
0.18, `prototype/safetensors`); its arrays are called `<module>._weight_qdata`, `_weight_scale` and
`_weight_zero_point`. `IntxUnpackedToInt8Tensor` and `Int8Tensor` have one signed code to a byte,
`Float8Tensor` e4m3. A scale belongs to a block of `block_size`. Classes packed for one GPU kernel
are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.arrays import bad_tensor, floats_of, info_of, integers_of, require_shape
from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.checkpoint.huggingface import HuggingFaceCheckpoint
from fewbit.checkpoint.mapped import quoted
from fewbit.checkpoint.packed_folder import PackedFolder
from fewbit.checkpoint.packed_weight import IntegerWeight, PackedWeight, integer_weight
from fewbit.checkpoint.strict_json import parse_object
from fewbit.errors import BadFileError, UnsupportedError
from fewbit.formats.pack import pack
from fewbit.formats.registry import encoded_bytes
from fewbit.formats.spec import Fp8Spec, Granularity, QuantTensor
from fewbit.records.kernels import Activations

METHOD = "torchao"
NAMES = "tensor_names"
"""The metadata's list of all tensors."""
PLAIN = "Tensor"
INTX, INT8, FLOAT8 = "IntxUnpackedToInt8Tensor", "Int8Tensor", "Float8Tensor"
_READ = (INTX, INT8, FLOAT8)


class Named(msgspec.Struct, frozen=True):
    """An enum's member or a torch dtype, by name."""

    data: str = msgspec.field(name="_data")


class Rounding(msgspec.Struct, frozen=True):
    """How a layer's inputs are rounded."""

    data: dict[str, Any] = msgspec.field(name="_data")


class Attributes(msgspec.Struct, frozen=True):
    """Of a tensor, those that change what it means."""

    block_size: tuple[int, ...] | None = None
    target_dtype: Named | None = None
    activation_quantization: Any = None
    act_quant_kwargs: Rounding | None = None


class Described(msgspec.Struct, frozen=True):
    """A tensor as the metadata describes it."""

    kind: str = msgspec.field(name="_type")
    attributes: Attributes = msgspec.field(name="_data", default=Attributes())
    arrays: tuple[str, ...] = msgspec.field(name="_tensor_data_names", default=())


@dataclass(frozen=True)
class _Stored:
    """A weight, and what is stored for it."""

    folder: HuggingFaceCheckpoint
    name: str
    described: Described

    def part(self, array: str) -> str:
        module, _, last = self.name.rpartition(".")
        return f"{module}._{last}_{array}"

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.part(array) for array in self.described.arrays)

    def bad(self, array: str, problem: str) -> BadFileError:
        return bad_tensor(self.folder, self.part(array), problem)

    def shape(self) -> tuple[int, int]:
        found = info_of(self.folder, self.part("qdata")).shape
        if len(found) != 2:
            raise self.bad("qdata", f"has shape {found} where two dimensions are expected")
        return found[0], found[1]


def open_torchao(folder: HuggingFaceCheckpoint) -> PackedFolder:
    """Return a torchao folder with its quantized weights in our formats.

    Raises:
        BadFileError, MissingError: the metadata and the arrays contradict each other.
        UnsupportedError: a tensor's class is not read; the message lists those that are.
        NumericalError: a scale is NaN or infinite.
    """
    stored = [
        _Stored(folder, name, _described(folder, name, text))
        for name, text in folder.metadata.items()
        if name != NAMES and "." in name
    ]
    return PackedFolder(folder, [_weight(s) for s in stored if s.described.kind != PLAIN])


def _described(folder: HuggingFaceCheckpoint, name: str, text: str) -> Described:
    owner = f"{folder.path}: the description of {quoted(name)}"
    try:
        return msgspec.convert(parse_object(text.encode(), owner), Described)
    except msgspec.ValidationError as error:
        raise BadFileError(
            f"{owner} cannot be read ({error}); get the file again from its publisher."
        ) from None


def _weight(stored: _Stored) -> PackedWeight:
    kind = stored.described.kind
    if kind not in _READ:
        raise UnsupportedError(
            f"{stored.folder.path}: {quoted(stored.name)} is a {kind[:60]!a} of torchao, which is "
            f"not supported; supported are {', '.join(_READ)}."
        )
    if "act_pre_scale" in stored.described.arrays:
        raise UnsupportedError(
            f"{stored.folder.path}: {quoted(stored.name)} wants its inputs scaled (act_pre_scale), "
            "which is not supported; quantize without it."
        )
    return _floats(stored) if kind == FLOAT8 else integer_weight(_integers(stored))


def _integers(stored: _Stored) -> IntegerWeight:
    bits, shape = _bits(stored), stored.shape()
    groups = _groups(stored, shape)
    half = 1 << (bits - 1)
    activations, scale, notes = _inputs(stored)

    def codes() -> NDArray[np.uint8]:
        return pack(_unsigned(stored, "qdata", half), bits)

    return IntegerWeight(
        name=stored.name,
        parts=stored.parts,
        shape=shape,
        bits=bits,
        groups=groups,
        codes=codes,
        scales=partial(_scales, stored, shape[0], groups),
        zeros=_zeros(stored, half, (shape[0], groups)),
        activations=activations,
        input_scale=scale,
        notes=notes,
    )


def _bits(stored: _Stored) -> int:
    target = stored.described.attributes.target_dtype
    if stored.described.kind == INT8:
        return 8
    match = re.fullmatch(r"int([2-8])", target.data) if target else None
    if match is None:
        raise UnsupportedError(
            f"{stored.folder.path}: {quoted(stored.name)} has the type "
            f"{target.data[:20] if target else None!a}; supported are int2 to int8."
        )
    return int(match[1])


def _groups(stored: _Stored, shape: tuple[int, int]) -> int:
    """Return the scales of a row; one scale for all counts as one for each row."""
    rows, columns = shape
    block = stored.described.attributes.block_size
    found = info_of(stored.folder, stored.part("scale")).shape
    if block in ((), (rows, columns)) and found in ((), (1,), (1, 1)):
        return 1
    if block is None or len(block) != 2 or block[0] != 1 or not 0 < block[1] <= columns:
        raise stored.bad("scale", f"belongs to blocks of {block}, not to runs of a row's inputs")
    groups = -(-columns // block[1])
    require_shape(stored.folder, stored.part("scale"), (rows, groups), *_flat(rows, groups))
    return groups


def _flat(rows: int, groups: int) -> tuple[tuple[int, ...], ...]:
    return ((rows,),) if groups == 1 else ()


def _scales(stored: _Stored, rows: int, groups: int) -> NDArray[np.floating]:
    found = floats_of(stored.folder, stored.part("scale"))
    return np.broadcast_to(found.reshape(-1, groups), (rows, groups))


def _zeros(
    stored: _Stored, half: int, shape: tuple[int, int]
) -> Callable[[], NDArray[np.uint8]] | None:
    """Return what reads the zero points, None where all are the middle."""
    if "zero_point" not in stored.described.arrays:
        return None
    if not integers_of(stored.folder, stored.part("zero_point"), "i8").any():
        return None

    def read() -> NDArray[np.uint8]:
        found = _unsigned(stored, "zero_point", half).reshape(-1, shape[1])
        return np.broadcast_to(found, shape)

    return read


def _unsigned(stored: _Stored, array: str, half: int) -> NDArray[np.uint8]:
    signed = integers_of(stored.folder, stored.part(array), "i8").astype(np.int16)
    if signed.min() < -half or signed.max() >= half:
        raise stored.bad(array, f"has values outside {-half} to {half - 1}")
    unsigned: NDArray[np.uint8] = (signed + half).astype(np.uint8)
    return unsigned


def _inputs(stored: _Stored) -> tuple[Activations, float | None, tuple[str, ...]]:
    """Return how a layer's inputs are rounded, the scale of that, and what is done otherwise."""
    attributes = stored.described.attributes
    if attributes.activation_quantization is not None:
        note = "its inputs are rounded to int8 per token without the zero point that is asked for"
        return Activations.TOKEN, None, (note,)
    if attributes.act_quant_kwargs is None:
        return Activations.BF16, None, ()
    if "act_quant_scale" in stored.described.arrays:
        scale = floats_of(stored.folder, stored.part("act_quant_scale")).reshape(-1)
        if len(scale) == 1 and 0 < float(scale[0]) < float("inf"):
            return Activations.STATIC, float(scale[0]), ()
        raise stored.bad("act_quant_scale", f"holds {scale[:4].tolist()}, not one positive number")
    asked = attributes.act_quant_kwargs.data
    where, mapping = _field(asked, "granularity", "_type"), _field(asked, "mapping_type", "_data")
    if (where, mapping) == ("PerRow", "SYMMETRIC"):
        return Activations.TOKEN, None, ()
    note = f"its inputs are rounded to int8 with a scale per token instead of {where}, {mapping}"
    return Activations.TOKEN, None, (note,)


def _field(stated: Mapping[str, Any], name: str, inner: str) -> str:
    """Return a field of a field as short text; what has another shape as it stands."""
    found = stated.get(name)
    return str(found.get(inner) if isinstance(found, Mapping) else found)[:40]


def _floats(stored: _Stored) -> PackedWeight:
    shape = stored.shape()
    if _groups(stored, shape) != 1:
        raise UnsupportedError(
            f"{stored.folder.path}: {quoted(stored.name)} is fp8 with a scale of each block "
            f"{stored.described.attributes.block_size}; supported are rows and the whole tensor."
        )
    one = info_of(stored.folder, stored.part("scale")).shape in ((), (1,), (1, 1))
    spec = Fp8Spec(Granularity.TENSOR if one and shape[0] > 1 else Granularity.ROW)
    asked = stored.described.attributes.act_quant_kwargs
    note = "" if asked is None else "its inputs are not rounded to 8-bit floats"

    def make() -> QuantTensor:
        codes = integers_of(stored.folder, stored.part("qdata"), "f8_e4m3")
        scales = floats_of(stored.folder, stored.part("scale")).astype(np.float32)
        return QuantTensor(spec, shape, codes, scales.reshape(spec.scale_shape(shape)))

    info = TensorInfo(stored.name, spec, shape, encoded_bytes(spec, shape), note=note)
    return PackedWeight(info, stored.parts, make)
