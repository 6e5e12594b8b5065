"""The tensors that compressed-tensors stores for a module, announced and made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.safetensors_write import Part
from fewbit.export.compressed_scheme import INTEGERS, Scheme
from fewbit.formats.affine import integers
from fewbit.formats.blocks import BLOCK, split_nibbles
from fewbit.formats.codebooks import MXFP4
from fewbit.formats.spec import BlockSpec, Fp8Spec, QuantSpec, QuantTensor, ScaleType
from fewbit.formats.words import dense_words, pack_across, to_words

PACKED, SCALE, SHAPE = "weight_packed", "weight_scale", "weight_shape"
ZERO, WEIGHT, INPUT = "weight_zero_point", "weight", "input_scale"


def parts_of(module: str, scheme: Scheme, shape: tuple[int, int]) -> list[Part]:
    """Return the entries of a module's weight [outputs, inputs]."""
    return [Part(f"{module}.{name}", kind, size) for name, kind, size in _entries(scheme, shape)]


def content_of(tensor: QuantTensor, scheme: Scheme) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the data of each entry, by its name without the module's."""
    spec = tensor.spec
    if isinstance(spec, BlockSpec):
        yield from _mxfp4(tensor)
        return
    assert tensor.scales is not None
    yield SCALE, tensor.scales if scheme.form.rows_independent else tensor.scales.reshape(1)
    if isinstance(spec, Fp8Spec):
        yield WEIGHT, tensor.codes
        return
    assert isinstance(spec, QuantSpec)
    if scheme.container == INTEGERS:
        yield WEIGHT, integers(tensor).astype(np.int8)
    else:
        yield from _packed(tensor, spec)
    if scheme.input_scale is not None:
        yield INPUT, np.array([scheme.input_scale], np.float32)


def _packed(tensor: QuantTensor, spec: QuantSpec) -> Iterator[tuple[str, NDArray[Any]]]:
    yield PACKED, to_words(tensor.codes, spec.bits, tensor.shape[1])
    yield SHAPE, np.array(tensor.shape, np.int64)
    if tensor.zeros is not None:
        yield ZERO, pack_across(np.ascontiguousarray(tensor.zeros.T), spec.bits).T


def _mxfp4(tensor: QuantTensor) -> Iterator[tuple[str, NDArray[Any]]]:
    rows, columns = tensor.shape
    blocks = np.ascontiguousarray(tensor.codes).view(MXFP4)
    codes = split_nibbles(blocks["nibbles"]).reshape(rows, columns)
    yield PACKED, codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    yield SCALE, np.ascontiguousarray(blocks["e"])


def _entries(scheme: Scheme, shape: tuple[int, int]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    form, (rows, columns) = scheme.form, shape
    if isinstance(form, BlockSpec):
        yield PACKED, "U8", (rows, columns // 2)
        yield SCALE, "U8", (rows, columns // BLOCK)
        return
    kind = "F16" if form.scale_type is ScaleType.F16 else "F32"
    yield SCALE, kind, form.scale_shape(shape) if form.rows_independent else (1,)
    if isinstance(form, Fp8Spec):
        yield WEIGHT, "F8_E4M3", shape
        return
    if scheme.container == INTEGERS:
        yield WEIGHT, "I8", shape
    else:
        yield PACKED, "I32", (rows, dense_words(columns, form.bits))
        yield SHAPE, "I64", (2,)
        if not form.symmetric:
            yield ZERO, "I32", (dense_words(rows, form.bits), form.scale_shape(shape)[1])
    if scheme.input_scale is not None:
        yield INPUT, "F32", (1,)
