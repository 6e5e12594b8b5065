"""A cost table in a line, and as a table."""

from __future__ import annotations

from rich.table import Table

from fewbit.records.costs import CostTable

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
    draft = ""
    if costs.sequences:
        token = (costs.draft_seconds[0] + costs.draft_fixed) / plain
        draft = f", a drafted token {token:.3f}"
        draft += f", a token read {costs.draft_read / plain:.3f}" if costs.draft_read else ""
    return f"draft costs in plain steps of {1e3 * plain:.1f} ms: {rows}{draft}"


def cost_table(costs: CostTable) -> Table:
    """Return the seconds and their ratios to a plain step, a row for each measured count."""
    table = Table("rows at once", box=None, header_style="dim", pad_edge=False)
    table.add_column("ms", justify="right")
    table.add_column("plain steps", justify="right")
    for n, seconds in zip(costs.rows, costs.seconds, strict=True):
        table.add_row(str(n), f"{1e3 * seconds:.2f}", f"{seconds / costs.seconds[0]:.2f}")
    for n, seconds in zip(costs.sequences, costs.draft_seconds, strict=True):
        name = f"draft, a token for {n}"
        table.add_row(name, f"{1e3 * seconds:.2f}", f"{seconds / costs.seconds[0]:.3f}")
    return table
