"""The table of every known format: names, GGUF ids, and how each is encoded and decoded."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError, UnsupportedError, UsageError
from fewbit.formats import affine, blocks, codebooks, floats, fp8, iq, kquants, ternary
from fewbit.formats.grid import fit, join, nearest
from fewbit.formats.spec import (
    BlockSpec,
    Fp8Spec,
    Granularity,
    NumberFormat,
    QuantSpec,
    QuantTensor,
    ScaleType,
    is_ordered,
)

_Decode = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
_Encode = Callable[[NDArray[np.float32]], NDArray[np.uint8]]


@dataclass(frozen=True)
class BlockFormat:
    """A GGUF type and what fewbit can do with it."""

    spec: BlockSpec
    decode: _Decode | None = None
    encode: _Encode | None = None
    """Rounds to nearest over each block's range."""
    searched: bool = False
    """The scales have no rule: encoding searches for those of least squared error."""


_TABLE = (
    BlockFormat(BlockSpec("f32", 0, 1, 4), floats.decode_f32, floats.encode_f32),
    BlockFormat(BlockSpec("f16", 1, 1, 2), floats.decode_f16, floats.encode_f16),
    BlockFormat(BlockSpec("q4_0", 2, 32, 18), blocks.decode_q4_0, blocks.encode_q4_0),
    BlockFormat(BlockSpec("q4_1", 3, 32, 20), blocks.decode_q4_1, blocks.encode_q4_1),
    BlockFormat(BlockSpec("q5_0", 6, 32, 22), blocks.decode_q5_0, blocks.encode_q5_0),
    BlockFormat(BlockSpec("q5_1", 7, 32, 24), blocks.decode_q5_1, blocks.encode_q5_1),
    BlockFormat(BlockSpec("q8_0", 8, 32, 34), blocks.decode_q8_0, blocks.encode_q8_0),
    BlockFormat(BlockSpec("q8_1", 9, 32, 36)),
    BlockFormat(BlockSpec("q2_k", 10, 256, 84), kquants.decode_q2_k, searched=True),
    BlockFormat(BlockSpec("q3_k", 11, 256, 110), kquants.decode_q3_k, searched=True),
    BlockFormat(BlockSpec("q4_k", 12, 256, 144), kquants.decode_q4_k, searched=True),
    BlockFormat(BlockSpec("q5_k", 13, 256, 176), kquants.decode_q5_k, searched=True),
    BlockFormat(BlockSpec("q6_k", 14, 256, 210), kquants.decode_q6_k, searched=True),
    BlockFormat(BlockSpec("q8_k", 15, 256, 292)),
    BlockFormat(BlockSpec("iq2_xxs", 16, 256, 66), iq.decode_iq2_xxs),
    BlockFormat(BlockSpec("iq2_xs", 17, 256, 74), iq.decode_iq2_xs),
    BlockFormat(BlockSpec("iq3_xxs", 18, 256, 98), iq.decode_iq3_xxs),
    BlockFormat(BlockSpec("iq1_s", 19, 256, 50), iq.decode_iq1_s),
    BlockFormat(BlockSpec("iq4_nl", 20, 32, 18), codebooks.decode_iq4_nl, searched=True),
    BlockFormat(BlockSpec("iq3_s", 21, 256, 110), iq.decode_iq3_s),
    BlockFormat(BlockSpec("iq2_s", 22, 256, 82), iq.decode_iq2_s),
    BlockFormat(BlockSpec("iq4_xs", 23, 256, 136), codebooks.decode_iq4_xs, searched=True),
    BlockFormat(BlockSpec("i8", 24, 1, 1)),
    BlockFormat(BlockSpec("i16", 25, 1, 2)),
    BlockFormat(BlockSpec("i32", 26, 1, 4)),
    BlockFormat(BlockSpec("i64", 27, 1, 8)),
    BlockFormat(BlockSpec("f64", 28, 1, 8)),
    BlockFormat(BlockSpec("iq1_m", 29, 256, 56), iq.decode_iq1_m),
    BlockFormat(BlockSpec("bf16", 30, 1, 2), floats.decode_bf16, floats.encode_bf16),
    BlockFormat(BlockSpec("tq1_0", 34, 256, 54), ternary.decode_tq1_0),
    BlockFormat(BlockSpec("tq2_0", 35, 256, 66), ternary.decode_tq2_0),
    BlockFormat(BlockSpec("mxfp4", 39, 32, 17), codebooks.decode_mxfp4, codebooks.encode_mxfp4),
    BlockFormat(BlockSpec("nvfp4", 40, 64, 36), codebooks.decode_nvfp4),
    BlockFormat(BlockSpec("q1_0", 41, 128, 18), ternary.decode_q1_0),
    BlockFormat(BlockSpec("q2_0", 42, 64, 18), ternary.decode_q2_0),
)

