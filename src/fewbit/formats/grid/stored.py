"""Between a stored tensor and its codes on a grid, exactly, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.formats import blocks, codebooks, kquants
from fewbit.formats.blocks import join_nibbles, split_nibbles
from fewbit.formats.grid.grid import Grid, row_pieces
from fewbit.formats.grid.layout import layout
from fewbit.formats.pack import pack, unpack
from fewbit.formats.spec import BlockSpec, QuantSpec, QuantTensor, ScaleType

_Codes: TypeAlias = NDArray[np.uint8]
_Steps: TypeAlias = NDArray[np.int16]
_Blocks: TypeAlias = NDArray[np.void]


def split(tensor: QuantTensor) -> tuple[NDArray[np.uint8], Grid]:
    """Return a tensor's codes, uint8 [rows, columns] as places in the levels, and its grid.

    Raises:
        UnsupportedError: the format has no grid.
    """
    if isinstance(tensor.spec, QuantSpec):
        return _split_affine(tensor, tensor.spec)
    form = layout(tensor.spec, tensor.shape[1])
    record = _RECORDS[tensor.spec.name]
    stored = np.ascontiguousarray(tensor.codes).view(record.dtype)
    codes = np.empty(tensor.shape, np.uint8)
    for rows in row_pieces(tensor.shape):
        codes[rows] = record.codes(stored[rows]).reshape(-1, tensor.shape[1])
    steps, offset_steps = record.steps(stored)
    field = _offset_field(record)
    offset = None if field is None else stored[field].astype(np.float32)
    return codes, Grid(tensor.spec, form, _first_level(stored), steps, offset, offset_steps)


def join(codes: NDArray[np.uint8], grid: Grid) -> QuantTensor:
    """Return the tensor of codes on a grid; the inverse of `split`.

    Args:
        codes: uint8 [rows, columns], places in `grid.layout.levels`.
        grid: of that shape; its scales must be such as the format stores (`storable`, `fit`).
    """
    shape = (codes.shape[0], codes.shape[1])
    assert shape == (grid.rows, grid.columns)
    if isinstance(grid.form, QuantSpec):
        return _join_affine(codes, grid, grid.form)
    assert isinstance(grid.form, BlockSpec)
    record = _RECORDS[grid.form.name]
    stored = np.empty(grid.scale.shape, record.dtype)
    for rows in row_pieces(shape):
        piece = codes[rows]
        record.put_codes(stored[rows], piece.reshape(len(piece), -1, grid.layout.block))
    _put_first_level(stored, grid.scale)
    field = _offset_field(record)
    if field is not None:
        assert grid.offset is not None
        stored[field] = _half(grid.offset)
    record.put_steps(stored, grid)
    return QuantTensor(grid.form, shape, stored.view(np.uint8).reshape(shape[0], -1))


def _split_affine(tensor: QuantTensor, spec: QuantSpec) -> tuple[_Codes, Grid]:
    form = layout(spec, tensor.shape[1])
    assert tensor.scales is not None
    codes = np.empty(tensor.shape, np.uint8)
    for rows in row_pieces(tensor.shape):
        codes[rows] = unpack(tensor.codes[rows], spec.bits, tensor.shape[1])
    zeros = None if tensor.zeros is None else tensor.zeros.astype(np.int16)
    return codes, Grid(spec, form, tensor.scales.astype(np.float32), offset_steps=zeros)


def _join_affine(codes: _Codes, grid: Grid, spec: QuantSpec) -> QuantTensor:
    shape = (codes.shape[0], codes.shape[1])
    packed = np.empty((shape[0], spec.row_bytes(shape[1])), np.uint8)
    for rows in row_pieces(shape):
        packed[rows] = pack(codes[rows], spec.bits)
    wide = spec.scale_type is ScaleType.F32
    scales = grid.scale if wide else _half(grid.scale)
    zeros = None if grid.offset_steps is None else grid.offset_steps.astype(np.uint8)
    return QuantTensor(spec, shape, packed, scales, zeros)


def _first_level(stored: _Blocks) -> NDArray[np.float32]:
    if "e" in (stored.dtype.names or ()):
        return codebooks.half_of_e8m0(stored["e"])
    scale: NDArray[np.float32] = stored["d"].astype(np.float32)
    return scale


def _put_first_level(stored: _Blocks, scale: NDArray[np.float32]) -> None:
    if "e" in (stored.dtype.names or ()):
        # frexp gives 2^(e-128) as 0.5 * 2^(e-127).
        stored["e"] = np.frexp(scale)[1] + 127
    else:
        stored["d"] = _half(scale)


def _half(scale: NDArray[np.float32]) -> NDArray[np.float16]:
    """Return float16 of values that it holds exactly."""
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    assert np.array_equal(half.astype(np.float32), scale, equal_nan=True)
    return half


@dataclass(frozen=True)
class _Record:
    """How the blocks of a type hold codes and second-level scales; [rows, blocks, ..] each."""

    dtype: np.dtype[np.void]
    codes: Callable[[_Blocks], _Codes]
    put_codes: Callable[[_Blocks, _Codes], None]
    steps: Callable[[_Blocks], tuple[_Steps | None, _Steps | None]]
    put_steps: Callable[[_Blocks, Grid], None]


def _offset_field(record: _Record) -> str | None:
    """Return the name of the field that holds a block's offset or its unit."""
    return next((name for name in record.dtype.names or () if name in ("m", "dmin")), None)


