"""What steps and drafts cost, measured before a run with a draft, or kept from one before."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from cyclopts import Parameter

if TYPE_CHECKING:
    from fewbit.engine.chosen_draft import OpenedDraft
    from fewbit.engine.loaded import LoadedModel
    from fewbit.engine.request import Speculation
    from fewbit.records.conditions import Conditions
    from fewbit.records.costs import CostTable

CostsChoice: TypeAlias = Literal["kept", "measured", "learned"]

DraftCostsOption: TypeAlias = Annotated[
    CostsChoice,
    Parameter(
        help="What the lengths of drafts are chosen by: costs kept from an earlier run (measured "
        "where there are none), measured anew, or learned from the run's own steps."
    ),
]


def with_costs(
    opened: OpenedDraft,
    target: LoadedModel,
    choice: CostsChoice,
    conditions: Conditions,
    sequences: int = 1,
) -> tuple[OpenedDraft, str]:
    """Return a draft with what it costs, and a line about that; measures where it has to.

    Only the native executor is measured: another is there for its bits, not its speed.

    Args:
        opened: the draft beside its target, before either served anything.
        target: the target.
        choice: where the costs come from.
        conditions: of the run.
        sequences: the most that are served at once.
    """
    from fewbit.checkpoint.local import cache_root
    from fewbit.engine.costing import measure_costs
    from fewbit.engine.kept_costs import cost_key, find_costs, keep_costs, kept_path
    from fewbit.errors import BadFileError
    from fewbit.report.costs import describe_costs
    from fewbit.runtime.native import NativeExecutor

    speculation = opened.speculation
    if speculation is None or choice == "learned":
        return opened, ""
    if not isinstance(target.runner.executor, NativeExecutor):
        return opened, "draft costs: learned from the run's own steps (not the native executor)"
    folder = cache_root(os.environ) / "costs"
    key = cost_key(target, opened, conditions, sequences)
    problem = ""
    if choice == "kept":
        try:
            found, place = find_costs(folder, key), kept_path(folder, key)
            if found and _knows(found, speculation):
                line = f"{describe_costs(found)}; kept in {place}"
                return _priced(opened, speculation, found), line
            if found:
                problem = f"; those in {place} do not tell its drafts apart"
        except BadFileError as error:
            problem = f"; {error}"
    begun = time.perf_counter()
    costs = measure_costs(target.served, speculation.draft, sequences=sequences)
    seconds = time.perf_counter() - begun
    problem += (note := keep_costs(folder, key, costs)) and f"; {note}"
    return (
        _priced(opened, speculation, costs),
        f"{describe_costs(costs)}; measured in {seconds:.1f} s{problem}",
    )


def _knows(costs: CostTable, speculation: Speculation) -> bool:
    """Whether costs are of each draft that is asked by itself, or of none, which are learned."""
    from fewbit.speculate.combined import asked_parts

    return len(costs.drafts) in (0, len(asked_parts(speculation.draft)))


def _priced(opened: OpenedDraft, speculation: Speculation, costs: CostTable) -> OpenedDraft:
    return replace(opened, speculation=replace(speculation, costs=costs))
