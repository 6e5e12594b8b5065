"""GGUF super-blocks of 256 elements: Q2_K to Q6_K, whose scales are themselves quantized.

Layouts (ggml-quants of llama.cpp, checked against the `gguf` package); products in brackets are
rounded to float32:

* Q2_K: sixteen groups of 16 with a 4-bit scale and a 4-bit minimum, x = (d sc) u - (dmin mn);
* Q3_K: sixteen groups of 16 with a 6-bit scale, less 32, x = (d sc) (u - 4);
* Q4_K, Q5_K: eight groups of 32 with a 6-bit scale and a 6-bit minimum, as Q2_K;
* Q6_K: sixteen groups of 16 with an int8 scale, x = (d sc) (u - 32).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.blocks import join_nibbles, split_nibbles

Q2_K = np.dtype([("scales", "u1", 16), ("pairs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("third", "u1", 32), ("pairs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("nibbles", "u1", 128)])
Q5_K = np.dtype(
    [
        ("d", "<f2"),
        ("dmin", "<f2"),
        ("scales", "u1", 12),
        ("fifth", "u1", 32),
        ("nibbles", "u1", 128),
    ]
)
Q6_K = np.dtype([("nibbles", "u1", 128), ("pairs", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


def decode_q2_k(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 84] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(Q2_K)
    scales, minima = blocks["scales"] & np.uint8(15), blocks["scales"] >> np.uint8(4)
    groups = bit_pairs(blocks["pairs"]).reshape(*blocks.shape, 16, 16)
    return _with_minima(blocks, scales, minima, groups)


def decode_q3_k(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 110] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(Q3_K)
    signed = three_bits(blocks).astype(np.float32) - np.float32(4)
    scales = unpack_q3_scales(blocks["scales"]).astype(np.float32)
    step = blocks["d"].astype(np.float32)[..., None] * scales
    values = step[..., None] * signed.reshape(*blocks.shape, 16, 16)
    return values.reshape(values.shape[0], -1)


def decode_q4_k(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 144] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(Q4_K)
    return _with_minima(blocks, *unpack_scales(blocks["scales"]), runs_of_32(blocks["nibbles"]))


def decode_q5_k(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 176] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(Q5_K)
    return _with_minima(blocks, *unpack_scales(blocks["scales"]), five_bits(blocks))


def decode_q6_k(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 210] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(Q6_K)
    scale = blocks["d"].astype(np.float32)[..., None] * blocks["scales"].astype(np.float32)
    signed = six_bits(blocks).astype(np.float32) - np.float32(32)
    values = scale[..., None] * signed.reshape(*scale.shape, 16)
    return values.reshape(values.shape[0], -1)


def unpack_scales(
    packed: NDArray[np.uint8],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the eight 6-bit scales and minima of Q4_K and Q5_K.

    Bytes 0-3 and 4-7 hold scales and minima 0-3 in their low six bits; bytes 8-11 hold the low
    nibbles of scales (low) and minima (high) 4-7, whose upper two bits are the top bits of bytes
    0-3 and 4-7.

    Args:
        packed: uint8 [.., 12].

    Returns:
        Two uint8 arrays [.., 8].
    """
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    top = np.uint8(0x30)
    scales = [first & np.uint8(63), (third & np.uint8(15)) | ((first >> np.uint8(2)) & top)]
    minima = [second & np.uint8(63), (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top)]
    return np.concatenate(scales, axis=-1), np.concatenate(minima, axis=-1)


