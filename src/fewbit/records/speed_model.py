"""What speculation is worth by formula and by simulation, and what a run measured."""

from __future__ import annotations

from fewbit.records.base import Record

SPEED_MODEL_VERSION = 1


class StepCost(Record, frozen=True, kw_only=True):
    """What the target's step over some rows costs, in units of a step over one row."""

    rows: int
    cost: float


class SpeedPoint(Record, frozen=True, kw_only=True):
    """One draft length K."""

    length: int
    tokens: float
    """Expected for each block, the target's own last one included."""
    cost: float
    """Of a block: K drafted tokens and a step over K + 1 rows, in units of a plain step."""
    speedup: float
    """Tokens over cost: times the plain speed."""
    simulated: float
    """The mean over the simulated outputs, each of so many tokens."""
    low: float
    """5% of the outputs were slower."""
    high: float
    """5% were faster."""


class SpeedCurve(Record, frozen=True, kw_only=True):
    """Speed by draft length for one acceptance."""

    name: str
    acceptance: tuple[float, ...]
    """The chance that the target accepts a block's token at position 1, 2, ..., given that it
    accepted those before; the last one counts from there on."""
    points: tuple[SpeedPoint, ...]

    @property
    def best(self) -> SpeedPoint | None:
        """The fastest length; None where none is faster than plain decoding."""
        point = max(self.points, key=lambda point: point.speedup)
        return point if point.speedup > 1 else None


class MeasuredRun(Record, frozen=True, kw_only=True):
    """Generation with a draft, in the model's terms."""

    name: str
    """The draft's, or of several runs what was generated."""
    model: str
    draft: str
    blocks: int
    drafted: float
    """Tokens a block, on average."""
    acceptance: float
    """Accepted over judged, all positions together."""
    draft_cost: float
    """Seconds to draft a token, over those of a plain step."""
    row_cost: float
    """How much more a step costs for each drafted row, in units of a plain step."""
    predicted: float
    """Times the plain speed, of the blocks, by acceptance at each position and these costs."""
    measured: float
    """The same by the clock."""
    end_to_end: float | None
    """Times the plain speed, of the whole output, steps without a draft included."""


class SpeedModelReport(Record, frozen=True, kw_only=True):
    """What `fewbit speed-model` computed."""

    version: int = SPEED_MODEL_VERSION
    draft_cost: float
    """Of one drafted token, in units of a plain step of the target."""
    step_costs: tuple[StepCost, ...]
    """Linear between these, and on behind the last as between the last two."""
    outputs: int
    """Simulated for each point."""
    output_tokens: int
    """Of each output; the last block is cut at it."""
    seed: int
    curves: tuple[SpeedCurve, ...]
    runs: tuple[MeasuredRun, ...] = ()
    """Measured, where a record of some was given."""
