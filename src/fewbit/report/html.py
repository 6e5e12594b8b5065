"""Records as one HTML file: inline style, inline SVG, nothing fetched, every text escaped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fewbit import __version__
from fewbit.records.base import Record
from fewbit.records.certificate import Certificate
from fewbit.records.evaluation import Attempt, CompressReport, DeclaredChange, Evaluation
from fewbit.records.figures import describe, number, size
from fewbit.records.interval import Interval
from fewbit.records.outcome import Outcome
from fewbit.report import charts, curves, frontier, strips, svg
from fewbit.report.details import blocks_of
from fewbit.report.judged import deciding, shown_attempt
from fewbit.report.kernel_rows import kernel_rows
from fewbit.report.view import MEANS, view_of

_CHARTS = SimpleNamespace(
    strip=strips.strip_chart,
    strip_axis=strips.strip_axis,
    flips=strips.flip_chart,
    flip_key=strips.flip_key,
    curve=curves.curve_chart,
    distribution=curves.distribution_chart,
    histogram=charts.histogram_chart,
    layers=charts.layer_chart,
    size=charts.size_chart,
    bars=charts.bar_chart,
    frontier=frontier.frontier_chart,
)
_LOOP_MEANS = {
    Outcome.ACCEPT: "An accepted artefact was written. The command ends with 0.",
    Outcome.REJECT: "No recipe was accepted, and no model was written. The command ends with 3.",
    Outcome.INCONCLUSIVE: "No recipe was accepted, and for some the evidence did not suffice. The "
    "command ends with 4.",
}
_UNKNOWN = "not measured"


@dataclass(frozen=True)
class AttemptRow:
    """A recipe that was tried, and its two figures as a table has them."""

    attempt: Attempt
    divergence: Markup | str
    perplexity: Markup | str


def evaluation_page(evaluation: Evaluation) -> str:
    """Return an evaluation as a page of its own."""
    title = f"{evaluation.verdict.outcome.value}: {evaluation.candidate.name}"
    reasons = deciding(evaluation.verdict.reasons, evaluation)
    view = view_of(evaluation)
    return render("evaluation.html.j2", title, e=evaluation, view=view, reasons=reasons)


def compress_page(report: CompressReport) -> str:
    """Return all attempts of one compression, with the accepted or best one in full."""
    title = f"{report.outcome.value}: {report.source.name} compressed"
    shown = shown_attempt(report)
    return render(
        "compress.html.j2",
        title,
        r=report,
        shown=shown,
        reasons=deciding(report.reasons, None if shown is None else shown.evaluation),
        view=None if shown is None else view_of(shown.evaluation),
        attempts=[_attempt_row(attempt) for attempt in report.attempts],
        tried=tried_recipes(report),
        margin=_margin(report),
    )


def certificate_page(certificate: Certificate) -> str:
    """Return a certificate as a page of its own."""
    title = f"{certificate.standing.value}: {certificate.draft} for {certificate.target.name}"
    return render("certificate.html.j2", title, c=certificate)


def record_page(title: str, record: Record) -> str:
    """Return a record that has no page of its own as tables and charts."""
    return render("record.html.j2", title, blocks=blocks_of(record))


def tried_recipes(report: CompressReport) -> list[frontier.Tried]:
    """Return the attempts with a divergence as places on the chart of size against divergence."""
    found = []
    for attempt in report.attempts:
        e, kl = attempt.evaluation, attempt.evaluation.judgement("language/kl")
        if kl is not None:
            outcome = e.verdict.outcome
            found.append(frontier.Tried(attempt.recipe, e.candidate.bytes, kl.figure, outcome))
    return found


def _attempt_row(attempt: Attempt) -> AttemptRow:
    names = ("language/kl", "language/perplexity")
    kl, perplexity = (attempt.evaluation.judgement(name) for name in names)
    return AttemptRow(
        attempt,
        _UNKNOWN if kl is None else _cell(kl.figure, kl.margin),
        _UNKNOWN if perplexity is None else _cell(perplexity.figure, perplexity.margin),
    )


def _margin(report: CompressReport) -> float | None:
    found = (a.evaluation.judgement("language/kl") for a in report.attempts)
    return next((kl.margin for kl in found if kl is not None), None)


def render(template: str, title: str, **values: object) -> str:
    """Return a page from a template of ours, which may use the charts and filters below."""
    page = _environment().get_template(template)
    return page.render(title=title, version=__version__, **values)


@cache
def _environment() -> Environment:
    """Return what compiles templates; each is compiled once."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(charts=_CHARTS, icon=svg.icon)
    environment.filters.update(
        size=size,
        number=number,
        interval=_cell,
        by_kernel=kernel_rows,
        count="{:,}".format,
        lines=_lines,
        unbroken=_unbroken,
        kind=lambda block: type(block).__name__,
        means=MEANS.__getitem__,
        loop_means=_LOOP_MEANS.__getitem__,
        declared=_declared,
    )
    return environment


def _cell(figure: Interval, margin: float | None = None) -> Markup:
    """Return a table cell's content: the figure, and its bounds in small print under it."""
    value, _, bounds = describe(figure, margin).partition(" ")
    return Markup("{}<small>{}</small>").format(value, bounds)


def _unbroken(said: str) -> Markup:
    """Return a figure in words whose value and whose bounds are not broken over lines."""
    value, bracket, bounds = said.partition("[")
    shape = Markup('<span class="unbroken">{}</span> <span class="unbroken">{}</span>')
    return shape.format(value.strip(), bracket + bounds)


def _lines(said: str) -> Markup:
    """Return a figure in words with its bounds in small print under it."""
    value, bracket, bounds = said.partition(" [")
    if not bracket:
        return Markup("{}").format(said)
    bounds, _, unit = bounds.partition("]")
    return Markup("{}<small>{}</small>").format(value + unit, f"[{bounds}]")


def _declared(change: DeclaredChange) -> tuple[str, str]:
    return change.slot, change.change
