"""How far the candidate's decoded weights lie from the source's, slot by slot."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import NumericalError
from fewbit.evaluate.identity import shared_slots, slot_in
from fewbit.formats.registry import decode_rows
from fewbit.formats.spec import QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource
from fewbit.program import OUTSIDE, Slot
from fewbit.records.evaluation import TensorError

_PIECE = 1 << 18
"""Elements decoded at once: a megabyte of float32 stays in a core's cache."""


def tensor_errors(source: ModelSource, candidate: ModelSource) -> tuple[TensorError, ...]:
    """Return the error of every matrix, in the Program's order.

    Raises:
        NumericalError: a weight is NaN or infinite; names the slot.
    """
    return tuple(
        _tensor_error(source, candidate, slot)
        for slot in shared_slots(source, candidate)
        if not is_vector(slot)
    )


def relative_error(source: QuantTensor, candidate: QuantTensor) -> float:
    """Return ||W - W'|| / ||W||, Frobenius norms; ||W'|| where W is zero."""
    if _same_bytes(source, candidate):
        return 0.0
    rows, columns = source.shape
    step = max(1, _PIECE // columns)
    error = total = 0.0
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        values = decode_rows(source, part)
        total += _squares(values)
        error += _squares(values - decode_rows(candidate, part))
    return math.sqrt(error / total if total else error)


def _tensor_error(source: ModelSource, candidate: ModelSource, slot: Slot) -> TensorError:
    places = slot_in(source, slot), slot_in(candidate, slot)
    one, other = source.read(places[0]), candidate.read(places[1])
    error = relative_error(one, other)
    if not math.isfinite(error):
        raise NumericalError(
            f"{slot} has weights that are not finite in the source or the candidate; inspect both."
        )
    parts = slot.split(".")
    found = TensorError(
        slot=slot,
        layer=int(parts[1]) if parts[0] == "layers" else OUTSIDE,
        source_format=one.spec.name,
        candidate_format=other.spec.name,
        weights=one.shape[0] * one.shape[1],
        relative_error=error,
    )
    source.release(places[0])
    candidate.release(places[1])
    return found


def _same_bytes(one: QuantTensor, other: QuantTensor) -> bool:
    """Return True where format and every part agree, which is quicker than decoding."""
    if one.spec != other.spec:
        return False
    pairs = ((one.codes, other.codes), (one.scales, other.scales), (one.zeros, other.zeros))
    return all(
        a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs
    )


def _squares(values: NDArray[np.float32]) -> float:
    wide = values.astype(np.float64)
    return float(np.multiply(wide, wide, out=wide).sum())
