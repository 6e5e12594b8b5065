"""From a stored tensor to the tiles that the native kernels read.

What each format becomes (the bytes are described in native/src/linear/layout.h):

    int2 .. int8               w2.sym .. w8.sym, w2.asym .. w8.asym (with a zero point a group)
    q4_0, q5_0, q8_0           w4.sym, w5.sym, w8.sym
    q4_1, q5_1                 w4.min, w5.min          each group has a minimum
    q4_k, q5_k                 w4.two, w5.two          scales and minima of two levels
    q2_k                       w2.two                  the same, for each 16 inputs
    q3_k, q6_k                 w3.half, w6.half        a signed scale for each 16 inputs
    iq4_nl, iq4_xs             w4.nl, w4.xs            codes stand for uneven values
    mxfp4                      w4.mx                   codes stand for floats of 4 bits
    f32, f16, bf16             as they are
    fp8_e4m3                   f8e4m3                  a float32 scale for each row
    tq1_0 .. q2_0, nvfp4       f16                     dequantized, every value exact
    iq1_s .. iq3_s             f32                     the same

`Layout.NESTED` makes of w8.sym a w8.nest: the upper and the lower four bits of its codes lie apart,
so that a draft can read the upper ones alone (`upper_half`, weights w4.high).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fewbit._native import PackedArena, PackedMatrix, packed_bytes
from fewbit.errors import KernelError
from fewbit.formats.fp8 import require_numbers
from fewbit.formats.nested import has_halves
from fewbit.formats.registry import DEQUANTIZED, decode_rows
from fewbit.formats.spec import Fp8Spec, Granularity, QuantSpec, QuantTensor, ScaleType

RUN = 32
"""Inputs that share an activation scale; weight groups are multiples of it."""

_BLOCK_WEIGHTS = {
    "q4_0": "w4.sym.g32",
    "q4_1": "w4.min.g32",
    "q5_0": "w5.sym.g32",
    "q5_1": "w5.min.g32",
    "q8_0": "w8.sym.g32",
    "q4_k": "w4.two.g32",
    "q5_k": "w5.two.g32",
    "q2_k": "w2.two.g16",
    "q3_k": "w3.half.g16",
    "q6_k": "w6.half.g16",
    "iq4_nl": "w4.nl.g32",
    "iq4_xs": "w4.xs.g32",
    "mxfp4": "w4.mx.g32",
}
_FLOATS = ("f32", "f16", "bf16")
_EIGHT_BITS = "w8.sym."
_NESTED = "w8.nest."
_UPPER = "w4.high."
_FP8 = "fp8_e4m3"
_PIECE = 1 << 20
"""Elements dequantized at once."""


class Weights(Enum):
    """What the codes of packed weights are, which decides what kernels can multiply with them."""

    INTEGER = "integer"
    FLOAT = "float"


class Layout(Enum):
    """How codes of 8 bits lie once packed; the native packer's name."""

    PLAIN = "plain"
    NESTED = "nested"
    """Upper and lower four bits apart."""


@dataclass(frozen=True)
class PackedForm:
    """How a tensor lies in memory once packed."""

    source: str
    """The native packer's name for the stored format: a GGUF type, or `affine`."""
    weights: str
    """The weights' part of a kernel id, such as `w4.sym.g32`."""
    bits: int = 0
    """Bits of an affine code as stored; 0 otherwise."""
    group: int = 0
    """Inputs that share a scale in an affine format; 0 otherwise."""
    asymmetric: bool = False
    note: str = ""
    """In words, where codes are not run as they are stored."""
    layout: Layout = Layout.PLAIN

    @property
    def kind(self) -> Weights:
        """What the codes are."""
        return Weights.FLOAT if self.source in (*_FLOATS, _FP8) else Weights.INTEGER


def packed_form(tensor: QuantTensor, layout: Layout = Layout.PLAIN) -> PackedForm:
    """Return the form that `pack` gives a tensor; symmetric codes of 8 bits alone can be nested.

    Raises:
        KernelError: no kernel reads the format; the message says why and what would be read.
    """
    reason = obstacle(tensor)
    if reason is not None:
        raise KernelError(f"A tensor of format {tensor.spec.name} cannot be packed: {reason}.")
    form = _plain_form(tensor)
    if layout is Layout.NESTED and has_halves(tensor.spec):
        weights = form.weights.replace(_EIGHT_BITS, _NESTED, 1)
        return replace(form, weights=weights, layout=layout)
    return form


def layout_of(kernel: str) -> Layout:
    """Return the layout of the weights that a kernel reads, by its id."""
    return Layout.NESTED if kernel.startswith(_NESTED) else Layout.PLAIN


def upper_half(packed: PackedMatrix, rows: int | None = None) -> PackedMatrix:
    """Return the upper four bits of the first rows of a nested matrix, in the same memory.

    A code c is read as 16 (floor(c / 16) + 15/32): the middle of those it may be, -128 to 127.

    Args:
        packed: a matrix packed as `Layout.NESTED`.
        rows: None for all.
    """
    return packed.upper_half(packed.rows if rows is None else rows)


