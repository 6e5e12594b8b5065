"""Records drawn: offline, escaped, and again from stored JSON."""

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import msgspec
import pytest
import sample_evaluation as sample
from rich.console import Console

from fewbit.records.base import from_json, to_json
from fewbit.records.evaluation import CompressReport, Evaluation
from fewbit.records.interval import Interval
from fewbit.records.measurement import Item, Measure, Slice
from fewbit.records.outcome import Outcome
from fewbit.report import charts, html, judged, terminal

HOSTILE = "</title><script>alert(1)</script><img src=x onerror='alert(2)'>{{ 7 * 7 }}[red]"


@pytest.fixture(scope="module")
def pages():
    return {
        "evaluation": html.evaluation_page(sample.evaluation()),
        "compress": html.compress_page(sample.compress_report()),
    }


@pytest.mark.parametrize("name", ["evaluation", "compress"])
def test_pages_refer_to_nothing_outside(pages, name):
    page = pages[name]
    outside = r"https?:|//[a-z]|url\((?!#)|@import|<script|<link|<img|<iframe|src=|href=\"[^#]"
    assert not re.search(outside, page)
    assert len(page) < 250_000


@pytest.mark.parametrize("name", ["evaluation", "compress"])
def test_links_and_patterns_have_what_they_name(pages, name):
    ids = re.findall(r' id="([^"]+)"', pages[name])
    named = re.findall(r'(?:url\(|href=")#([^)"]+)', pages[name])
    assert len(ids) == len(set(ids))
    assert named
    assert set(named) <= set(ids)


class _Balance(HTMLParser):
    VOID = frozenset({"meta", "br"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["evaluation", "compress"])
def test_pages_are_well_formed(pages, name):
    parser = _Balance()
    parser.feed(pages[name])
    assert parser.open == []
    content = re.search(r"<main>.*</main>", pages[name], re.DOTALL).group()
    assert ET.fromstring(content).findall(".//svg")


def test_page_says_all_that_a_claim_needs(pages):
    page = pages["evaluation"]
    for fact in ("AMD EPYC 9R45", "avx512vnni", "2 threads", "smollm2-135m", "CPython 3.11.7"):
        assert fact in page
    for fact in ("ab" * 32, "ef" * 32, "bf16 inputs instead of int8-g32"):
        assert fact in page
    assert "The source is itself quantized" in page
    assert 'class="verdict ACCEPT"' in page
    assert "The command ends with 0." in page


def test_sections_come_in_the_order_of_reading(pages):
    ids = re.findall(r'<(?:section|div)[^>]* id="([^"]+)"', pages["evaluation"])
    assert ids[0] == "verdict"
    assert ids[1:4] == ["notes", "identity", "gate"]
    assert ids[-1] == "conditions"
    assert {"language", "tasks", "speed", "kernels", "layers", "size"} <= set(ids)


def test_a_judgement_shows_interval_floor_margin_and_what_would_decide(pages):
    page = pages["evaluation"]
    shown = re.sub(r"<[^>]+>", "", page)
    assert "0.031 [0.0279, 0.0341] nats" in shown
    assert "floor 0.004 [0.0036, 0.0044] nats" in shown
    assert "margin 0.05 nats" in page
    assert "About 640 items would decide." in page
    assert "shown, not judged: no margin is declared" in page
    assert "2 inside, 1 undecided, 1 not judged" in page


def test_no_failure_of_an_arm_is_shown_with_its_bound():
    """0 of 200 is no rate of zero."""
    items = tuple(
        Item(name=f"{i}", cluster=f"{i}", source=0.0, candidate=float(i < 2)) for i in range(200)
    )
    rates = Slice(
        name="tasks/a", axis="tasks", measure=Measure.PROPORTION, unit="", title="a", items=items
    )
    row = judged.Row(
        sample.judgement("tasks/a", Interval(value=0.01, low=0, high=0.03), 0.05), (rates,)
    )
    assert row.arm("source") == "0.0% (under 1.5% at 95%)"
    assert row.arm("candidate") == "1.0%"


def test_a_waived_finding_says_why(pages):
    assert "waived</b> <code>kernels/fallback</code>" in pages["evaluation"]
    assert "Waived: They are tiny." in pages["evaluation"]


def test_stored_json_can_be_drawn_again():
    for kind, record, page in (
        (Evaluation, sample.evaluation(), html.evaluation_page),
        (CompressReport, sample.compress_report(), html.compress_page),
    ):
        again = from_json(kind, to_json(record), name="stored")
        assert again == record
        assert page(again) == page(record)


def test_drawing_imports_records_only():
    code = "import sys, fewbit.report.html, fewbit.report.terminal; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in found.stdout.split() if name.startswith("fewbit.")}
    floors = ("fewbit.records", "fewbit.report", "fewbit.errors")
    assert all(name.startswith(floors) for name in ours)
    assert "numpy" not in found.stdout.split()


def test_hostile_names_are_escaped():
    e = sample.evaluation(candidate=HOSTILE)
    e = msgspec.structs.replace(e, notes=(HOSTILE,))
    page = html.evaluation_page(e)
    assert "<script" not in page
    assert "<img" not in page
    assert "{{ 7 * 7 }}" in page
    report = msgspec.structs.replace(sample.compress_report(), reasons=(HOSTILE,))
    assert "<script" not in html.compress_page(report)
    console = Console(file=io.StringIO(), width=200)
    terminal.print_evaluation(e, console)
    assert "[red]" in console.file.getvalue()


def test_an_evaluation_without_intervals_draws():
    e = sample.evaluation()
    bare = tuple(
        msgspec.structs.replace(j, figure=Interval(value=0.02), floor=None) for j in e.judgements
    )
    page = html.evaluation_page(msgspec.structs.replace(e, judgements=bare))
    assert "0.02 nats margin" in re.sub(r"<[^>]+>", "", page)


def test_an_evaluation_of_one_axis_without_details_draws():
    e = sample.evaluation()
    e = msgspec.structs.replace(e, axes=e.axes[1:2], judgements=e.judgements[2:3], tensors=())
    page = html.evaluation_page(e)
    assert 'id="tasks"' in page
    assert 'id="language"' not in page
    terminal.print_evaluation(e, Console(file=io.StringIO(), width=80))


def test_nothing_known_of_bytes_draws():
    e = sample.evaluation()
    e = msgspec.structs.replace(e, candidate=msgspec.structs.replace(e.candidate, bytes=0))
    assert "of unknown size" in html.evaluation_page(e)


def test_a_report_without_attempts_draws():
    report = msgspec.structs.replace(sample.compress_report(), attempts=(), accepted=None)
    assert judged.shown_attempt(report) is None
    assert "Recipes tried" in html.compress_page(report)


def test_the_best_attempt_is_shown_when_none_was_accepted():
    report = sample.compress_report(accepted=False)
    shown = judged.shown_attempt(report)
    assert shown is not None
    assert shown.recipe == "rtn-int4-g64"
    assert "The best attempt: rtn-int4-g64" in html.compress_page(report)


def test_the_attempt_that_the_reasons_speak_of_is_shown():
    """It need not be the one of least divergence: that one may fail on more slices."""
    report = msgspec.structs.replace(sample.compress_report(accepted=False), nearest="rtn-int3-g32")
    assert judged.shown_attempt(report).recipe == "rtn-int3-g32"
    assert "The best attempt: rtn-int3-g32" in html.compress_page(report)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0396, "+3.96"), (0.0404, "+4.04"), (0.04, "+4.0"), (0.02, "+2.0"), (-0.5, "-50.0")],
)
def test_a_rounded_difference_of_rates_stays_on_its_side_of_the_margin(value, said):
    figure = Interval(value=value, low=value, high=value, level=0.95)
    told = judged.in_words(figure, Measure.PROPORTION, "", 0.04)
    assert told == f"{said} [{said}, {said}] points"


