"""GGUF blocks of one fp16 scale and codes of two to four values: TQ1_0, TQ2_0, Q1_0 and Q2_0.

Decoders only; x = d q. Layouts: ggml-quants of llama.cpp, checked against the `gguf` package where
it has them (TQ1_0, TQ2_0).

* TQ1_0: blocks of 256, q in -1 to 1. A byte holds five elements as a fraction of 256 in base 3,
  the first digit first: 32 bytes of elements i, 32 + i, .., 128 + i, then 16 bytes of elements
  160 + i, 176 + i, .., and four bytes of four elements each.
* TQ2_0: blocks of 256, q in -1 to 2, two bits each; a byte of a half has elements i, 32 + i, ...
* Q1_0: blocks of 128, q is 1 where the bit is set, else -1.
* Q2_0: blocks of 64, q in -1 to 2, two bits each, four consecutive elements a byte.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TQ1_0 = np.dtype([("first", "u1", 32), ("second", "u1", 16), ("last", "u1", 4), ("d", "<f2")])
TQ2_0 = np.dtype([("codes", "u1", (2, 32)), ("d", "<f2")])
Q1_0 = np.dtype([("d", "<f2"), ("bits", "u1", 16)])
Q2_0 = np.dtype([("d", "<f2"), ("codes", "u1", 16)])

_TWOS = np.array([0, 2, 4, 6], np.uint8)
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def decode_tq1_0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 54] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(TQ1_0)
    parts = [
        _digits(blocks[field], count) for field, count in (("first", 5), ("second", 5), ("last", 4))
    ]
    return _scaled(blocks, np.concatenate(parts, axis=-1))


def decode_tq2_0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 66] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(TQ2_0)
    pairs = (blocks["codes"][..., None, :] >> _TWOS[:, None]) & np.uint8(3)
    return _scaled(blocks, pairs.reshape(*blocks.shape, 256).astype(np.int8) - np.int8(1))


def decode_q1_0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 18] -> float32 [rows, blocks * 128]."""
    blocks = np.ascontiguousarray(codes).view(Q1_0)
    bits = np.unpackbits(blocks["bits"], axis=-1, bitorder="little").astype(np.int8)
    return _scaled(blocks, np.int8(2) * bits - np.int8(1))


def decode_q2_0(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 18] -> float32 [rows, blocks * 64]."""
    blocks = np.ascontiguousarray(codes).view(Q2_0)
    pairs = (blocks["codes"][..., None] >> _TWOS) & np.uint8(3)
    return _scaled(blocks, pairs.reshape(*blocks.shape, 64).astype(np.int8) - np.int8(1))


def _digits(octets: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """Return the first digits in base 3 of bytes / 256, less 1: [.., n] -> [.., count * n].

    The product with a power wraps round 256, which leaves the fraction; times 3, over 256, is its
    next digit.
    """
    fractions = octets[..., None, :] * _POWERS[:count, None]
    digits = (fractions.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return digits.reshape(*octets.shape[:-1], -1).astype(np.int8) - np.int8(1)


def _scaled(blocks: NDArray[np.void], values: NDArray[np.int8]) -> NDArray[np.float32]:
    scaled = blocks["d"].astype(np.float32)[..., None] * values.astype(np.float32)
    rows: NDArray[np.float32] = scaled.reshape(scaled.shape[0], -1)
    return rows
