"""Number formats, and tensors encoded in them.

Three kinds of format exist:

* `QuantSpec`, an affine integer format. With codes q, scale s and zero point z,
  q = clip(round(x / s) + z) and x' = s (q - z).
* `BlockSpec`, a GGUF type: rows cut into blocks that carry their own scales. F32, F16 and BF16 are
  the block types of one element.
* `Fp8Spec`, 8-bit floats with a float32 scale of the row or of the tensor.

`QuantTensor` holds the bytes of any. Nothing here encodes or decodes; see `registry`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.formats.pack import packed_bytes


class Granularity(Enum):
    """Which elements of a matrix [rows, columns] share one scale."""

    TENSOR = "tensor"
    """All of them: scales [1, 1]."""
    ROW = "row"
    """A row (an output channel of a weight, a token of an activation): scales [rows, 1]."""
    CHANNEL = "channel"
    """A column (an input channel): scales [1, columns]."""
    GROUP = "group"
    """`group_size` consecutive elements of a row: scales [rows, columns / group_size]."""


class ScaleType(Enum):
    """The type scales are stored in; arithmetic on them is float32."""

    F32 = "f32"
    F16 = "f16"


@dataclass(frozen=True)
class QuantSpec:
    """An affine integer format.

    Symmetric codes are signed, in [-2^(bits-1), 2^(bits-1) - 1], with z = 0; asymmetric codes are
    unsigned, in [0, 2^bits - 1], with an integer z in the same range.

    Where it is `ordered`, groups are consecutive in an order of the columns that belongs to the
    tensor ("act-order" of GPTQ: columns were quantized by importance).

    Raises:
        UsageError: bits outside 2..8, a group size where none belongs or that is missing, or an
            order without groups.
    """

    bits: int
    granularity: Granularity
    group_size: int | None = None
    symmetric: bool = True
    scale_type: ScaleType = ScaleType.F16
    ordered: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise UsageError(f"bits is {self.bits}; an affine format has 2 to 8 bits.")
        if (self.granularity is Granularity.GROUP) != (self.group_size is not None):
            raise UsageError(
                f"group_size is {self.group_size} with granularity '{self.granularity.value}'; "
                "give a group size with 'group' and with nothing else."
            )
        if self.group_size is not None and self.group_size < 1:
            raise UsageError(f"group_size is {self.group_size}; it must be at least 1.")
        if self.ordered and self.granularity is not Granularity.GROUP:
            raise UsageError(
                f"The granularity is '{self.granularity.value}' with an order of columns, which "
                "only groups have; leave the order out."
            )

    @property
    def low(self) -> int:
        """The smallest code."""
        return -(1 << (self.bits - 1)) if self.symmetric else 0

    @property
    def high(self) -> int:
        """The largest code."""
        return self.low + (1 << self.bits) - 1

    @property
    def name(self) -> str:
        """A short name such as `int4-g32`, `int4-g32-asym`, `int8-row`, `int8-row-f32`.

        `-f32` is the type of the scales, `-order` an order of columns; `registry.parse_format`
        undoes a name.
        """
        where = f"g{self.group_size}" if self.group_size else self.granularity.value
        zero = "" if self.symmetric else "-asym"
        scales = "" if self.scale_type is ScaleType.F16 else "-f32"
        return f"int{self.bits}-{where}{zero}{scales}{'-order' if self.ordered else ''}"

    @property
    def laid_out(self) -> QuantSpec:
        """The format of the codes as they lie, whatever column each belongs to."""
        return replace(self, ordered=False) if self.ordered else self

    @property
    def rows_independent(self) -> bool:
        """Whether a row's bytes depend on that row alone, so rows can be encoded in pieces."""
        return self.granularity in (Granularity.ROW, Granularity.GROUP)

    def scale_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of the scales of a matrix of this shape.

        Raises:
            UsageError: the columns are not a multiple of the group size.
        """
        rows, columns = shape
        match self.granularity:
            case Granularity.TENSOR:
                return 1, 1
            case Granularity.ROW:
                return rows, 1
            case Granularity.CHANNEL:
                return 1, columns
            case Granularity.GROUP:
                assert self.group_size is not None
                if columns % self.group_size:
                    raise UsageError(
                        f"{columns} columns do not divide into groups of {self.group_size}; "
                        "choose a group size that divides them."
                    )
                return rows, columns // self.group_size

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row's codes, which are packed densely."""
        return packed_bytes(columns, self.bits)

    def bits_per_weight(self, shape: tuple[int, int]) -> float:
        """Return the stored bits of codes, scales, zero points and order over the elements."""
        rows, columns = shape
        scales = int(np.prod(self.scale_shape(shape)))
        scale_bits = 16 if self.scale_type is ScaleType.F16 else 32
        zero_bits = 0 if self.symmetric else 8
        order_bits = 32 / rows if self.ordered else 0
        return self.bits + scales * (scale_bits + zero_bits) / (rows * columns) + order_bits