def upper_weights(weights: str) -> str:
    """Return the weights' part of a kernel id for the upper half of nested weights."""
    return weights.replace(_NESTED, _UPPER, 1)


def _plain_form(tensor: QuantTensor) -> PackedForm:
    if isinstance(tensor.spec, QuantSpec):
        return _affine_form(tensor.spec, tensor.shape[1])
    if isinstance(tensor.spec, Fp8Spec):
        return PackedForm(_FP8, "f8e4m3")
    name = tensor.spec.name
    if name in DEQUANTIZED:
        floats = DEQUANTIZED[name].name
        note = f"no kernel reads {name}, so it is dequantized to {floats} at load"
        return PackedForm(floats, floats, note=note)
    return PackedForm(name, _BLOCK_WEIGHTS.get(name, name))


def obstacle(tensor: QuantTensor) -> str | None:
    """Return why no kernel reads the tensor, or None where one does."""
    spec, (rows, columns) = tensor.spec, tensor.shape
    if rows == 0 or columns == 0:
        return f"its shape is {rows} x {columns}"
    if isinstance(spec, QuantSpec):
        return _affine_obstacle(spec, columns)
    if isinstance(spec, Fp8Spec):
        return None
    if spec.name not in (*_BLOCK_WEIGHTS, *_FLOATS, *DEQUANTIZED):
        known = ", ".join([*_BLOCK_WEIGHTS, *_FLOATS, _FP8])
        return f"no kernel reads {spec.name}; kernels read {known} and affine integers"
    return None


def pack(
    tensor: QuantTensor,
    threads: int = 1,
    arena: PackedArena | None = None,
    layout: Layout = Layout.PLAIN,
) -> PackedMatrix:
    """Pack a tensor into tiles; every weight keeps its exact value.

    Args:
        tensor: [outputs, inputs], in a format for which `obstacle` is None.
        threads: how many threads work at it.
        arena: where the tiles go, beside those of other matrices; None for memory of their own.
        layout: as in `packed_form`.

    Raises:
        KernelError: no kernel reads the format.
        NumericalError: an FP8 code is NaN.
    """
    form = packed_form(tensor, layout)
    if form.source == _FP8:
        return _pack_fp8(tensor, threads, arena)
    if form.source != "affine":
        codes = _dequantized(tensor, form.source) if form.note else tensor.codes
        return PackedMatrix(
            form.source,
            tensor.shape[1],
            codes,
            arena=arena,
            threads=threads,
            form=form.layout.value,
        )
    assert tensor.scales is not None
    scales = np.ascontiguousarray(tensor.scales, np.float16).view(np.uint16)
    zeros = None if tensor.zeros is None else np.ascontiguousarray(tensor.zeros)
    return PackedMatrix(
        form.source,
        tensor.shape[1],
        tensor.codes,
        bits=form.bits,
        group=form.group,
        scales=scales,
        zeros=zeros,
        arena=arena,
        threads=threads,
        form=form.layout.value,
    )


def _dequantized(tensor: QuantTensor, floats: str) -> NDArray[np.uint8]:
    """Return the bytes of a tensor's values as floats that hold them, a few rows at a time."""
    rows, columns = tensor.shape
    values = np.empty((rows, columns), np.float16 if floats == "f16" else np.float32)
    step = max(1, _PIECE // columns)
    for start in range(0, rows, step):
        piece = slice(start, start + step)
        values[piece] = decode_rows(tensor, piece)
    return values.view(np.uint8)


def _pack_fp8(tensor: QuantTensor, threads: int, arena: PackedArena | None) -> PackedMatrix:
    assert tensor.scales is not None
    require_numbers(tensor)
    return PackedMatrix(
        _FP8,
        tensor.shape[1],
        tensor.codes,
        row_scales=np.ascontiguousarray(tensor.scales, np.float32).reshape(-1),
        arena=arena,
        threads=threads,
    )


def size_of(form: PackedForm, shape: tuple[int, int]) -> int:
    """Return the bytes of a packed matrix [rows, columns]: whole tiles of 16 rows."""
    return packed_bytes(
        form.source, *shape, form.bits, form.group, form.asymmetric, form.layout.value
    )


def _affine_form(spec: QuantSpec, columns: int) -> PackedForm:
    group = spec.group_size or columns
    kind = "sym" if spec.symmetric else "asym"
    where = f"g{group}" if spec.group_size else "row"
    return PackedForm(
        "affine",
        f"w{spec.bits}.{kind}.{where}",
        bits=spec.bits,
        group=group,
        asymmetric=not spec.symmetric,
    )


def _affine_obstacle(spec: QuantSpec, columns: int) -> str | None:
    if spec.scale_type is not ScaleType.F16:
        return f"its scales are {spec.scale_type.value}; kernels read f16 scales"
    if spec.granularity is Granularity.CHANNEL:
        return "a scale per input channel cannot be taken out of an integer dot product"
    if columns % RUN:
        return f"its {columns} columns are not a multiple of {RUN}"
    if spec.group_size is not None and spec.group_size % RUN:
        return f"its groups of {spec.group_size} inputs are not a multiple of {RUN}"
    return None
