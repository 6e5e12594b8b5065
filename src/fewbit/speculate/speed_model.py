"""How much faster speculation makes decoding: the formula, and a simulation that checks it.

The formula is that of Leviathan et al. 2023 (theorem 3.8) with two things added: acceptance may
differ by position, and a step over K + 1 rows may cost more than one over a single row. Per block,

    tokens(K) = 1 + a_1 + a_1 a_2 + ... + a_1 ... a_K
    cost(K) = step(K + 1) + K draft        (in units of a plain step)

and the speed is tokens / cost. With all a equal and step = 1 this is the paper's
(1 - a^(K+1)) / ((1 - a) (K draft + 1)). It takes positions for independent and outputs for long
(established under these assumptions; that real drafts meet them is not).

The simulation plays whole outputs of a fixed length with the real rule: tokens drawn from a draft
distribution q, accepted with probability min(1, p / q). So it knows p and q instead of the formula,
and the last block is cut at the output's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import UsageError
from fewbit.records.speed_model import (
    MeasuredRun,
    SpeedCurve,
    SpeedModelReport,
    SpeedPoint,
    StepCost,
)

LONGEST = 64
"""The largest K; drafts beyond it are never verified in one step."""

_WIDEST = 1 << 22
"""Random numbers of one simulated point, at most."""


@dataclass(frozen=True, kw_only=True)
class SpeedModel:
    """Costs, and what to simulate.

    Args:
        draft_cost: of one drafted token, in units of a plain step; at least 0.
        step_costs: cost by rows, in units of the cost of one row; (1, 1.0) first.
        lengths: the K to compute, each in [1, LONGEST].
        outputs: simulated for each K.
        output_tokens: of each.
        seed: of the simulation.

    Raises:
        UsageError: a value outside its range.
    """

    draft_cost: float
    step_costs: tuple[tuple[int, float], ...] = ((1, 1.0),)
    lengths: tuple[int, ...] = tuple(range(1, 9))
    outputs: int = 200
    output_tokens: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.draft_cost) and self.draft_cost >= 0):
            raise UsageError(
                f"the cost of a drafted token is {self.draft_cost}; it must be a number of plain "
                "steps, 0 or more."
            )
        if not self.lengths or not all(1 <= length <= LONGEST for length in self.lengths):
            raise UsageError(f"draft lengths are {list(self.lengths)}; give some in 1..{LONGEST}.")
        if min(self.outputs, self.output_tokens) < 1:
            raise UsageError(
                f"{self.outputs} outputs of {self.output_tokens} tokens cannot be simulated; give "
                "at least one of each."
            )
        if self.seed < 0:
            raise UsageError(f"the seed is {self.seed}; it must be 0 or more.")
        most = self.outputs * self.output_tokens * max(self.lengths)
        if most > _WIDEST * 8:
            raise UsageError(
                f"{self.outputs} outputs of {self.output_tokens} tokens at a K of "
                f"{max(self.lengths)} are {most:,} draws; give fewer, up to {_WIDEST * 8:,}."
            )
        _check_step_costs(self.step_costs)

    def step(self, rows: int) -> float:
        """Return the cost of a step over so many rows, in units of one over a single row."""
        if len(self.step_costs) == 1:
            return 1.0
        counts, costs = zip(*self.step_costs, strict=True)
        if rows <= counts[-1]:
            return float(np.interp(rows, counts, costs))
        slope = (costs[-1] - costs[-2]) / (counts[-1] - counts[-2])
        return float(costs[-1] + max(slope, 0.0) * (rows - counts[-1]))

    def block_cost(self, length: int) -> float:
        """Return the cost of drafting and verifying so many tokens, in units of a plain step."""
        return self.step(length + 1) + length * self.draft_cost


def linear_costs(row_cost: float) -> tuple[tuple[int, float], ...]:
    """Return the costs of steps in which each row after the first adds `row_cost`."""
    return (1, 1.0), (2, 1.0 + row_cost)


def expected_tokens(acceptance: Sequence[float], length: int) -> float:
    """Return the expected tokens of a block of so many drafted ones, the target's own included."""
    return 1.0 + float(np.cumprod(_by_position(acceptance, length)).sum())


