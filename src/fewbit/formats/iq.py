"""GGUF blocks of 256 elements whose codes are points of lattices: IQ1_S to IQ3_S, decoders only.

Eight elements (four in IQ3) share a code, a place in a codebook (`lattices`); signs lie apart, as
eight bits, or as seven whose parity is the eighth. Every 32 or 16 elements share a scale of three
or four bits, with the block's fp16 d. Products are rounded to float32 in llama.cpp's order.

Layouts: ggml-quants of llama.cpp, checked against the `gguf` package.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.lattices import points

IQ1_S = np.dtype([("d", "<f2"), ("low", "u1", 32), ("high", "<u2", 8)])
IQ1_M = np.dtype([("low", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)])
IQ2_XXS = np.dtype([("d", "<f2"), ("runs", [("codes", "u1", 4), ("signs", "<u4")], 8)])
IQ2_XS = np.dtype([("d", "<f2"), ("codes", "<u2", 32), ("scales", "u1", 8)])
IQ2_S = np.dtype(
    [("d", "<f2"), ("low", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)]
)
IQ3_XXS = np.dtype([("d", "<f2"), ("codes", "u1", 64), ("signs", "<u4", 8)])
IQ3_S = np.dtype(
    [("d", "<f2"), ("low", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)

_HALF = np.float32(0.5)
_DELTA = np.float32(0.125)
"""What all eight elements of a code of IQ1 are moved by, up or down."""


def decode_iq1_s(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 50] -> float32 [rows, blocks * 256].

    Each 16-bit `high` has the upper three bits of four codes, a scale at bit 12, and the direction
    of the shift at bit 15.
    """
    blocks = _blocks(codes, IQ1_S)
    high = blocks["high"]
    steps = (2 * ((high >> 12) & 7) + 1).astype(np.float32)
    scale = _d(blocks)[..., None] * steps
    shift = np.where(high & 0x8000, -_DELTA, _DELTA)
    upper = (high[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    places = blocks["low"].reshape(*high.shape, 4) | (upper << 8)
    return _rows(scale[..., None, None] * (points("iq1")[places] + shift[..., None, None]))


def decode_iq1_m(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 56] -> float32 [rows, blocks * 256].

    The fp16 d is spread over the top four bits of the scales, the first the lowest; below them are
    four 3-bit scales of 16 elements each. A nibble of `high` has a code's upper three bits and the
    direction of its shift.
    """
    blocks = _blocks(codes, IQ1_M)
    packed = blocks["scales"]
    parts = (packed >> 12) << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(parts, axis=-1).astype(np.uint16).view(np.float16)
    three = (packed[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    steps = (2 * three + 1).astype(np.float32).reshape(*packed.shape[:2], 16)
    scale = d.astype(np.float32)[..., None] * steps
    nibbles = (blocks["high"][..., None] >> np.array([0, 4], np.uint8)) & np.uint8(15)
    places = blocks["low"].reshape(nibbles.shape) | ((nibbles & 7).astype(np.uint16) << 8)
    shift = np.where(nibbles & 8, -_DELTA, _DELTA)
    return _rows(scale[..., None, None] * (points("iq1")[places] + shift[..., None]))


def decode_iq2_xxs(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 66] -> float32 [rows, blocks * 256]."""
    blocks = _blocks(codes, IQ2_XXS)
    packed = blocks["runs"]["signs"]
    scale = _d(blocks)[..., None] * (_HALF + _top(packed)) * np.float32(0.25)
    found = points("iq2_xxs")[blocks["runs"]["codes"]]
    return _rows(scale[..., None, None] * found * _parity_signs(_sevens(packed)))


def decode_iq2_xs(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 74] -> float32 [rows, blocks * 256].

    A 16-bit code has the place in its lower nine bits and seven signs above.
    """
    blocks = _blocks(codes, IQ2_XS)
    packed = blocks["codes"]
    scale = _d(blocks)[..., None] * (_HALF + _nibbles(blocks["scales"])) * np.float32(0.25)
    values = points("iq2_xs")[packed & 511] * _parity_signs(packed >> 9)
    return _rows(np.repeat(scale, 2, axis=-1)[..., None] * values)


def decode_iq2_s(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 82] -> float32 [rows, blocks * 256]."""
    blocks = _blocks(codes, IQ2_S)
    upper = (blocks["high"][..., None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    places = blocks["low"] | (upper.reshape(blocks["low"].shape).astype(np.uint16) << 8)
    scale = _d(blocks)[..., None] * (_HALF + _nibbles(blocks["scales"])) * np.float32(0.25)
    values = points("iq2_s")[places] * _signs(blocks["signs"])
    return _rows(np.repeat(scale, 2, axis=-1)[..., None] * values)


def decode_iq3_xxs(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 98] -> float32 [rows, blocks * 256]."""
    blocks = _blocks(codes, IQ3_XXS)
    packed = blocks["signs"]
    scale = _d(blocks)[..., None] * (_HALF + _top(packed)) * np.float32(0.5)
    found = points("iq3_xxs")[blocks["codes"]].reshape(*packed.shape, 4, 8)
    return _rows(scale[..., None, None] * found * _parity_signs(_sevens(packed)))


def decode_iq3_s(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 110] -> float32 [rows, blocks * 256]."""
    blocks = _blocks(codes, IQ3_S)
    upper = (blocks["high"][..., None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1)
    places = blocks["low"] | (upper.reshape(blocks["low"].shape).astype(np.uint16) << 8)
    scale = _d(blocks)[..., None] * (1 + 2 * _nibbles(blocks["scales"]))
    found = points("iq3_s")[places].reshape(*blocks["signs"].shape, 8)
    return _rows(np.repeat(scale, 4, axis=-1)[..., None] * (found * _signs(blocks["signs"])))


def _blocks(codes: NDArray[np.uint8], layout: np.dtype[np.void]) -> NDArray[np.void]:
    return np.ascontiguousarray(codes).view(layout)


def _d(blocks: NDArray[np.void]) -> NDArray[np.float32]:
    d: NDArray[np.float32] = blocks["d"].astype(np.float32)
    return d


def _top(packed: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the scale in the upper four bits, over four times seven signs."""
    return (packed >> np.uint32(28)).astype(np.float32)


def _nibbles(scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the low and the high nibble of each byte in turn: [.., n] -> [.., 2 n]."""
    pairs = np.stack([scales & np.uint8(15), scales >> np.uint8(4)], axis=-1)
    return pairs.reshape(*scales.shape[:-1], -1).astype(np.float32)


def _sevens(packed: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return four times seven bits of each word: [..] -> [.., 4]."""
    return (packed[..., None] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)


def _parity_signs(sevens: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return the eight signs that seven bits stand for: the eighth makes the minuses even."""
    bits = sevens.astype(np.uint8)
    odd = np.bitwise_count(bits) & np.uint8(1)
    return _signs(bits | (odd << np.uint8(7)))


def _signs(octets: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return -1 for each bit that is set, lowest first: [..] -> [.., 8]."""
    bits = np.unpackbits(octets[..., None], axis=-1, bitorder="little")
    return np.float32(1) - np.float32(2) * bits.astype(np.float32)


def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.astype(np.float32, copy=False).reshape(values.shape[0], -1)
