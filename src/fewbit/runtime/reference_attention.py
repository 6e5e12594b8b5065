"""Attention of the reference executor: over the KV store's rows, in float64, rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fewbit.program import Attention
from fewbit.runtime.kv import Floats
from fewbit.runtime.step import PAGE, Span


def attention(
    q: Floats | NDArray[np.float64], keys: Floats, values: Floats, first: int, op: Attention
) -> Floats:
    """Attend causally from consecutive rows of one sequence.

    Args:
        q: [rows, heads * head_dim], the queries of positions first, first + 1, ...
        keys: [positions, kv_heads * head_dim], positions 0 to that of the last row.
        values: as keys.
        first: the position of the first row.
        op: heads, scale, window and softcap.

    Returns:
        float32 [rows, heads * head_dim].
    """
    rows, positions = q.shape[0], keys.shape[0]
    share = op.heads // op.kv_heads
    queries = q.reshape(rows, op.kv_heads, share, op.head_dim).astype(np.float64)
    k = keys.reshape(positions, op.kv_heads, op.head_dim).astype(np.float64)
    v = values.reshape(positions, op.kv_heads, op.head_dim).astype(np.float64)
    scores = np.einsum("rgsd,pgd->gsrp", queries, k, optimize=True) * op.scale
    if op.softcap is not None:
        scores = op.softcap * np.tanh(scores / op.softcap)
    weights = _softmax(np.where(visible(rows, positions, first, op.window), scores, -np.inf))
    mixed = np.einsum("gsrp,pgd->rgsd", weights, v, optimize=True)
    out: Floats = mixed.reshape(rows, -1).astype(np.float32)
    return out


def visible(rows: int, positions: int, first: int, window: int | None) -> NDArray[np.bool_]:
    """Return bool [rows, positions]: whether row r, at position first + r, sees position p."""
    own = (first + np.arange(rows))[:, None]
    other = np.arange(positions)[None, :]
    seen = other <= own
    return seen if window is None else seen & (other > own - window)


def write_spans(store: Floats, rows: Floats, spans: Sequence[Span]) -> None:
    """Write a step's rows; a branch's pages get what its trunk has before its first row as well."""
    for span in spans:
        write_rows(store, rows, span)
        if span.trunk is None:
            continue
        trunk = spans[span.trunk]
        begun = np.arange(trunk.position // PAGE * PAGE, span.position)
        page, place = begun // PAGE, begun % PAGE
        store[span.pages[page], place] = store[trunk.pages[page], place]


def write_rows(store: Floats, rows: Floats, span: Span) -> None:
    """Write a span's rows to the pages the span names."""
    positions = span.position + np.arange(span.count)
    store[span.pages[positions // PAGE], positions % PAGE] = rows[
        span.start : span.start + span.count
    ]


def read_rows(store: Floats, span: Span) -> Floats:
    """Return the stored rows of positions 0 to the span's last, in order."""
    positions = np.arange(span.position + span.count)
    return store[span.pages[positions // PAGE], positions % PAGE]


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return shares