def _no_steps(stored: _Blocks) -> tuple[None, None]:
    return None, None


def _put_no_steps(stored: _Blocks, grid: Grid) -> None:
    assert grid.steps is None


def _nibbles(stored: _Blocks) -> _Codes:
    return split_nibbles(stored["nibbles"])


def _put_nibbles(stored: _Blocks, codes: _Codes) -> None:
    stored["nibbles"] = join_nibbles(codes)


def _signed_bytes(stored: _Blocks) -> _Codes:
    return stored["codes"].view(np.uint8) ^ np.uint8(128)


def _put_signed_bytes(stored: _Blocks, codes: _Codes) -> None:
    stored["codes"] = (codes ^ np.uint8(128)).view(np.int8)


def _mxfp4(stored: _Blocks) -> _Codes:
    """Places in ascending order: -6 .. -0 (codes 15 .. 8), then +0 .. 6 (codes 0 .. 7)."""
    codes = split_nibbles(stored["nibbles"])
    return np.where(codes < 8, codes + np.uint8(8), np.uint8(15) - codes)


def _put_mxfp4(stored: _Blocks, codes: _Codes) -> None:
    stored["nibbles"] = join_nibbles(np.where(codes < 8, np.uint8(15) - codes, codes - np.uint8(8)))


def _pairs(stored: _Blocks) -> _Codes:
    return kquants.bit_pairs(stored["pairs"])


def _put_pairs(stored: _Blocks, codes: _Codes) -> None:
    stored["pairs"] = kquants.join_bit_pairs(codes)


def _runs(stored: _Blocks) -> _Codes:
    return kquants.runs_of_32(stored["nibbles"])


def _put_runs(stored: _Blocks, codes: _Codes) -> None:
    stored["nibbles"] = kquants.join_runs_of_32(codes.reshape(*codes.shape[:2], 8, 32))


def _put_five_of_k(stored: _Blocks, codes: _Codes) -> None:
    kquants.put_five_bits(stored, codes.reshape(*codes.shape[:2], 8, 32))


def _eight_runs(stored: _Blocks) -> _Codes:
    return split_nibbles(stored["nibbles"].reshape(*stored.shape, 8, 16))


def _put_eight_runs(stored: _Blocks, codes: _Codes) -> None:
    runs = join_nibbles(codes.reshape(*codes.shape[:2], 8, 32))
    stored["nibbles"] = runs.reshape(*codes.shape[:2], 128)


def _four_bit_steps(stored: _Blocks) -> tuple[_Steps, _Steps]:
    return _per_row(stored["scales"] & np.uint8(15)), _per_row(stored["scales"] >> np.uint8(4))


