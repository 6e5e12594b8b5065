"""Strips in units of their margins, and how single items went."""

import re

import pytest
import sample_evaluation as sample
from msgspec.structs import replace

from fewbit.records.gate import SliceRule
from fewbit.records.interval import Interval
from fewbit.report.html import evaluation_page
from fewbit.report.judged import deciding, rows_of
from fewbit.report.strips import Flips, Strip, flip_chart, flips_of, strip_chart


def strip(value, low, high, *, margin=0.05, origin=0.0, floor=None, outcome="ACCEPT"):
    figure = Interval(value=value, low=low, high=high)
    return Strip("x", figure, floor, margin, origin, outcome)


def places(drawing, kind):
    """Return (x, width) in percent of rectangles of a class."""
    found = re.findall(rf'<rect x="([\d.]+)%" [^>]*width="([\d.]+)%" [^>]*class="{kind}"', drawing)
    return [(float(x), float(wide)) for x, wide in found]


def test_figures_of_any_unit_lie_at_the_same_place_when_they_use_as_much_of_their_margin():
    nats = strip_chart(strip(0.025, 0.02, 0.03))
    ratio = strip_chart(strip(1.015, 1.012, 1.018, margin=1.03, origin=1.0))
    assert places(nats, "interval") == [pytest.approx(p) for p in places(ratio, "interval")]


def test_an_interval_ends_before_the_margin_exactly_where_it_is_met():
    for high, inside in ((0.0499, True), (0.0501, False)):
        drawing = strip_chart(strip(0.03, 0.02, high))
        ((start, wide),), ((_, allowed),) = places(drawing, "interval"), places(drawing, "allowed")
        assert (start + wide < allowed) is inside


def test_what_lies_far_beyond_is_an_arrow_with_its_figure():
    drawing = strip_chart(strip(1.7, 1.5, 1.9, outcome="REJECT"))
    assert "1.7 ▸" in drawing
    assert all(start + wide <= 100 for start, wide in places(drawing, "interval"))
    assert "▸" not in strip_chart(strip(0.02, 0.01, 0.03))


def test_the_noise_floor_is_drawn_where_there_is_one():
    floor = Interval(value=0.004, low=0.003, high=0.005)
    assert "noise floor: 0.004" in strip_chart(strip(0.02, 0.01, 0.03, floor=floor))
    assert "floor" not in strip_chart(strip(0.02, 0.01, 0.03))


def test_flips_are_counted_by_direction():
    flips = flips_of([(0, 0), (0, 1), (0, 1), (1, 0), (1, 1), (0, 0)])
    assert flips == Flips(both_right=2, harmful=2, helpful=1, both_wrong=1)
    drawing = flip_chart(flips)
    assert "harmed: 2 of 6" in drawing
    assert sum(wide for _, wide in places(drawing, r"flip-\w+")) == pytest.approx(100, abs=0.1)
    assert flip_chart(flips_of([])) == ""


def test_rows_have_title_unit_arms_and_margin_in_words():
    kl, perplexity, tasks, speed = rows_of(sample.evaluation())
    assert kl.words(kl.judged) == "0.031 [0.0279, 0.0341] nats"
    assert kl.arm("floor") == "0.004 nats"
    assert perplexity.unit == "×"
    assert tasks.margin == "8 points"
    assert tasks.words(tasks.judged) == "+5.0 [+0.4, +12.0] points"
    assert tasks.arm("source").endswith("%")
    assert tasks.flips.harmful > 0
    assert speed.strip is None
    assert speed.word == "NOT JUDGED"
    assert perplexity.arm("floor") == ""


def test_where_it_is_not_accept_only_what_stood_in_the_way_is_told():
    accepted, rejected = sample.evaluation(), sample.evaluation(0.3)
    passed = "kernels/float: All 210 matrices ran packed."
    assert deciding((passed, *accepted.verdict.reasons), accepted) == accepted.verdict.reasons
    told = deciding((*rejected.verdict.reasons, passed), rejected)
    assert told[0].startswith("language/kl")
    assert not any(reason.startswith(("language/perplexity", "kernels/float")) for reason in told)
    assert deciding(("x",), None) == ("x",)


def test_many_reasons_are_folded():
    e = sample.evaluation()
    reasons = tuple(f"Reason {i}." for i in range(20))
    page = evaluation_page(replace(e, verdict=replace(e.verdict, reasons=reasons)))
    assert "<summary>13 more</summary>" in page
    assert all(reason in page for reason in reasons)


def test_a_pool_has_the_slices_that_no_earlier_rule_takes():
    e = sample.evaluation()
    more = sample.tasks_axis("tasks/words"), sample.tasks_axis("tasks/names")
    rules = (
        SliceRule(match="tasks/arithmetic", margin=0.08),
        SliceRule(match="tasks/*", margin=0.08, pool=True),
    )
    pooled = replace(e.judgements[2], slice="tasks/*")
    e = replace(
        e,
        axes=(*e.axes, *more),
        gate=replace(e.gate, slices=rules),
        judgements=(e.judgements[2], pooled),
    )
    alone, together = rows_of(e)
    assert [s.name for s in alone.slices] == ["tasks/arithmetic"]
    assert [s.name for s in together.slices] == ["tasks/words", "tasks/names"]
    assert together.title == "tasks/*, 2 slices as one"
    assert together.flips.all == 160
