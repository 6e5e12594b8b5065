"""A cost table in a line, and as a table."""

from __future__ import annotations

from rich.table import Table

from fewbit.records.costs import CostTable, DraftCosts

_NAMED_ROWS = (4, 8, 16)


def describe_costs(costs: CostTable) -> str:
    """Return what rows and drafted tokens cost in units of a plain step, in a line."""
    plain = costs.seconds[0]
    rows = ", ".join(
        f"{n} rows {seconds / plain:.2f}"
        for n, seconds in zip(costs.rows, costs.seconds, strict=True)
        if n in _NAMED_ROWS
    )
    if not costs.measured:
        return f"draft costs, assumed: a step of {rows or 'more rows'}"
    drafts = "".join(_drafting(draft, plain) for draft in costs.drafts)
    return f"draft costs in plain steps of {1e3 * plain:.1f} ms: {rows}{drafts}"


def _drafting(draft: DraftCosts, plain: float) -> str:
    by = f" by {draft.draft}" if draft.draft else ""
    told = f", a drafted token{by} {(draft.seconds[0] + draft.fixed) / plain:.3f}"
    return told + (f", a token read{by} {draft.read / plain:.3f}" if draft.read else "")


def cost_table(costs: CostTable) -> Table:
    """Return the seconds and their ratios to a plain step, a row for each measured count."""
    table = Table("rows at once", box=None, header_style="dim", pad_edge=False)
    table.add_column("ms", justify="right")
    table.add_column("plain steps", justify="right")
    for n, seconds in zip(costs.rows, costs.seconds, strict=True):
        table.add_row(str(n), f"{1e3 * seconds:.2f}", f"{seconds / costs.seconds[0]:.2f}")
    for draft in costs.drafts:
        for n, seconds in zip(draft.sequences, draft.seconds, strict=True):
            name = f"{draft.draft or 'draft'}, a token for {n}"
            table.add_row(name, f"{1e3 * seconds:.2f}", f"{seconds / costs.seconds[0]:.3f}")
    return table