def _put_four_bit_steps(stored: _Blocks, grid: Grid) -> None:
    steps, minima = _per_block(grid.steps, stored), _per_block(grid.offset_steps, stored)
    stored["scales"] = (steps | (minima << 4)).astype(np.uint8)


def _six_bit_steps(stored: _Blocks) -> tuple[_Steps, _Steps]:
    steps, minima = kquants.unpack_scales(stored["scales"])
    return _per_row(steps), _per_row(minima)


def _put_six_bit_steps(stored: _Blocks, grid: Grid) -> None:
    steps, minima = _per_block(grid.steps, stored), _per_block(grid.offset_steps, stored)
    stored["scales"] = kquants.pack_scales(steps.astype(np.uint8), minima.astype(np.uint8))


def _q3_steps(stored: _Blocks) -> tuple[_Steps, None]:
    return _per_row(kquants.unpack_q3_scales(stored["scales"])), None


def _put_q3_steps(stored: _Blocks, grid: Grid) -> None:
    stored["scales"] = kquants.pack_q3_scales(_per_block(grid.steps, stored).astype(np.int8))


def _byte_steps(stored: _Blocks) -> tuple[_Steps, None]:
    return _per_row(stored["scales"]), None


def _put_byte_steps(stored: _Blocks, grid: Grid) -> None:
    stored["scales"] = _per_block(grid.steps, stored)


def _iq4_xs_steps(stored: _Blocks) -> tuple[_Steps, None]:
    return _per_row(codebooks.unpack_iq4_xs_scales(stored["low"], stored["high"])), None


def _put_iq4_xs_steps(stored: _Blocks, grid: Grid) -> None:
    steps = _per_block(grid.steps, stored).astype(np.int8)
    stored["low"], stored["high"] = codebooks.pack_iq4_xs_scales(steps)


def _per_row(steps: NDArray[np.integer]) -> _Steps:
    return steps.astype(np.int16).reshape(steps.shape[0], -1)


def _per_block(steps: _Steps | None, stored: _Blocks) -> _Steps:
    assert steps is not None
    return steps.reshape(*stored.shape, -1)


_ONE_LEVEL = (_no_steps, _put_no_steps)
_SIX_BIT = (_six_bit_steps, _put_six_bit_steps)

_RECORDS: Mapping[str, _Record] = MappingProxyType(
    {
        "q4_0": _Record(blocks.Q4_0, _nibbles, _put_nibbles, *_ONE_LEVEL),
        "q4_1": _Record(blocks.Q4_1, _nibbles, _put_nibbles, *_ONE_LEVEL),
        "q5_0": _Record(blocks.Q5_0, blocks.five_bits, blocks.put_five_bits, *_ONE_LEVEL),
        "q5_1": _Record(blocks.Q5_1, blocks.five_bits, blocks.put_five_bits, *_ONE_LEVEL),
        "q8_0": _Record(blocks.Q8_0, _signed_bytes, _put_signed_bytes, *_ONE_LEVEL),
        "q2_k": _Record(kquants.Q2_K, _pairs, _put_pairs, _four_bit_steps, _put_four_bit_steps),
        "q3_k": _Record(
            kquants.Q3_K, kquants.three_bits, kquants.put_three_bits, _q3_steps, _put_q3_steps
        ),
        "q4_k": _Record(kquants.Q4_K, _runs, _put_runs, *_SIX_BIT),
        "q5_k": _Record(kquants.Q5_K, kquants.five_bits, _put_five_of_k, *_SIX_BIT),
        "q6_k": _Record(
            kquants.Q6_K, kquants.six_bits, kquants.put_six_bits, _byte_steps, _put_byte_steps
        ),
        "iq4_nl": _Record(codebooks.IQ4_NL, _nibbles, _put_nibbles, *_ONE_LEVEL),
        "iq4_xs": _Record(
            codebooks.IQ4_XS, _eight_runs, _put_eight_runs, _iq4_xs_steps, _put_iq4_xs_steps
        ),
        "mxfp4": _Record(codebooks.MXFP4, _mxfp4, _put_mxfp4, *_ONE_LEVEL),
    }
)
