"""What tuning by distillation did to a quantized model."""

from __future__ import annotations

from fewbit.records.base import Record

ROUNDED, UNROUNDED = "int8 per 32", "as computed"
"""What `TuneRecord.activations` says."""


class TunedPoint(Record, frozen=True, kw_only=True):
    """The divergence from the source on the held-out windows after so many steps."""

    step: int
    divergence: float
    """Mean KL(source || tuned) in nats per position, as the torch executor computes it."""


class FixedTensor(Record, frozen=True, kw_only=True):
    """A tensor that tuning left as it was, and why."""

    slot: str
    reason: str


class TuneMemory(Record, frozen=True, kw_only=True):
    """Bytes that tuning was expected to take at its peak, counted before it began."""

    codes: int
    """Codes as bytes, and the tensors that stay as they are."""
    state: int
    """Trained values, their gradients, moments and the best values so far."""
    layers: int
    """What the backward pass keeps of the layers."""
    head: int
    """The output tables of source and candidate, the gradient, and a piece of logits of both."""
    available: int | None
    limit: str
    """What sets the bound on memory, in words."""

    @property
    def needed(self) -> int:
        """All of it together."""
        return self.codes + self.state + self.layers + self.head


class TuneRecord(Record, frozen=True, kw_only=True):
    """How a quantized model was tuned, and what that gave."""

    what: str
    """`scales`, `rounding` or `weights`."""
    steps: int
    """Steps that were planned."""
    ran: int
    """Steps that ran: fewer where the held-out divergence no longer fell."""
    kept: int
    """The step whose values were kept; 0 where none was better than the start."""
    batch: int
    rate: float
    code_rate: float
    pace: float = 1.0
    """The factor of `rate`: the relative error of the weights at the start over the usual one."""
    slowed: float = 1.0
    """What looks without gain had left of both rates at the end."""
    warmup: float = 0.05
    hidden: float = 0.0
    check: int = 20
    patience: int = 3
    seed: int
    windows: int
    held_out: int
    tokens: int
    """Positions that were trained on, repetitions counted."""
    precision: str
    """What linear layers and attention are computed in."""
    activations: str
    """How the inputs of layers with integer weights are rounded while tuning: `ROUNDED` or
    `UNROUNDED`."""
    teacher: str
    """The type in which the source's final states are kept."""
    before: float
    """Divergence on the held-out windows at the start, in nats per position."""
    after: float
    """The same of what was kept."""
    trajectory: tuple[TunedPoint, ...]
    tuned: tuple[str, ...]
    """Slots whose values may have changed."""
    fixed: tuple[FixedTensor, ...]
    memory: TuneMemory
    torch: str
    """The version that ran."""
    seconds: float
