"""Exercise 1: one scale for a whole vector against one scale for each group of 32.

    python examples/affine_groups.py --out affine_groups.html

A weight vector is mostly small numbers and a few outliers. With one scale for all of them, the
outliers set the step and the small numbers fall on very few codes. With a scale for each group, an
outlier costs only its own group, at the price of 16 bits for each group.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from fewbit.formats.registry import decode, encode, parse_format

FORMATS = ("int4-row", "int4-g128", "int4-g32", "int4-g32-asym")
"""One scale for the whole vector, then smaller and smaller groups."""


@dataclass(frozen=True)
class Reconstruction:
    """The vector after a round trip through a format."""

    format: str
    values: NDArray[np.float32]
    bits_per_weight: float
    relative_error: float
    """||x - x'|| / ||x||."""


def vector_with_outliers(size: int, outliers: int, seed: int) -> NDArray[np.float32]:
    """Return normal values of deviation 0.02, some of them 20 times as large; float32 [size]."""
    random = np.random.default_rng(seed)
    values = random.normal(0, 0.02, size)
    values[random.choice(size, outliers, replace=False)] *= 20
    return values.astype(np.float32)


def reconstruct(x: NDArray[np.float32], name: str) -> Reconstruction:
    """Encode a vector, float32 [size], in a format and decode it again."""
    form = parse_format(name)
    values = decode(encode(x[None], form))[0]
    error = float(np.linalg.norm(values - x) / np.linalg.norm(x))
    return Reconstruction(name, values, form.bits_per_weight((1, x.size)), error)


def table(found: Sequence[Reconstruction]) -> str:
    """Return the errors as text, each compared with the first."""
    lines = [f"{'format':15}{'bits/weight':>12}{'relative error':>16}{'of the first':>14}"]
    for one in found:
        ratio = one.relative_error / found[0].relative_error
        lines.append(
            f"{one.format:15}{one.bits_per_weight:12.3f}{one.relative_error:16.4f}{ratio:14.2f}"
        )
    return "\n".join(lines)


def figure(x: NDArray[np.float32], found: Sequence[Reconstruction]) -> go.Figure:
    """Return a plot of what each format did to each element, and of the error as a whole."""
    plot = make_subplots(
        rows=2,
        cols=1,
        subplot_titles=("absolute error of each element", "relative error of the vector"),
        vertical_spacing=0.14,
    )
    for one in found:
        error = np.abs(one.values - x)
        plot.add_trace(go.Scatter(y=error, name=one.format, mode="markers", marker_size=4), 1, 1)
    names = [one.format for one in found]
    plot.add_trace(go.Bar(x=names, y=[one.relative_error for one in found], showlegend=False), 2, 1)
    plot.update_xaxes(title="element", row=1, col=1)
    plot.update_yaxes(title="|x - x'|", row=1, col=1)
    plot.update_yaxes(title="||x - x'|| / ||x||", row=2, col=1)
    plot.update_layout(title=f"{x.size} values with outliers, 4 bits", height=800)
    return plot


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errors and write the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--size", type=int, default=1024, help="elements, a multiple of 128")
    parser.add_argument("--outliers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("affine_groups.html"))
    given = parser.parse_args(arguments)
    x = vector_with_outliers(given.size, given.outliers, given.seed)
    found = [reconstruct(x, name) for name in FORMATS]
    print(table(found))
    figure(x, found).write_html(given.out, include_plotlyjs=True)
    print(f"plot: {given.out}")


if __name__ == "__main__":
    main()