def unpack_q3_scales(packed: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Return the sixteen scales of Q3_K, -32 to 31.

    Bytes 0-7 hold the low nibbles of scales 0-7 (low) and 8-15 (high); bit pair p of byte 8 + i
    holds the upper two bits of scale 4 p + i.

    Args:
        packed: uint8 [.., 12].

    Returns:
        int8 [.., 16].
    """
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    upper = (packed[..., None, 8:] >> shifts) & np.uint8(3)
    codes = split_nibbles(packed[..., :8]) | (upper.reshape(*packed.shape[:-1], 16) << np.uint8(4))
    return codes.view(np.int8) - np.int8(32)


def _with_minima(
    blocks: NDArray[np.void],
    scales: NDArray[np.uint8],
    minima: NDArray[np.uint8],
    codes: NDArray[np.uint8],
) -> NDArray[np.float32]:
    """Decode (d sc) u - (dmin mn) for codes [rows, blocks, groups, elements of a group]."""
    step = blocks["d"].astype(np.float32)[..., None] * scales.astype(np.float32)
    minimum = blocks["dmin"].astype(np.float32)[..., None] * minima.astype(np.float32)
    values = step[..., None] * codes.astype(np.float32) - minimum[..., None]
    return values.reshape(values.shape[0], -1)


def pack_scales(scales: NDArray[np.uint8], minima: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `unpack_scales`: two uint8 arrays [.., 8] below 64 -> uint8 [.., 12]."""
    low, top = np.uint8(15), np.uint8(0x30)
    first = scales[..., :4] | ((scales[..., 4:] & top) << np.uint8(2))
    second = minima[..., :4] | ((minima[..., 4:] & top) << np.uint8(2))
    third = (scales[..., 4:] & low) | ((minima[..., 4:] & low) << np.uint8(4))
    return np.concatenate([first, second, third], axis=-1)


def pack_q3_scales(scales: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Undo `unpack_q3_scales`: int8 [.., 16] in -32 to 31 -> uint8 [.., 12]."""
    codes = (scales + np.int8(32)).view(np.uint8)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    upper = (codes >> np.uint8(4)).reshape(*codes.shape[:-1], 4, 4) << shifts
    return np.concatenate(
        [join_nibbles(codes & np.uint8(15)), np.bitwise_or.reduce(upper, axis=-2)], axis=-1
    )


def bit_pairs(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the 2-bit codes [rows, blocks, 256] of bytes [rows, blocks, 64].

    Each half of 128 elements has 32 bytes, whose bit pair k belongs to run k of 32.
    """
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    codes: NDArray[np.uint8] = (pairs.reshape(*pairs.shape[:2], 2, 1, 32) >> shifts) & np.uint8(3)
    return codes.reshape(*pairs.shape[:2], 256)


def join_bit_pairs(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `bit_pairs`: codes below 4 [rows, blocks, 256] -> bytes [rows, blocks, 64]."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    halves = codes.reshape(*codes.shape[:2], 2, 4, 32) << shifts
    joined: NDArray[np.uint8] = np.bitwise_or.reduce(halves, axis=-2)
    return joined.reshape(*codes.shape[:2], 64)


def runs_of_32(nibbles: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """32 bytes hold two groups: the low nibbles are the even one, the high nibbles the odd one."""
    codes = split_nibbles(nibbles.reshape(*nibbles.shape[:2], 4, 32))
    return codes.reshape(*nibbles.shape[:2], 8, 32)


def join_runs_of_32(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `runs_of_32`: codes below 16 [rows, blocks, 8, 32] -> bytes [rows, blocks, 128]."""
    joined = join_nibbles(codes.reshape(*codes.shape[:2], 4, 64))
    return joined.reshape(*codes.shape[:2], 128)


def bit_planes(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bits [rows, blocks, 8, 32] of bytes [rows, blocks, 32].

    Bit g of byte i belongs to element i of run g of 32.
    """
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    return (planes[:, :, None, :] >> shifts) & np.uint8(1)


def join_bit_planes(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Undo `bit_planes`: bits [rows, blocks, 8, 32] -> bytes [rows, blocks, 32]."""
    joined: NDArray[np.uint8] = np.bitwise_or.reduce(
        bits << np.arange(8, dtype=np.uint8)[:, None], axis=-2
    )
    return joined


def three_bits(blocks: NDArray[np.void]) -> NDArray[np.uint8]:
    """Codes [rows, blocks, 256] of Q3_K: bit pairs, and a plane of third bits."""
    third = bit_planes(blocks["third"]).reshape(*blocks.shape, 256)
    return bit_pairs(blocks["pairs"]) | (third << np.uint8(2))


def put_three_bits(blocks: NDArray[np.void], codes: NDArray[np.uint8]) -> None:
    """Undo `three_bits`: write codes below 8 [rows, blocks, 256] into blocks of Q3_K."""
    blocks["pairs"] = join_bit_pairs(codes & np.uint8(3))
    blocks["third"] = join_bit_planes((codes >> np.uint8(2)).reshape(*blocks.shape, 8, 32))


def five_bits(blocks: NDArray[np.void]) -> NDArray[np.uint8]:
    """Codes [rows, blocks, 8, 32] of Q5_K: nibbles, and a plane of fifth bits."""
    return runs_of_32(blocks["nibbles"]) | (bit_planes(blocks["fifth"]) << np.uint8(4))


def put_five_bits(blocks: NDArray[np.void], codes: NDArray[np.uint8]) -> None:
    """Undo `five_bits`: write codes below 32 [rows, blocks, 8, 32] into blocks of Q5_K."""
    blocks["nibbles"] = join_runs_of_32(codes & np.uint8(15))
    blocks["fifth"] = join_bit_planes(codes >> np.uint8(4))


def six_bits(blocks: NDArray[np.void]) -> NDArray[np.uint8]:
    """Codes [rows, blocks, 256] of Q6_K.

    Each half of 128 elements has 64 bytes of nibbles (all low ones first) and 32 bytes whose bit
    pairs are the upper bits.
    """
    low = split_nibbles(blocks["nibbles"].reshape(*blocks.shape, 2, 64))
    return low.reshape(*blocks.shape, 256) | (bit_pairs(blocks["pairs"]) << np.uint8(4))


def put_six_bits(blocks: NDArray[np.void], codes: NDArray[np.uint8]) -> None:
    """Undo `six_bits`: write codes below 64 [rows, blocks, 256] into blocks of Q6_K."""
    low = (codes & np.uint8(15)).reshape(*codes.shape[:2], 2, 128)
    blocks["nibbles"] = join_nibbles(low).reshape(*codes.shape[:2], 128)
    blocks["pairs"] = join_bit_pairs(codes >> np.uint8(4))
