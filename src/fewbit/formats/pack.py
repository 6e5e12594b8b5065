"""Dense bit packing: code i of a row occupies bits [i * bits, (i + 1) * bits), lowest bit first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_RUN = 8
"""Codes packed at once: eight codes of b bits fill exactly b bytes, and at most one uint64."""
_PIECE = 1 << 18
"""Codes taken in another order at once: their unpacked bytes stay in the cache."""


def packed_bytes(columns: int, bits: int) -> int:
    """Return the bytes of one packed row, ceil(columns * bits / 8)."""
    return -(-columns * bits // 8)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes below 2^bits.

    Args:
        codes: uint8 [rows, columns].
        bits: 1 to 8.

    Returns:
        uint8 [rows, ceil(columns * bits / 8)]; bits after a row's last code are zero.
    """
    rows, columns = codes.shape
    assert codes.size == 0 or int(codes.max()) < 1 << bits
    if 8 % bits == 0:
        return _pack_whole(codes, bits)
    runs = -(-columns // _RUN)
    words: NDArray[np.unsignedinteger] = np.zeros((rows, runs * _RUN), np.uint8)
    words[:, :columns] = codes
    # Neighbours are joined three times: codes to pairs, to fours, to eights.
    for joined, kind in ((1, np.uint16), (2, np.uint32), (4, np.uint64)):
        wide: NDArray[np.unsignedinteger] = words.astype(kind)
        words = wide[:, 0::2] | np.left_shift(wide[:, 1::2], joined * bits)
    octets = words.astype("<u8", copy=False).view(np.uint8).reshape(rows, runs, 8)[:, :, :bits]
    packed = octets.reshape(rows, runs * bits)[:, : packed_bytes(columns, bits)]
    return np.ascontiguousarray(packed)


def unpack(packed: NDArray[np.uint8], bits: int, columns: int) -> NDArray[np.uint8]:
    """Undo `pack`: return the codes, uint8 [rows, columns].

    `packed` is uint8 [rows, ceil(columns * bits / 8)]; bits after a row's last code are ignored.
    """
    rows, width = packed.shape
    assert width == packed_bytes(columns, bits)
    if 8 % bits == 0:
        return _unpack_whole(packed, bits)[:, :columns]
    runs = -(-columns // _RUN)
    padded = np.zeros((rows, runs * bits), np.uint8)
    padded[:, :width] = packed
    octets = np.zeros((rows, runs, 8), np.uint8)
    octets[:, :, :bits] = padded.reshape(rows, runs, bits)
    words = octets.view("<u8").astype(np.uint64, copy=False)
    codes = (words >> _shifts(bits)) & np.uint64((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(rows, runs * _RUN)[:, :columns]


def take_columns(
    packed: NDArray[np.uint8], bits: int, order: NDArray[np.integer]
) -> NDArray[np.uint8]:
    """Return packed rows whose column j is column order[j]; `order` is [columns], of all of them.

    `packed` is uint8 [rows, ceil(columns * bits / 8)].
    """
    taken = np.empty_like(packed)
    step = max(1, _PIECE // len(order))
    for start in range(0, len(packed), step):
        rows = slice(start, start + step)
        taken[rows] = pack(np.take(unpack(packed[rows], bits, len(order)), order, axis=1), bits)
    return taken


def _pack_whole(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Pack codes of which a byte has a whole number."""
    rows, columns = codes.shape
    packed = np.zeros((rows, packed_bytes(columns, bits)), np.uint8)
    for place in range(8 // bits):
        part = codes[:, place :: 8 // bits]
        packed[:, : part.shape[1]] |= part << np.uint8(bits * place)
    return packed


def _unpack_whole(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Undo `_pack_whole`, with all codes of the last byte."""
    rows, width = packed.shape
    step = 8 // bits
    codes = np.empty((rows, width * step), np.uint8)
    for place in range(step):
        codes[:, place::step] = (packed >> np.uint8(bits * place)) & np.uint8((1 << bits) - 1)
    return codes


def _shifts(bits: int) -> NDArray[np.uint64]:
    return np.arange(_RUN, dtype=np.uint64) * np.uint64(bits)