@dataclass(frozen=True)
class BlockSpec:
    """A GGUF tensor type: `block_size` elements of a row in `block_bytes` bytes."""

    name: str
    """Lower case, as in `q4_0`."""
    type_id: int
    """The number in a GGUF file."""
    block_size: int
    block_bytes: int

    @property
    def rows_independent(self) -> bool:
        """A row's bytes depend on that row alone."""
        return True

    def bits_per_weight(self, shape: tuple[int, int]) -> float:
        """Return the stored bits over the elements; the shape plays no part."""
        return 8.0 * self.block_bytes / self.block_size

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of one row.

        Raises:
            UsageError: the columns are not a multiple of the block size.
        """
        if columns % self.block_size:
            raise UsageError(
                f"{columns} columns do not divide into {self.name} blocks of {self.block_size}; "
                "choose a format whose block divides them."
            )
        return columns // self.block_size * self.block_bytes


@dataclass(frozen=True)
class Fp8Spec:
    """8-bit floats of 4 exponent and 3 mantissa bits (e4m3fn), x' = s e4m3(code).

    Raises:
        UsageError: scales are to belong to channels or groups.
    """

    granularity: Granularity

    def __post_init__(self) -> None:
        if self.granularity not in (Granularity.ROW, Granularity.TENSOR):
            raise UsageError(
                f"fp8_e4m3 with a scale per {self.granularity.value} is not known; its scale "
                "belongs to a row or to the tensor."
            )

    @property
    def name(self) -> str:
        """`fp8_e4m3-row` or `fp8_e4m3-tensor`."""
        return f"fp8_e4m3-{self.granularity.value}"

    @property
    def scale_type(self) -> ScaleType:
        """Always float32."""
        return ScaleType.F32

    @property
    def symmetric(self) -> bool:
        """There are no zero points."""
        return True

    @property
    def rows_independent(self) -> bool:
        """Whether a row's bytes depend on that row alone."""
        return self.granularity is Granularity.ROW

    def scale_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of the scales of a matrix of this shape."""
        return (shape[0] if self.rows_independent else 1), 1

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row's codes: one each."""
        return columns

    def bits_per_weight(self, shape: tuple[int, int]) -> float:
        """Return the stored bits of codes and scales over the elements."""
        return 8 + 32 * self.scale_shape(shape)[0] / (shape[0] * shape[1])


NumberFormat: TypeAlias = QuantSpec | BlockSpec | Fp8Spec


def is_ordered(form: NumberFormat) -> TypeGuard[QuantSpec]:
    """Return whether a format's tensors have an order of columns."""
    return isinstance(form, QuantSpec) and form.ordered


@dataclass(frozen=True, eq=False)
class QuantTensor:
    """A matrix (or vector, shape (1, n)) in a number format.

    `QuantSpec`: `codes` uint8 [rows, ceil(columns * bits / 8)], the values q - spec.low packed by
    `pack`; `scales` float16 or float32 in `spec.scale_shape`; `zeros` uint8 in the same shape, or
    None when symmetric; `order` int32 [columns], the column of the matrix that each column of
    codes belongs to, or None where the format has no order.
    `BlockSpec`: `codes` uint8 [rows, row_bytes], the GGUF bytes; no scales, no zeros.
    `Fp8Spec`: `codes` uint8 [rows, columns], the bytes of the floats; `scales` float32 in
    `spec.scale_shape`; no zeros.
    Arrays may be read-only views of a memory-mapped file.
    """

    spec: NumberFormat
    shape: tuple[int, int]
    codes: NDArray[np.uint8]
    scales: NDArray[np.floating] | None = None
    zeros: NDArray[np.uint8] | None = None
    order: NDArray[np.int32] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, zero points and order together."""
        parts = (self.codes, self.scales, self.zeros, self.order)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def laid_out(self) -> QuantTensor:
        """The codes as they lie, as a tensor without an order: its columns are permuted."""
        if self.order is None:
            return self
        assert isinstance(self.spec, QuantSpec)
        return replace(self, spec=self.spec.laid_out, order=None)

    def in_order(self, order: NDArray[np.int32]) -> QuantTensor:
        """Undo `laid_out`: return the tensor whose columns lie in this order, int32 [columns]."""
        assert isinstance(self.spec, QuantSpec)
        assert self.order is None
        return replace(self, spec=replace(self.spec, ordered=True), order=order)

    def take_rows(self, rows: slice | NDArray[np.integer]) -> QuantTensor:
        """Return chosen rows in the order given; codes, scales and zero points move together.

        A slice gives views.
        """
        codes = self.codes[rows]
        per_row = self.spec.rows_independent
        return QuantTensor(
            self.spec,
            (codes.shape[0], self.shape[1]),
            codes,
            self.scales[rows] if per_row and self.scales is not None else self.scales,
            self.zeros[rows] if per_row and self.zeros is not None else self.zeros,
            self.order,
        )


def join_rows(pieces: list[QuantTensor]) -> QuantTensor:
    """Return the rows of all pieces, whose scales belong to rows and whose columns lie alike."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    scales = [piece.scales for piece in pieces if piece.scales is not None]
    zeros = [piece.zeros for piece in pieces if piece.zeros is not None]
    return QuantTensor(
        first.spec,
        (sum(piece.shape[0] for piece in pieces), first.shape[1]),
        np.concatenate([piece.codes for piece in pieces]),
        np.concatenate(scales) if scales else None,
        np.concatenate(zeros) if zeros else None,
        first.order,
    )


def digest(tensor: QuantTensor) -> str:
    """Return the SHA-256 of codes, scales, zero points and order, in turn, hexadecimal."""
    running = hashlib.sha256()
    for part in (tensor.codes, tensor.scales, tensor.zeros, tensor.order):
        if part is not None:
            running.update(np.ascontiguousarray(part).data)
    return running.hexdigest()
