"""Records as one HTML file: inline style, inline SVG, nothing fetched, every text escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fewbit import __version__
from fewbit.records.certificate import Certificate
from fewbit.records.evaluation import Attempt, CompressReport, Evaluation
from fewbit.records.figures import describe, number, size
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.report import charts

_CHARTS = SimpleNamespace(
    interval=charts.interval_chart,
    histogram=charts.histogram_chart,
    layers=charts.layer_chart,
    size=charts.size_chart,
    frontier=charts.frontier_chart,
)


@dataclass(frozen=True)
class KernelRow:
    """Layers of one format that run on one kernel."""

    format: str
    kernel: str
    activations: str
    note: str
    count: int


def evaluation_page(evaluation: Evaluation) -> str:
    """Return an evaluation as a page of its own."""
    title = f"{evaluation.verdict.outcome.value}: {evaluation.candidate.name}"
    return _render("evaluation.html.j2", title, e=evaluation)


def compress_page(report: CompressReport) -> str:
    """Return all attempts of one compression, with the accepted or best one in full."""
    title = f"{report.outcome.value}: {report.source.name} compressed"
    return _render("compress.html.j2", title, r=report, shown=shown_attempt(report))


def certificate_page(certificate: Certificate) -> str:
    """Return a certificate as a page of its own."""
    title = f"{certificate.standing.value}: {certificate.draft} for {certificate.target.name}"
    return _render("certificate.html.j2", title, c=certificate)


def shown_attempt(report: CompressReport) -> Attempt | None:
    """Return the accepted attempt, else the one of least divergence, None without attempts."""
    accepted = [a for a in report.attempts if a.recipe == report.accepted]
    by_divergence = sorted(report.attempts, key=lambda a: a.evaluation.divergence.mean.value)
    return next(iter([*accepted, *by_divergence]), None)


def kernel_rows(kernels: Iterable[KernelRecord]) -> list[KernelRow]:
    """Return the kernels in use, each once, the most used first."""
    counts = Counter((k.format, k.kernel, k.activations, k.note) for k in kernels)
    return [KernelRow(*key, count) for key, count in counts.most_common()]


def _render(template: str, title: str, **values: object) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=size, number=number, interval=_cell, bounds=_bounds, by_kernel=kernel_rows
    )
    page = environment.get_template(template)
    return page.render(title=title, version=__version__, charts=_CHARTS, **values)


def _cell(figure: Interval, margin: float | None = None) -> Markup:
    """Return a table cell's content: the figure, and its bounds in small print under it."""
    value, _, bounds = describe(figure, margin).partition(" ")
    return Markup("{}<small>{}</small>").format(value, bounds)


def _bounds(figure: Interval, margin: float | None = None) -> str:
    if figure.low is None or figure.high is None:
        return "no interval on so few documents"
    level = f"{figure.level:.0%}"
    return f"{level}: {number(figure.low, margin)} to {number(figure.high, margin)}"
