"""GGUF blocks whose 4-bit codes are places in a table of 16 values: IQ4_NL, IQ4_XS and two floats.

Layouts (ggml-quants of llama.cpp, checked against the `gguf` package). 16 bytes hold 32 codes,
element i in the low nibble of byte i and element 16 + i in its high one.

* IQ4_NL: blocks of 32, an fp16 scale d; x = d values[u].
* IQ4_XS: blocks of 256, an fp16 scale d and for each 32 elements a 6-bit sc, less 32;
  x = (d sc) values[u], the product in brackets rounded to float32.
* MXFP4: blocks of 32 of the OCP Microscaling formats v1.0, e2m1 elements and an e8m0 scale. The
  table has twice the elements' values, so that all are integers, and the scale is 2^(e-128), half
  of the standard's.
* NVFP4: blocks of 64, four runs of 16 with an unsigned e4m3 scale each, before the codes; a run's
  eight bytes hold elements i and 8 + i. The table is MXFP4's, so half of the scale is taken. There
  is no encoder: the format lives off a scale of the whole tensor, which lies elsewhere in a file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.blocks import BLOCK, join_nibbles, split_nibbles

IQ4_NL = np.dtype([("d", "<f2"), ("nibbles", "u1", 16)])
IQ4_XS = np.dtype([("d", "<f2"), ("high", "<u2"), ("low", "u1", 4), ("nibbles", "u1", 128)])
MXFP4 = np.dtype([("e", "u1"), ("nibbles", "u1", 16)])
NVFP4 = np.dtype([("scales", "u1", 4), ("nibbles", "u1", (4, 8))])

IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""The values of IQ4_NL and IQ4_XS: denser about zero, as weights are."""

E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values of e2m1; the sign is the top bit, and minus zero is zero."""

_E2M1_MIDDLES = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)
"""Between neighbours of the doubled magnitudes."""


def decode_iq4_nl(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 18] -> float32 [rows, blocks * 32]."""
    blocks = np.ascontiguousarray(codes).view(IQ4_NL)
    values = IQ4_VALUES[split_nibbles(blocks["nibbles"])].astype(np.float32)
    return _rows(blocks["d"].astype(np.float32)[..., None] * values)


def decode_iq4_xs(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 136] -> float32 [rows, blocks * 256]."""
    blocks = np.ascontiguousarray(codes).view(IQ4_XS)
    runs = split_nibbles(blocks["nibbles"].reshape(*blocks.shape, 8, 16))
    scales = unpack_iq4_xs_scales(blocks["low"], blocks["high"]).astype(np.float32)
    step = blocks["d"].astype(np.float32)[..., None] * scales
    return _rows(step[..., None] * IQ4_VALUES[runs].astype(np.float32))


def unpack_iq4_xs_scales(low: NDArray[np.uint8], high: NDArray[np.uint16]) -> NDArray[np.int8]:
    """Return the eight scales of a block of IQ4_XS, -32 to 31.

    Scale k has its low four bits in nibble k of `low` (low nibble first) and its upper two at bit
    2 k of `high`.

    Args:
        low: uint8 [.., 4].
        high: uint16 [..].

    Returns:
        int8 [.., 8].
    """
    nibbles = np.stack([low & np.uint8(15), low >> np.uint8(4)], axis=-1).reshape(
        *low.shape[:-1], 8
    )
    upper = (high[..., None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    scales: NDArray[np.int8] = (nibbles | (upper.astype(np.uint8) << np.uint8(4))).view(np.int8)
    return scales - np.int8(32)


def pack_iq4_xs_scales(scales: NDArray[np.int8]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Undo `unpack_iq4_xs_scales`: int8 [.., 8] in -32 to 31 -> uint8 [.., 4], uint16 [..]."""
    codes = (scales + np.int8(32)).view(np.uint8)
    nibbles = codes & np.uint8(15)
    upper = (codes >> np.uint8(4)).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16)
    low = nibbles[..., 0::2] | (nibbles[..., 1::2] << np.uint8(4))
    high: NDArray[np.uint16] = np.bitwise_or.reduce(upper, axis=-1)
    return low, high


def decode_mxfp4(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 17] -> float32 [rows, blocks * 32].

    As llama.cpp reads it, e = 255 is one more power of two; the standard calls it NaN.
    """
    blocks = np.ascontiguousarray(codes).view(MXFP4)
    values = E2M1_DOUBLED[split_nibbles(blocks["nibbles"])].astype(np.float32)
    return _rows(half_of_e8m0(blocks["e"])[..., None] * values)


def encode_mxfp4(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Encode as the standard says: 2^(e-127) = 2^floor(log2 absmax) / 4, then the nearest element.

    Values halfway between two elements take the one nearer to zero, and those beyond the largest
    element the largest, as llama.cpp has it. A block of zeros has e = 0.

    Args:
        values: finite float32 [rows, blocks * 32].

    Returns:
        uint8 [rows, blocks * 17].
    """
    groups = values.reshape(values.shape[0], -1, BLOCK)
    _, exponent = np.frexp(np.abs(groups).max(axis=2))  # absmax in [2^(exponent-1), 2^exponent)
    blocks = np.empty(groups.shape[:2], MXFP4)
    blocks["e"] = np.where(groups.any(axis=2), exponent - 3 + 127, 0).clip(0, 254)
    scaled = groups / half_of_e8m0(blocks["e"])[..., None]
    codes = np.searchsorted(_E2M1_MIDDLES, np.abs(scaled), side="left").astype(np.uint8)
    codes |= np.where((scaled < 0) & (codes > 0), np.uint8(8), np.uint8(0))
    blocks["nibbles"] = join_nibbles(codes)
    octets: NDArray[np.uint8] = blocks.view(np.uint8).reshape(blocks.shape[0], -1)
    return octets


def decode_nvfp4(codes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Decode uint8 [rows, blocks * 36] -> float32 [rows, blocks * 64]."""
    blocks = np.ascontiguousarray(codes).view(NVFP4)
    values = E2M1_DOUBLED[split_nibbles(blocks["nibbles"])].astype(np.float32)
    return _rows(_half_of_ue4m3(blocks["scales"])[..., None] * values)


def _half_of_ue4m3(scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return half of unsigned e4m3 numbers, exact; the one that would be NaN is 0, as there.

    The top bit is not looked at.
    """
    exponent = ((scales >> np.uint8(3)) & np.uint8(15)).astype(np.int32)
    mantissa = (scales & np.uint8(7)).astype(np.float32)
    normal = np.ldexp(np.float32(8) + mantissa, exponent - 11)
    found = np.where(exponent == 0, mantissa * np.float32(2.0**-10), normal)
    return np.where(scales == 0x7F, np.float32(0), found).astype(np.float32)


def half_of_e8m0(e: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return 2^(e - 128) as float32, exact; the first two are subnormal."""
    return np.ldexp(np.float32(1), e.astype(np.int32) - 128)


def _rows(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.reshape(values.shape[0], -1)
