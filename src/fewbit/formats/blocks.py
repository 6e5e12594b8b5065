"""GGUF blocks of 32 elements: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

The encoders cover each block's range and give llama.cpp's bytes. Codes follow the scale before its
rounding to fp16, and x / d is x * (1 / d), as there.

Layouts (ggml-quants of llama.cpp, checked against the `gguf` package): d is the scale, m the
minimum, both fp16. The 16 bytes of 4-bit codes hold element i in the low nibble of byte i and
element 16 + i in its high nibble; the fifth bits are one little-endian uint32, bit i for element i.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 32

Q4_0 = np.dtype([("d", "<f2"), ("nibbles", "u1", 16)])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("nibbles", "u1", 16)])
Q5_0 = np.dtype([("d", "<f2"), ("fifth", "u1", 4), ("nibbles", "u1", 16)])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("fifth", "u1", 4), ("nibbles", "u1", 16)])
Q8_0 = np.dtype([("d", "<f2"), ("codes", "i1", 32)])


def decode_q4_0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode x = d (u - 8); uint8 [rows, blocks * 18] -> float32 [rows, blocks * 32]."""
    blocks = _blocks(codes, Q4_0)
    signed = split_nibbles(blocks["nibbles"]).astype(np.float32) - np.float32(8)
    return _rows(_scale(blocks, "d") * signed)


