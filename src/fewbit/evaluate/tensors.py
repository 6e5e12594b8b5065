"""How far the candidate's decoded weights lie from the source's, slot by slot."""

from __future__ import annotations

import math

from fewbit.errors import NumericalError
from fewbit.evaluate.identity import shared_slots, slot_in
from fewbit.formats.distance import relative_error
from fewbit.model.binding import is_vector
from fewbit.model.weights import ModelSource
from fewbit.program import OUTSIDE, Slot
from fewbit.records.scan import TensorError


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