def test_a_perplexity_beyond_a_float_draws():
    assert judged.shown(5000.0, Measure.PERPLEXITY, "").startswith("8.2")


def test_heat_map_has_a_cell_for_each_matrix():
    drawing = charts.layer_chart(sample.tensors(layers=5))
    assert drawing.count('class="heat" ') == 35 + 10
    assert charts.layer_chart(()) == ""


def test_terminal_ends_with_the_verdict():
    console = Console(file=io.StringIO(), width=200)
    terminal.print_evaluation(sample.evaluation(), console)
    lines = console.file.getvalue().splitlines()
    assert "ACCEPT" in lines
    assert any("0.031 [0.0279, 0.0341] nats" in line for line in lines)


@pytest.mark.parametrize("width", [32, 60, 99, 140])
def test_terminals_of_all_widths_show_every_figure(width):
    console = Console(file=io.StringIO(), width=width)
    terminal.print_evaluation(sample.evaluation(), console)
    shown = console.file.getvalue()
    assert all(len(line) <= width for line in shown.splitlines())
    joined = " ".join(shown.split())
    for part in ("0.031", "[0.0279, 0.0341]", "INCONCLUSIVE", "640 items", "waived"):
        assert part in joined


def test_terminal_lists_attempts():
    console = Console(file=io.StringIO(), width=200)
    report = sample.compress_report(accepted=False)
    attempt = msgspec.structs.replace(report.attempts[0], fallbacks=("This fell back.",))
    report = msgspec.structs.replace(report, attempts=(attempt, *report.attempts[1:]))
    terminal.print_compress(report, console)
    shown = console.file.getvalue()
    assert "rtn-int3-g32: This fell back." in shown
    assert "This fell back." in html.compress_page(report)
    assert "rtn-int8-g128 not tried: It would not make the model smaller." in shown
    assert Outcome.REJECT.value in shown
    notes = report.attempts[-1].evaluation.notes
    assert notes
    assert all(f"Note: {note}" in " ".join(shown.split()) for note in notes)


def test_a_budget_and_what_an_attempt_was_made_from_are_told():
    report = sample.compress_report(accepted=False)
    why = "Layers 0 and 29 one step finer."
    attempts = (report.attempts[0], msgspec.structs.replace(report.attempts[1], why=why))
    report = msgspec.structs.replace(
        report, budget="4.5bpw", runtime="llama.cpp", attempts=attempts, closest="rtn-int3-g32"
    )
    page = html.compress_page(report)
    console = Console(file=io.StringIO(), width=200)
    terminal.print_compress(report, console)
    for shown in (page, console.file.getvalue()):
        assert why in shown
        assert "budget 4.5bpw" in shown
        assert "for llama.cpp" in shown
    assert "The closest recipe, not accepted: rtn-int3-g32" in page