def decode_q4_1(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode x = d u + m; uint8 [rows, blocks * 20] -> float32 [rows, blocks * 32]."""
    blocks = _blocks(codes, Q4_1)
    unsigned = split_nibbles(blocks["nibbles"]).astype(np.float32)
    return _rows(_scale(blocks, "d") * unsigned + _scale(blocks, "m"))


def decode_q5_0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode x = d (u - 16); uint8 [rows, blocks * 22] -> float32 [rows, blocks * 32]."""
    blocks = _blocks(codes, Q5_0)
    signed = five_bits(blocks).astype(np.float32) - np.float32(16)
    return _rows(_scale(blocks, "d") * signed)


def decode_q5_1(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode x = d u + m; uint8 [rows, blocks * 24] -> float32 [rows, blocks * 32]."""
    blocks = _blocks(codes, Q5_1)
    unsigned = five_bits(blocks).astype(np.float32)
    return _rows(_scale(blocks, "d") * unsigned + _scale(blocks, "m"))


def decode_q8_0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode x = d q; uint8 [rows, blocks * 34] -> float32 [rows, blocks * 32]."""
    blocks = _blocks(codes, Q8_0)
    return _rows(_scale(blocks, "d") * blocks["codes"].astype(np.float32))


def encode_q4_0(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode with d = (value of largest magnitude) / -8 and u = trunc(x / d + 8.5), at most 15.

    An all-zero block has d = 0 and u = 8.

    Args:
        values: finite float32 [rows, blocks * 32].

    Returns:
        uint8 [rows, blocks * 18]; a d beyond fp16 is infinity.
    """
    d, unsigned = _from_the_largest(values, 8)
    blocks = np.empty(unsigned.shape[:2], Q4_0)
    blocks["d"] = d
    blocks["nibbles"] = join_nibbles(unsigned)
    return _bytes(blocks)


def encode_q5_0(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode as Q4_0 with d = (value of largest magnitude) / -16; uint8 [rows, blocks * 22]."""
    d, unsigned = _from_the_largest(values, 16)
    blocks = np.empty(unsigned.shape[:2], Q5_0)
    blocks["d"] = d
    put_five_bits(blocks, unsigned)
    return _bytes(blocks)


def encode_q4_1(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode with m = minimum, d = (maximum - m) / 15, u = trunc((x - m) / d + 0.5).

    A constant block has d = 0 and u = 0. Returns uint8 [rows, blocks * 20].
    """
    d, m, unsigned = _from_the_range(values, 15)
    blocks = np.empty(unsigned.shape[:2], Q4_1)
    blocks["d"], blocks["m"] = d, m
    blocks["nibbles"] = join_nibbles(unsigned)
    return _bytes(blocks)


def encode_q5_1(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode as Q4_1 with d = (maximum - m) / 31; uint8 [rows, blocks * 24]."""
    d, m, unsigned = _from_the_range(values, 31)
    blocks = np.empty(unsigned.shape[:2], Q5_1)
    blocks["d"], blocks["m"] = d, m
    put_five_bits(blocks, unsigned)
    return _bytes(blocks)


def encode_q8_0(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode as llama.cpp does: d = absmax / 127, q = x / d rounded half away from zero.

    As in `encode_q4_0`, the codes follow d before its rounding to fp16.

    Args:
        values: finite float32 [rows, blocks * 32].

    Returns:
        uint8 [rows, blocks * 34]; a d beyond fp16 is infinity.
    """
    groups = values.reshape(values.shape[0], -1, BLOCK)
    d = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    blocks = np.empty(groups.shape[:2], Q8_0)
    blocks["d"] = d[:, :, 0]
    blocks["codes"] = _round_half_away(groups * _inverse(d)).astype(np.int8)
    return _bytes(blocks)


def split_nibbles(nibbles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the low nibbles of the last axis, then its high ones: [.., n] -> [.., 2 n]."""
    return np.concatenate([nibbles & np.uint8(0x0F), nibbles >> np.uint8(4)], axis=-1)


def join_nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `split_nibbles`: codes below 16, [.., 2 n] -> [.., n]."""
    half = codes.shape[-1] // 2
    return codes[..., :half] | (codes[..., half:] << np.uint8(4))


def five_bits(blocks: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return the codes [.., 32] of Q5_0 and Q5_1: nibbles, and fifth bits."""
    fifth = np.unpackbits(blocks["fifth"], axis=-1, bitorder="little")
    return split_nibbles(blocks["nibbles"]) | (fifth << np.uint8(4))


def put_five_bits(blocks: NDArray[np.void], codes: NDArray[np.uint8]) -> None:
    """Undo `five_bits`: write codes below 32 [.., 32] into blocks of Q5_0 or Q5_1."""
    blocks["nibbles"] = join_nibbles(codes & np.uint8(15))
    blocks["fifth"] = np.packbits(codes >> np.uint8(4), axis=-1, bitorder="little")


def _from_the_largest(
    values: NDArray[np.float32], zero: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Return d [rows, blocks] and codes [rows, blocks, 32] that give the largest value code 0."""
    groups = values.reshape(values.shape[0], -1, BLOCK)
    largest = np.abs(groups).argmax(axis=2, keepdims=True)
    d = np.take_along_axis(groups, largest, axis=2) / np.float32(-zero)
    shifted = np.trunc(groups * _inverse(d) + np.float32(zero + 0.5))
    return d[:, :, 0], shifted.clip(0, 2 * zero - 1).astype(np.uint8)


def _from_the_range(
    values: NDArray[np.float32], last: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]]:
    """Return d and minima [rows, blocks], and codes [rows, blocks, 32] from 0 to `last`."""
    groups = values.reshape(values.shape[0], -1, BLOCK)
    low = groups.min(axis=2, keepdims=True)
    d = (groups.max(axis=2, keepdims=True) - low) / np.float32(last)
    shifted = np.trunc((groups - low) * _inverse(d) + np.float32(0.5))
    return d[:, :, 0], low[:, :, 0], shifted.clip(0, last).astype(np.uint8)


def _blocks(codes: NDArray[np.uint8], layout: np.dtype[np.void]) -> NDArray[np.void]:
    return np.ascontiguousarray(codes).view(layout)


def _scale(blocks: NDArray[np.void], field: str) -> NDArray[np.float32]:
    scale: NDArray[np.float32] = blocks[field].astype(np.float32)[:, :, None]
    return scale


def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.reshape(values.shape[0], -1)


def _bytes(blocks: NDArray[np.void]) -> NDArray[np.uint8]:
    octets: NDArray[np.uint8] = blocks.view(np.uint8).reshape(blocks.shape[0], -1)
    return octets


def _inverse(d: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 / d, and 0 where d is 0 or so small that 1 / d overflows (fp16 stores 0 there)."""
    inverse: NDArray[np.float32] = np.divide(np.float32(1), d)
    inverse[~np.isfinite(inverse)] = 0
    return inverse


def _round_half_away(x: NDArray[np.float32]) -> NDArray[np.float32]:
    magnitude = np.abs(x)
    whole = np.floor(magnitude)
    rounded: NDArray[np.float32] = whole + np.floor(np.float32(2) * (magnitude - whole))
    return np.copysign(rounded, x)