BLOCK_FORMATS: Mapping[str, BlockFormat] = MappingProxyType({f.spec.name: f for f in _TABLE})
"""Every GGUF type by lower-case name; one without `decode` can be inspected but not run."""

GGUF_TYPES: Mapping[int, BlockSpec] = MappingProxyType({f.spec.type_id: f.spec for f in _TABLE})
"""Every GGUF type by the number that files use."""

F32 = BLOCK_FORMATS["f32"].spec
F16 = BLOCK_FORMATS["f16"].spec
BF16 = BLOCK_FORMATS["bf16"].spec
FLOATS = (F32, F16, BF16)

FP8 = tuple(Fp8Spec(where) for where in (Granularity.ROW, Granularity.TENSOR))
"""The FP8 formats."""


_HELD_BY_F16 = ("tq1_0", "tq2_0", "q1_0", "q2_0", "nvfp4")
_HELD_BY_F32 = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
DEQUANTIZED: Mapping[str, BlockSpec] = MappingProxyType(
    {**dict.fromkeys(_HELD_BY_F16, F16), **dict.fromkeys(_HELD_BY_F32, F32)}
)
"""Types that no kernel reads, and the floats that hold their values: an fp16 scale times -1 to 2,
or an e4m3 scale times e2m1 (six bits), is an fp16 number; a scale times a point of IQ's codebooks
has up to 22 bits."""


def is_integer(form: NumberFormat) -> bool:
    """Return whether the weights are integers with scales, so that kernels round their input.

    What is dequantized at load is multiplied as floats are.
    """
    return form not in FLOATS and form not in FP8 and form.name not in DEQUANTIZED


DECODABLE = tuple(f.spec.name for f in _TABLE if f.decode is not None)
ENCODABLE = tuple(f.spec.name for f in _TABLE if f.encode is not None or f.searched)

_AFFINE = re.compile(
    r"int(?P<bits>[0-9]+)-(?:g(?P<group>[0-9]{1,9})|(?P<where>tensor|row|channel))"
    r"(?P<asymmetric>-asym)?(?P<f32>-f32)?(?P<order>-order)?"
)
_SCALED_HELP = (
    "int<2..8>-<g32|row|channel|tensor>[-asym][-f32], such as int4-g32, fp8_e4m3-<row|tensor>"
)
_FP8_NAMES: Mapping[str, Fp8Spec] = MappingProxyType({spec.name: spec for spec in FP8})


def parse_format(name: str) -> NumberFormat:
    """Return the format of a name such as `int4-g32`, `int8-row-asym`, `fp8_e4m3-row`, `q4_0`.

    It undoes `spec.name` for every format.

    Raises:
        UnsupportedError: no format has that name; the message lists what there is.
        UsageError: no string, or an affine format outside 2 to 8 bits or with a group of 0.
    """
    if not isinstance(name, str):
        raise UsageError(
            f"A format's name is {name!r}; give a string such as int4-g32, or the format itself "
            "where one is asked for."
        )
    if name in BLOCK_FORMATS:
        return BLOCK_FORMATS[name].spec
    if name in _FP8_NAMES:
        return _FP8_NAMES[name]
    match = _AFFINE.fullmatch(name)
    if match is None:
        raise UnsupportedError(
            f"The format '{name}' is not known{_near(name)}; there are {_SCALED_HELP}, "
            f"and the GGUF types {', '.join(BLOCK_FORMATS)}."
        )
    group = match["group"]
    return QuantSpec(
        bits=int(match["bits"]),
        granularity=Granularity.GROUP if group else Granularity(match["where"]),
        group_size=int(group) if group else None,
        symmetric=match["asymmetric"] is None,
        scale_type=ScaleType.F32 if match["f32"] else ScaleType.F16,
        ordered=match["order"] is not None,
    )


