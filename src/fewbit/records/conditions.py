"""The conditions that figures were taken under; without them they are nothing."""

from __future__ import annotations

from fewbit.records.base import Record


class Conditions(Record, frozen=True, kw_only=True):
    """Where and with what the figures were taken."""

    cpu: str
    isa: str
    activations: str = ""
    """How layers rounded their inputs, as kernel records name it; empty in older records."""
    threads: int
    system: str
    python: str
    numpy: str
    fewbit: str
    executor: str
    kv: str = "f16"
    """How keys and values were stored, a candidate's where two models ran."""
    rotated_keys: bool = False
