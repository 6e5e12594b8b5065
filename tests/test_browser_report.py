"""Pages in a real browser: nothing fetched, nothing complained of, charts drawn, phones, paper."""

import re

import chromium
import pytest
import sample_details
import sample_evaluation as sample
from any_record import any_record

from fewbit.evaluate.comparison import compare
from fewbit.records.certificate import Certificate
from fewbit.records.speed import SpeedReport
from fewbit.records.validation import Validation
from fewbit.report import html
from fewbit.report.comparison import comparison_page
from fewbit.report.validation import validation_page

pytestmark = pytest.mark.browser

PHONE, DESK = 360, 1200
WORDS = "several words of about the usual length"
LONG = "a/path/without-any-place-to-break-it_0123456789abcdef" * 3

OVERFLOWING = """[...document.querySelectorAll('body, body *')]
  .filter(e => !e.closest('svg') && !e.closest('details:not([open])'))
  .filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
               && getComputedStyle(e).display !== 'inline')
  .map(e => e.tagName + '.' + e.className + ' ' + e.scrollWidth + '>' + e.clientWidth)"""

OUTSIDE = """[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('svg.patterns') && !e.closest('details:not([open])'))
  .map(e => [e, e.getBoundingClientRect()])
  .filter(([e, r]) => r.width > 0 && (r.right > WIDTH + 1 || r.left < -1))
  .map(([e, r]) => e.tagName + ' ' + (e.textContent || '').slice(0, 30) + ' ' + r.right)"""

CHARTS = """[...document.querySelectorAll('svg.chart')]
  .map(e => [e.getAttribute('aria-label'), e.getBoundingClientRect(),
             e.querySelectorAll('rect, line, path, circle, text').length])
  .map(([label, r, parts]) => [label, r.width, r.height, parts])"""

UNREADABLE = """[...document.querySelectorAll('svg.chart text')]
  .filter(e => parseFloat(getComputedStyle(e).fontSize) < 11).length"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = chromium.found()
    assert path is not None, "make test-report needs Chromium on the path"
    with chromium.browser(path, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    two = (sample.evaluation(), sample.evaluation(0.09, candidate="smaller"))
    pages = {
        "evaluation": html.evaluation_page(sample.evaluation()),
        "compress": html.compress_page(sample.compress_report()),
        "certificate": html.certificate_page(any_record(Certificate, WORDS)),
        "long": html.evaluation_page(sample.evaluation(candidate=LONG)),
        "comparison": comparison_page(compare(*two, ("a.json", "b.json"))),
        "validation": validation_page(any_record(Validation, WORDS)),
        "record": html.record_page("Speed", any_record(SpeedReport, LONG)),
        "details": html.record_page("Details", sample_details.details()),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    return folder


PAGES = (
    "evaluation",
    "long",
    "compress",
    "certificate",
    "comparison",
    "validation",
    "record",
    "details",
)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_fetched_and_nothing_complained_of(page, files, name, dark):
    page.open(files / f"{name}.html", width=DESK, dark=dark)
    assert page.requests == [(files / f"{name}.html").as_uri()]
    assert page.complaints == []


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_scrolls_sideways_or_leaves_the_page(page, files, name, width):
    page.open(files / f"{name}.html", width=width)
    page.value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(OVERFLOWING) == []
    assert page.value(OUTSIDE.replace("WIDTH", str(width))) == []


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", ["evaluation", "compress"])
def test_every_chart_is_drawn_with_letters_that_can_be_read(page, files, name, width):
    page.open(files / f"{name}.html", width=width)
    drawn = page.value(CHARTS)
    labels = " ".join(label for label, *_ in drawn)
    wanted = ["Bytes by number format", "Relative error of each", "by KL divergence", "margin"]
    wanted += ["Recipes tried"] if name == "compress" else []
    assert all(part in labels for part in wanted)
    for label, across, down, parts in drawn:
        assert across > (9 if "layer" in label else 4), label
        assert down > 4, label
        assert parts > 0, label
    assert page.value(UNREADABLE) == 0


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_curves_distributions_and_examples_are_drawn(page, files, width):
    page.open(files / "details.html", width=width)
    drawn = {label: parts for label, across, down, parts in page.value(CHARTS) if across > 200}
    assert drawn["Divergence by position: nats along position, tokens"] > 8 * 2
    assert drawn["Gap between tokens, 4 requests at once: source above, candidate below"] > 20
    columns = page.value(
        "getComputedStyle(document.querySelector('.answers')).gridTemplateColumns.split(' ').length"
    )
    assert columns == (1 if width == PHONE else 2)


def test_dark_is_dark_and_light_is_light(page, files):
    def lightness():
        shade = page.value("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", shade)[:3]))

    page.open(files / "evaluation.html", width=DESK, dark=True)
    dark = lightness()
    page.open(files / "evaluation.html", width=DESK)
    assert dark < 120
    assert lightness() > 600


def test_it_prints_with_what_is_folded(page, files):
    page.open(files / "evaluation.html", width=DESK)
    printed = page.pdf()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 3
    page.call("Emulation.setEmulatedMedia", media="print")
    tall = page.value(
        "[...document.querySelectorAll('details table')].map(t => t.getBoundingClientRect().height)"
    )
    page.call("Emulation.setEmulatedMedia", media="")
    assert tall
    assert all(height > 20 for height in tall)


def test_what_goes_wrong_is_noticed(page, tmp_path):
    """The negative control: a page with every fault that the tests look for."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><body><div style='width:900px'>wide</div>"
        "<img src='file:///absent.png'><script>throw Error('oh')</script>"
        "<svg class='chart' aria-label='empty' height='0'></svg>"
    )
    page.open(bad, width=PHONE)
    assert len(page.requests) == 2
    assert any("oh" in said or "Uncaught" in said for said in page.complaints)
    assert page.value("document.documentElement.scrollWidth") > PHONE
    assert page.value(OUTSIDE.replace("WIDTH", str(PHONE)))
    assert page.value(CHARTS)[0][2] == 0
