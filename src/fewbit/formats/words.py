"""Codes in 32-bit words, as compressed-tensors, GPTQ and AWQ store them.

A word holds codes lowest bit first, and words are little endian, so a row of dense words is a row
of `pack` filled up to whole words; what differs is the axis that is packed, the order inside a word
and whether codes may straddle words:

* compressed-tensors packs along the input axis, and its zero points along the output axis. 2, 4
  and 8 bits fill words exactly. 3, 5, 6 and 7 are dense since May 2026; before, a word held
  32 // bits codes and its upper bits were empty. The number of words tells which.
* GPTQ packs densely along the input axis, stored transposed; its zero points along the outputs.
* AWQ packs 4-bit codes along the output axis; nibble i of a word is output `AWQ_ORDER[i]` of its
  eight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.pack import pack, packed_bytes, unpack

WORD = 32
"""Bits of a word."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_AWQ_BITS = 4
_AWQ_RUN = WORD // _AWQ_BITS


def dense_words(columns: int, bits: int) -> int:
    """Return the words of a row whose codes may straddle them, ceil(columns * bits / 32)."""
    return -(-columns * bits // WORD)


def padded_words(columns: int, bits: int) -> int:
    """Return the words of a row with 32 // bits codes in each."""
    return -(-columns // (WORD // bits))


def to_words(codes: NDArray[np.uint8], bits: int, columns: int) -> NDArray[np.int32]:
    """Return rows of `pack` in whole words.

    Args:
        codes: uint8 [rows, ceil(columns * bits / 8)], as `pack` gives them.
        bits: 1 to 8.
        columns: codes in a row.

    Returns:
        int32 [rows, ceil(columns * bits / 32)]; bits after a row's last code are zero.
    """
    rows, width = codes.shape
    assert width == packed_bytes(columns, bits)
    octets = np.zeros((rows, 4 * dense_words(columns, bits)), np.uint8)
    octets[:, :width] = codes
    return octets.view("<i4")


def from_words(words: NDArray[np.int32], bits: int, columns: int) -> NDArray[np.uint8]:
    """Return rows of dense words as `pack` has them; undoes `to_words`.

    `words` is int32 [rows, ceil(columns * bits / 32)]. Without a copy where rows fill their words.
    """
    rows, width = words.shape
    assert width == dense_words(columns, bits)
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    return octets.reshape(rows, -1)[:, : packed_bytes(columns, bits)]


def from_padded_words(words: NDArray[np.int32], bits: int, columns: int) -> NDArray[np.uint8]:
    """Return rows of words with 32 // bits codes in each as `pack` has them.

    Args:
        words: int32 [rows, ceil(columns / (32 // bits))].
        bits: 1 to 8.
        columns: codes in a row.
    """
    rows, width = words.shape
    assert width == padded_words(columns, bits)
    shifts = np.arange(WORD // bits, dtype=np.uint32) * np.uint32(bits)
    spread = np.ascontiguousarray(words).view(np.uint32)[:, :, None] >> shifts
    codes = (spread & np.uint32((1 << bits) - 1)).astype(np.uint8)
    return pack(codes.reshape(rows, -1)[:, :columns], bits)


def pack_down(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Pack codes along the first axis, densely.

    Args:
        codes: uint8 [rows, columns], below 2^bits.
        bits: 1 to 8.

    Returns:
        int32 [ceil(rows * bits / 32), columns].
    """
    rows = codes.shape[0]
    return np.ascontiguousarray(to_words(pack(codes.T, bits), bits, rows).T)


def unpack_down(words: NDArray[np.int32], bits: int, rows: int) -> NDArray[np.uint8]:
    """Undo `pack_down`: return the codes, uint8 [rows, columns]."""
    return np.ascontiguousarray(unpack(from_words(words.T, bits, rows), bits, rows).T)


def pack_across(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Pack codes along the last axis, densely: uint8 [rows, columns] -> int32 [rows, words]."""
    return to_words(pack(codes, bits), bits, codes.shape[1])


def unpack_across(words: NDArray[np.int32], bits: int, columns: int) -> NDArray[np.uint8]:
    """Undo `pack_across`: return the codes, uint8 [rows, columns]."""
    return unpack(from_words(words, bits, columns), bits, columns)


def pack_awq(codes: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Pack 4-bit codes along the last axis in AWQ's order.

    Args:
        codes: uint8 [rows, columns], columns a multiple of 8.

    Returns:
        int32 [rows, columns / 8].
    """
    runs = codes.reshape(codes.shape[0], -1, _AWQ_RUN)[:, :, AWQ_ORDER]
    return pack_across(runs.reshape(codes.shape), _AWQ_BITS)


def unpack_awq(words: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Undo `pack_awq`: return the codes, uint8 [rows, 8 * words]."""
    rows, width = words.shape
    stored = unpack_across(words, _AWQ_BITS, width * _AWQ_RUN).reshape(rows, width, _AWQ_RUN)
    return stored[:, :, np.argsort(AWQ_ORDER)].reshape(rows, -1)
