"""Measured runs in the terms of the speed model: acceptance by position, costs in plain steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fewbit.errors import UsageError
from fewbit.records.costs import CostTable
from fewbit.records.generation import GenerationReport, PositionCount
from fewbit.records.speculation import SpeculationReport, SpeculationRun
from fewbit.records.speed_model import MeasuredRun
from fewbit.speculate.speed_model import expected_tokens, linear_costs


@dataclass(frozen=True)
class Measured:
    """What a record of runs says, and the costs to compute with.

    `acceptance` is that of each run, by position.
    """

    runs: tuple[MeasuredRun, ...]
    acceptance: tuple[tuple[float, ...], ...]
    draft_cost: float
    step_costs: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """Verified blocks, and what they took."""

    positions: Sequence[PositionCount]
    blocks: int
    draft: float
    verify: float
    step: float
    """Seconds of a plain step."""

    @property
    def proposed(self) -> int:
        return sum(position.proposed for position in self.positions)

    @property
    def accepted(self) -> int:
        return sum(position.accepted for position in self.positions)

    @property
    def overall(self) -> float:
        return self.accepted / max(sum(position.tested for position in self.positions), 1)

    @property
    def by_position(self) -> tuple[float, ...]:
        judged = [position for position in self.positions if position.tested]
        return tuple(p.accepted / p.tested for p in judged) or (self.overall,)


def measured_generation(report: GenerationReport) -> Measured:
    """Return one generation, as `fewbit generate --json` writes it.

    Raises:
        UsageError: it had no draft, or no step without one to tell what that costs.
    """
    generation, times = report.generation, report.generation.times
    draft = generation.draft
    if draft is None or not draft.blocks:
        raise UsageError("the run verified no draft; give the record of one with --draft.")
    if not generation.plain_steps or times.plain <= 0:
        raise UsageError("the run has no step without a draft to compare with; give a longer one.")
    blocks = _Blocks(
        positions=draft.positions,
        blocks=draft.blocks,
        draft=times.draft,
        verify=times.verify,
        step=times.plain / generation.plain_steps,
    )
    speed, plain = generation.tokens_per_second, generation.plain_tokens_per_second
    whole = speed / plain if speed and plain else None
    run = _measured(blocks, draft.draft, report.model.name, draft.draft, whole)
    # Below 0 a row's cost is noise of the clock.
    costs = linear_costs(max(run.row_cost, 0.0))
    return Measured((run,), (blocks.by_position,), run.draft_cost, costs)


def measured_bench(report: SpeculationReport) -> Measured:
    """Return the runs of single sequences that `fewbit bench --draft --json` wrote.

    Costs are those that were measured before them, where they were.

    Raises:
        UsageError: no run of one sequence verified a draft.
    """
    alone = [run for run in report.runs if run.sequences == 1 and _drafted(run)]
    if not alone:
        raise UsageError(
            "no run of one sequence at once verified a draft; give the record of "
            "'fewbit bench --draft ... --concurrency 1'."
        )
    blocks = [_blocks_of(run) for run in alone]
    runs = tuple(
        _measured(found, run.kind, report.model.name, report.draft, run.gain)
        for found, run in zip(blocks, alone, strict=True)
    )
    draft_cost, steps = _table_costs(report.costs, runs)
    return Measured(runs, tuple(found.by_position for found in blocks), draft_cost, steps)


def _drafted(run: SpeculationRun) -> bool:
    return any(record.blocks for record in run.speculation)


def _blocks_of(run: SpeculationRun) -> _Blocks:
    """Add up the turns of a run."""
    longest = max(len(record.positions) for record in run.speculation)
    plain = [turn.plain for turn in run.turns]
    return _Blocks(
        positions=[_position(run, i) for i in range(longest)],
        blocks=sum(record.blocks for record in run.speculation),
        draft=sum(record.draft_seconds for record in run.speculation),
        verify=sum(record.verify_seconds for record in run.speculation),
        step=sum(served.seconds for served in plain) / sum(served.tokens for served in plain),
    )


def _position(run: SpeculationRun, place: int) -> PositionCount:
    counts = [r.positions[place] for r in run.speculation if place < len(r.positions)]
    return PositionCount(
        proposed=sum(count.proposed for count in counts),
        tested=sum(count.tested for count in counts),
        accepted=sum(count.accepted for count in counts),
    )


def _table_costs(
    table: CostTable, runs: Sequence[MeasuredRun]
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the cost of a drafted token and of steps by rows, in plain steps."""
    if not table.measured or len(table.drafts) != 1:
        return runs[0].draft_cost, linear_costs(max(runs[0].row_cost, 0.0))
    step = table.seconds[0]
    steps = ((rows, cost / step) for rows, cost in zip(table.rows, table.seconds, strict=True))
    return table.drafts[0].seconds[0] / step, tuple(steps)


def _measured(
    found: _Blocks, name: str, model: str, draft: str, end_to_end: float | None
) -> MeasuredRun:
    drafted = found.proposed / found.blocks
    draft_cost = found.draft / max(found.proposed, 1) / found.step
    row_cost = (found.verify / found.blocks / found.step - 1) / max(drafted, 1e-9)
    tokens = found.accepted + found.blocks
    return MeasuredRun(
        name=name,
        model=model,
        draft=draft,
        blocks=found.blocks,
        drafted=drafted,
        acceptance=found.overall,
        draft_cost=draft_cost,
        row_cost=row_cost,
        predicted=_predicted(found.by_position, draft_cost, row_cost, drafted),
        measured=tokens * found.step / (found.draft + found.verify),
        end_to_end=end_to_end,
    )


def _predicted(
    acceptance: Sequence[float], draft_cost: float, row_cost: float, drafted: float
) -> float:
    """Return the speed at a length between two whole ones, by the formula."""
    low = math.floor(drafted)
    share = drafted - low
    tokens = (1 - share) * expected_tokens(acceptance, low) + share * expected_tokens(
        acceptance, low + 1
    )
    return tokens / (1 + drafted * (row_cost + draft_cost))
