"""One row a figure: ours, the peer's, their ratio and its spread, the bar, whether it is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

PERCENT, TIMES = "{:.0%}", "{:.2f} x"
"""How a figure is written."""

HEAD = ("work", "fewbit", "peer", "figure", "spread", "bar", "met")


@dataclass(frozen=True)
class Row:
    """A line of the table, and the values behind it."""

    work: str
    ours: str = ""
    peer: str = ""
    figure: str = ""
    spread: str = ""
    bar: str = ""
    met: bool | None = None
    """None where nothing was measured, or nothing is asked."""
    values: Mapping[str, Any] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        met = "" if self.met is None else ("yes" if self.met else "no")
        return self.work, self.ours, self.peer, self.figure, self.spread, self.bar, met


def not_run(work: str, bar: str, why: str) -> Row:
    """Return the row of something that was not measured."""
    return Row(work, figure=f"not run ({why})", bar=bar)


def compared(work: str, pairs: Sequence[tuple[float, float]], least: float, setting: str) -> Row:
    """Return a row of rates, ours and the peer's round by round; `least` is the ratio's bar."""
    ours, peer = zip(*pairs, strict=True)
    ratios = [a / b for a, b in pairs]
    return Row(
        work,
        f"{median(ours):.1f} tok/s",
        f"{median(peer):.1f} tok/s ({setting})",
        f"{median(ratios):.2f} x",
        spread(ratios),
        f">= {least} x" if least else "",
        median(ratios) >= least if least else None,
        {"fewbit": ours, "peer": peer, "setting": setting},
    )


def at_least(work: str, found: Sequence[float], least: float, form: str) -> Row:
    """Return a row whose figure is the median of one value a round, written by `form`."""
    return Row(
        work,
        ours=form.format(median(found)),
        figure=form.format(median(found)),
        spread=f"{form.format(min(found))} to {form.format(max(found))}",
        bar=f">= {form.format(least)}",
        met=median(found) >= least,
        values={"rounds": found},
    )


def at_most(
    work: str, ours: Sequence[float], peer: Sequence[float], most: float | None, form: str = TIMES
) -> Row:
    """Return a row of costs, one a round each; the figure is ours."""
    return Row(
        work,
        ours=form.format(median(ours)),
        peer=form.format(median(peer)) if peer else "",
        figure=form.format(median(ours)),
        spread=f"{form.format(min(ours))} to {form.format(max(ours))}",
        bar="" if most is None else f"<= {form.format(most)}",
        met=None if most is None else median(ours) <= most,
        values={"fewbit": ours, "peer": peer},
    )


def spread(found: Sequence[float]) -> str:
    """Return the smallest and the largest of several values."""
    return f"{min(found):.2f} to {max(found):.2f}"


def markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table whose columns are aligned in the source too."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    shown = [_line(cells, widths) for cells in lines]
    return "\n".join([shown[0], _line(["-" * width for width in widths], widths), *shown[1:]])


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows with the values behind them."""
    return [asdict(row) for row in rows]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"