def speed_curve(model: SpeedModel, name: str, acceptance: Sequence[float]) -> SpeedCurve:
    """Return formula and simulation for every K of a model.

    Args:
        model: the costs.
        name: what the curve is called.
        acceptance: by position, the last one for all that follow; each in [0, 1].

    Raises:
        UsageError: an acceptance outside [0, 1], or none.
    """
    if not acceptance or not all(0 <= chance <= 1 for chance in acceptance):
        raise UsageError(
            f"acceptance is {list(acceptance)}; give the chance that a drafted token is accepted, "
            "in [0, 1]."
        )
    return SpeedCurve(
        name=name,
        acceptance=tuple(acceptance),
        points=tuple(_point(model, acceptance, length) for length in model.lengths),
    )


def speed_model(
    model: SpeedModel, curves: Sequence[SpeedCurve], runs: Sequence[MeasuredRun] = ()
) -> SpeedModelReport:
    """Return the record of some curves, and of the runs that they are of."""
    return SpeedModelReport(
        draft_cost=model.draft_cost,
        step_costs=tuple(StepCost(rows=rows, cost=cost) for rows, cost in model.step_costs),
        outputs=model.outputs,
        output_tokens=model.output_tokens,
        seed=model.seed,
        curves=tuple(curves),
        runs=tuple(runs),
    )


def simulate(model: SpeedModel, acceptance: Sequence[float], length: int) -> NDArray[np.float64]:
    """Play outputs with the real rule and return each one's speed over plain decoding, [outputs].

    Each position has two tokens, and distributions p and q that overlap by its acceptance.
    """
    random = np.random.default_rng([model.seed, length])
    ahead = np.array(_by_position(acceptance, length))
    draft = np.stack([1 - ahead / 2, ahead / 2], axis=1)
    target = draft[:, ::-1]
    blocks = np.zeros(model.outputs, np.int64)
    left = np.full(model.outputs, model.output_tokens)
    while (playing := np.flatnonzero(left > 0)).size:
        drawn = (random.random((playing.size, length)) >= draft[:, 0]).astype(np.intp)
        place = np.arange(length)
        chance = target[place, drawn] / draft[place, drawn]
        accepted = random.random((playing.size, length)) < chance
        left[playing] -= np.cumprod(accepted, axis=1).sum(axis=1) + 1
        blocks[playing] += 1
    return np.asarray(model.output_tokens / (blocks * model.block_cost(length)))


def _point(model: SpeedModel, acceptance: Sequence[float], length: int) -> SpeedPoint:
    tokens, cost = expected_tokens(acceptance, length), model.block_cost(length)
    played = simulate(model, acceptance, length)
    low, high = np.quantile(played, (0.05, 0.95))
    return SpeedPoint(
        length=length,
        tokens=tokens,
        cost=cost,
        speedup=tokens / cost,
        simulated=float(played.mean()),
        low=float(low),
        high=float(high),
    )


def _by_position(acceptance: Sequence[float], length: int) -> list[float]:
    """Return the acceptance at the first positions; the last one given counts from there on."""
    return [acceptance[min(i, len(acceptance) - 1)] for i in range(length)]


def _check_step_costs(costs: tuple[tuple[int, float], ...]) -> None:
    rows = [count for count, _ in costs]
    ascending = all(a < b for a, b in pairwise(rows))
    positive = all(math.isfinite(cost) and cost > 0 for _, cost in costs)
    if not costs or costs[0] != (1, 1.0) or not ascending or not positive:
        raise UsageError(
            f"costs of steps are {dict(costs)}; give numbers above 0 by ascending rows, relative "
            "to a step of one row."
        )
