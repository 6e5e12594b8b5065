"""The KV store's bytes, and how it rounds: the truth that the native store is held to."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fewbit.formats.floats import decode_bf16, encode_bf16
from fewbit.program import KV_GROUP, Attention, CacheType, Program
from fewbit.runtime.step import PAGE

Floats: TypeAlias = NDArray[np.float32]

_LANES = 16
"""Value rows of a float store are padded to this many elements, the width of the kernels."""

_SCALE_BYTES = 2
_LARGEST_HALF = np.float32(65504)


def page_bytes(program: Program) -> int:
    """Return the bytes of one page of `PAGE` positions: keys and values of all layers."""
    attentions = [op for op in program.ops if isinstance(op, Attention)]
    return sum(op.kv_heads * _head_bytes(op.head_dim, program.cache_type) for op in attentions)


def _head_bytes(head_dim: int, cache_type: CacheType) -> int:
    """Return the bytes of a page's keys and values of one key head."""
    if cache_type.is_integer:
        row = head_dim * cache_type.bits // 8 + head_dim // KV_GROUP * _SCALE_BYTES
        return 2 * PAGE * row
    padded = -(-head_dim // _LANES) * _LANES
    return PAGE * (head_dim + padded) * cache_type.bits // 8


def rounded_rows(x: Floats, cache_type: CacheType) -> Floats:
    """Return finite keys or values x [rows, heads * head_dim] as the store gives them back."""
    match cache_type:
        case CacheType.F32:
            return x
        case CacheType.F16:
            with np.errstate(over="ignore"):
                return x.astype(np.float16).astype(np.float32)
        case CacheType.BF16:
            return decode_bf16(encode_bf16(x))
        case CacheType.INT8 | CacheType.INT4:
            codes, scales = kv_codes(x, cache_type)
            return codes.astype(np.float32) * np.repeat(scales, KV_GROUP, axis=-1)


def kv_codes(x: Floats, cache_type: CacheType) -> tuple[NDArray[np.int8], Floats]:
    """Round finite x [rows, n * KV_GROUP] as an integer store does.

    Returns:
        codes int8 as x, and their scales float32 [rows, n], each exact in fp16.
    """
    runs = x.reshape(len(x), x.shape[1] // KV_GROUP, KV_GROUP)
    largest, smallest = runs.max(axis=-1), runs.min(axis=-1)
    if cache_type is CacheType.INT8:
        wanted, bounds = np.maximum(largest, -smallest) / np.float32(127), (-127, 127)
    else:
        wanted, bounds = np.where(largest >= -smallest, largest, smallest) / np.float32(-8), (-8, 7)
    scales = np.clip(wanted, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16).astype(np.float32)
    codes = np.clip(_quotients(runs, scales), *bounds).astype(np.int8)
    return codes.reshape(x.shape), scales


def rounded_queries(q: Floats, cache_type: CacheType) -> Floats | NDArray[np.float64]:
    """Return queries [rows, n * KV_GROUP] as they meet the keys of a store.

    float32 as they are, or code * scale (exact in float64) where the keys are integers.
    """
    if not cache_type.is_integer:
        return q
    runs = q.reshape(len(q), q.shape[1] // KV_GROUP, KV_GROUP)
    scales = np.abs(runs).max(axis=-1) / np.float32(32767)
    codes = np.clip(_quotients(runs, scales), -32767, 32767)
    rounded: NDArray[np.float64] = codes.astype(np.float64) * scales[..., None]
    return rounded.reshape(q.shape)


def _quotients(runs: Floats, scales: Floats) -> Floats:
    """Return round_half_even(run / scale), 0 where the scale is 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotients = np.where(scales[..., None] != 0, runs / scales[..., None], np.float32(0))
    whole: Floats = np.rint(quotients)
    return whole
