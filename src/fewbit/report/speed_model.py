"""What speculation is worth, on a terminal and as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.speed_model import MeasuredRun, SpeedCurve, SpeedModelReport, SpeedPoint

if TYPE_CHECKING:
    import plotly.graph_objects as go


def print_speed_model(report: SpeedModelReport, console: Console) -> None:
    """Print speeds by length: formula, and the simulation under it."""
    for run in report.runs:
        _print_run(run, console)
    steps = ", ".join(f"{s.cost:.3g} for {s.rows} rows" for s in report.step_costs[1:])
    console.print(
        f"A drafted token costs {report.draft_cost:.3g} of a plain step; a step over several rows "
        f"costs {steps or 'as much as one over a single row'}.",
        highlight=False,
    )
    console.print(_table(report))
    console.print(
        f"Times the plain speed by the formula, then the mean of {report.outputs} simulated "
        f"outputs of {report.output_tokens} tokens and between what 90% of them lie.",
        style="dim",
        highlight=False,
    )


def speed_model_page(report: SpeedModelReport) -> str:
    """Return the plot as a page that opens offline."""
    page: str = figure(report).to_html(include_plotlyjs=True)
    return page


def figure(report: SpeedModelReport) -> go.Figure:
    """Return speed by draft length: lines are the formula, dots the simulation."""
    import plotly.graph_objects as go  # noqa: PLC0415 - only plots pay for it
    from plotly.colors import qualitative  # noqa: PLC0415

    plot = go.Figure()
    for i, curve in enumerate(report.curves):
        colour = qualitative.D3[i % len(qualitative.D3)]
        lengths = [point.length for point in curve.points]
        plot.add_scatter(
            x=lengths, y=[p.speedup for p in curve.points], name=curve.name, line_color=colour
        )
        plot.add_scatter(
            x=lengths,
            y=[p.simulated for p in curve.points],
            error_y={
                "array": [p.high - p.simulated for p in curve.points],
                "arrayminus": [p.simulated - p.low for p in curve.points],
            },
            name=f"{curve.name}, simulated",
            mode="markers",
            marker_color=colour,
        )
    plot.add_hline(y=1, line_dash="dot", annotation_text="plain decoding")
    plot.update_xaxes(title="drafted tokens a block, K", dtick=1)
    plot.update_yaxes(title="speed over plain decoding", rangemode="tozero")
    plot.update_layout(title=f"A drafted token costs {report.draft_cost:.3g} of a plain step")
    return plot


def _print_run(run: MeasuredRun, console: Console) -> None:
    kind = "" if run.name == run.draft else f"{escape(run.name)}, "
    whole = "" if run.end_to_end is None else f", {run.end_to_end:.2f} x of the whole output"
    console.print(
        f"{kind}[bold]{escape(run.draft)}[/] drafting for [bold]{escape(run.model)}[/]: "
        f"{run.blocks} "
        f"blocks of {run.drafted:.2f} drafted tokens, {run.acceptance:.1%} of the judged ones "
        f"accepted; a drafted token costs {run.draft_cost:.3f} and its row {run.row_cost:.3f} of "
        f"a plain step. Predicted {run.predicted:.2f} x plain, measured {run.measured:.2f} x of "
        f"the blocks{whole}.",
        highlight=False,
    )


def _table(report: SpeedModelReport) -> Table:
    """Show a column for each acceptance, a line for each length."""
    table = Table("K", box=None, header_style="dim", pad_edge=False)
    for curve in report.curves:
        table.add_column(f"accepted: {escape(curve.name)}", justify="right", no_wrap=True)
    for at, point in enumerate(report.curves[0].points):
        cells = (_cell(curve.points[at], curve) for curve in report.curves)
        table.add_row(str(point.length), *cells)
    table.add_row("best", *(_best(curve) for curve in report.curves))
    return table


def _cell(point: SpeedPoint, curve: SpeedCurve) -> str:
    best = curve.best
    style = "bold" if best is not None and point.length == best.length else "default"
    simulated = f"{point.simulated:.2f} ({point.low:.2f}-{point.high:.2f})"
    return f"[{style}]{point.speedup:.2f}[/] [dim]{simulated}[/]"


def _best(curve: SpeedCurve) -> str:
    return "none pays" if curve.best is None else f"K = {curve.best.length}"