def encoded_bytes(form: NumberFormat, shape: tuple[int, int]) -> int:
    """Return the bytes of codes, scales, zero points and order of a matrix [rows, columns].

    Raises:
        UsageError: the columns do not divide into the format's groups or blocks.
    """
    rows, columns = shape
    codes = rows * form.row_bytes(columns)
    if isinstance(form, BlockSpec):
        return codes
    scale_rows, scale_columns = form.scale_shape(shape)
    scale_bytes = (2 if form.scale_type is ScaleType.F16 else 4) + (0 if form.symmetric else 1)
    order = 4 * columns if is_ordered(form) else 0
    return codes + scale_rows * scale_columns * scale_bytes + order


def decode(tensor: QuantTensor) -> NDArray[np.float32]:
    """Return the matrix, float32 [rows, columns].

    Scales that are not finite give values that are not finite, as the arithmetic has it.

    Raises:
        UnsupportedError: the format can be named but not decoded; the message lists those that can.
        NumericalError: an FP8 code is NaN.
    """
    with np.errstate(all="ignore"):
        if isinstance(tensor.spec, QuantSpec):
            return affine.decode(tensor)
        if isinstance(tensor.spec, Fp8Spec):
            return fp8.decode(tensor)
        return _decoder(tensor.spec)(tensor.codes)


def decode_rows(tensor: QuantTensor, rows: slice | NDArray[np.integer]) -> NDArray[np.float32]:
    """Return some rows of the matrix, float32 [len(rows), columns], without decoding the others.

    Raises as `decode`.
    """
    return decode(tensor.take_rows(rows))


def encode(x: NDArray[np.float32], form: NumberFormat) -> QuantTensor:
    """Encode a matrix, float32 [rows, columns], by rounding to nearest.

    Scales cover the range of their group; those of Q2_K to Q6_K, IQ4_NL and IQ4_XS, where a group's
    range does not say them, are the ones of least squared error (`grid.fit`).

    Raises:
        NumericalError: a value is not finite, or too large for the format.
        UnsupportedError: there is no encoder for the format; the message lists those there are.
        UsageError: the columns do not divide into the format's groups or blocks.
    """
    x = np.ascontiguousarray(x, dtype=np.float32)
    if isinstance(form, QuantSpec):
        return affine.encode(x, form)
    affine.require_finite(x)
    with np.errstate(all="ignore"):
        encoded = fp8.encode(x, form) if isinstance(form, Fp8Spec) else _encode_blocks(x, form)
        _require_held(decode(encoded), x, form)
    return encoded


def _encode_blocks(x: NDArray[np.float32], form: BlockSpec) -> QuantTensor:
    form.row_bytes(x.shape[1])
    if BLOCK_FORMATS[form.name].searched:
        grid = fit(x, form)
        return join(nearest(x, grid), grid)
    return QuantTensor(form, (x.shape[0], x.shape[1]), _encoder(form)(x))


def _decoder(form: BlockSpec) -> _Decode:
    found = BLOCK_FORMATS[form.name].decode
    if found is None:
        raise UnsupportedError(
            f"Tensors of type {form.name} cannot be decoded; supported: {', '.join(DECODABLE)}."
        )
    return found


def _encoder(form: BlockSpec) -> _Encode:
    found = BLOCK_FORMATS[form.name].encode
    if found is None:
        raise UnsupportedError(
            f"Tensors cannot be encoded as {form.name}; supported: {', '.join(ENCODABLE)}, "
            f"and {_SCALED_HELP}."
        )
    return found


def _require_held(decoded: NDArray[np.float32], x: NDArray[np.float32], form: NumberFormat) -> None:
    beyond = ~np.isfinite(decoded)
    if beyond.any():
        worst = np.where(beyond, np.abs(x), -1).argmax()
        row, column = (int(i) for i in np.unravel_index(worst, x.shape))
        wider = F32.name if form == BF16 else f"{BF16.name} or {F32.name}"
        raise NumericalError(
            f"The value {x[row, column]} at row {row}, column {column} is beyond the range of "
            f"{form.name}; choose {wider}, or rescale the weights."
        )


def _near(name: str) -> str:
    known = [*BLOCK_FORMATS, *_FP8_NAMES, "int4-g32", "int8-g32", "int8-row"]
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean '{near[0]}'?)" if near else ""
