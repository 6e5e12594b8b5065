"""Margins that grow with the source's own rate: coverage against enumerated draws, and the gate."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from fewbit.evaluate.gating.file import find_gate
from fewbit.evaluate.gating.gate import judge
from fewbit.evaluate.gating.proportions import paired_counts
from fewbit.evaluate.gating.relative import allowed, wilson
from fewbit.records.gate import Gate, SliceRule
from fewbit.records.measurement import AxisResult, Item, Measure, Slice
from fewbit.records.outcome import Outcome

SHARE, MARGIN = 0.2, 0.05
RULE = SliceRule(match="tools/loops", margin=MARGIN, relative=SHARE)


def of(base, harmed, clusters=None, share=SHARE):
    base, harmed = np.asarray(base, float), np.asarray(harmed, float)
    where = np.arange(len(base)) if clusters is None else np.asarray(clusters)
    return allowed(paired_counts(harmed - base, where), harmed - base, base, where, share)


def drawn(rng, items, source, candidate, common=0.5):
    """Return failures of both arms, a share of the smaller rate failing on both."""
    both = common * min(source, candidate)
    pick = rng.random(items)
    s = pick < source
    c = (pick < both) | ((pick >= source) & (pick < source + candidate - both))
    return s.astype(float), c.astype(float)


def result(base, harmed):
    items = tuple(
        Item(name=str(i), cluster=str(i), source=s, candidate=c)
        for i, (s, c) in enumerate(zip(base, harmed, strict=True))
    )
    found = Slice(
        name="tools/loops",
        axis="tools",
        measure=Measure.PROPORTION,
        unit="",
        title="loops",
        items=items,
    )
    return AxisResult(axis="tools", slices=(found,), seconds=0.0)


def judged(base, harmed, rule=RULE):
    (one,), _ = judge([result(base, harmed)], Gate(slices=(rule,)))
    return one


def test_wilsons_interval_solves_its_own_equation():
    for rate, items in ((0.0, 50), (0.147, 252), (1.0, 30)):
        for bound in wilson(rate, items, 1.96):
            if 0.0 < bound < 1.0:
                score = (rate - bound) / math.sqrt(bound * (1 - bound) / items)
                assert abs(score) == pytest.approx(1.96, rel=1e-9)


def test_nothing_is_allowed_where_the_source_has_no_failure():
    """The interval is Tango's own then, but for what the rate may be that was measured as 0."""
    base, harmed = np.zeros(200), np.r_[np.ones(4), np.zeros(196)]
    found, plain = of(base, harmed), paired_counts(harmed - base, np.arange(200))
    assert found.allowance == 0.0
    assert found.interval(0.95).high == pytest.approx(plain.interval(0.95).high)
    one = judged(base, harmed)
    assert one.margin == MARGIN
    assert one.outcome is Outcome.INCONCLUSIVE


def test_a_deviate_is_where_the_interval_ends():
    rng = np.random.default_rng(3)
    found = of(*drawn(rng, 252, 0.15, 0.18))
    interval = found.interval(0.95)
    # Bisection knows a deviate to 40 / 2^20.
    assert found.deviate(interval.high) == pytest.approx(1.95996, abs=1e-4)
    assert found.deviate(interval.low) == pytest.approx(-1.95996, abs=1e-4)
    assert found.chance_under(interval.low) == pytest.approx(0.025, abs=1e-4)
    assert found.chance_under(interval.high) == pytest.approx(0.975, abs=1e-4)
    chances = [found.chance_under(bound) for bound in np.linspace(-0.2, 0.3, 9)]
    assert chances == sorted(chances)


def test_the_interval_is_wider_than_the_differences_alone():
    """The margin's own noise is in it: taken as known, the source's rate would be free money."""
    rng = np.random.default_rng(4)
    base, harmed = drawn(rng, 252, 0.15, 0.18)
    plain = paired_counts(harmed - base, np.arange(252)).interval(0.95)
    assert of(base, harmed).interval(0.95).high > plain.high


@pytest.mark.parametrize("source", [0.03, 0.15, 0.47])
def test_at_the_margin_few_sets_are_accepted(source):
    """400 sets of 252 answers: at most 5%, with three standard errors (1.1%) of the count."""
    rng = np.random.default_rng(7)
    candidate = source + MARGIN + SHARE * source
    accepted = 0
    for _ in range(400):
        found = of(*drawn(rng, 252, source, candidate))
        accepted += found.interval(0.95).high < MARGIN + found.allowance
    assert accepted / 400 <= 0.05 + 0.011


def test_an_equal_candidate_of_a_rambling_source_is_accepted_mostly_and_a_bad_one_is_not():
    """The negative control is the margin without a share, which leaves nearly all undecided."""
    rng = np.random.default_rng(8)
    plain = replace(RULE, relative=0.0)
    count = {(rule.relative, o): 0 for rule in (RULE, plain) for o in Outcome}
    for _ in range(60):
        base, harmed = drawn(rng, 252, 0.15, 0.15, common=0.35)
        for rule in (RULE, plain):
            count[rule.relative, judged(base, harmed, rule).outcome] += 1
    assert count[SHARE, Outcome.ACCEPT] >= 40
    assert count[0.0, Outcome.ACCEPT] <= 30
    assert count[SHARE, Outcome.REJECT] == 0
    assert judged(*drawn(rng, 252, 0.15, 0.45)).outcome is Outcome.REJECT
    assert judged(np.zeros(252), np.r_[np.ones(60), np.zeros(192)]).outcome is Outcome.REJECT


def test_clusters_of_several_answers_tell_less():
    rng = np.random.default_rng(9)
    base, harmed = (np.repeat(values, 4) for values in drawn(rng, 63, 0.15, 0.2))
    apart, together = of(base, harmed), of(base, harmed, np.repeat(np.arange(63), 4))
    assert together.interval(0.95).high > apart.interval(0.95).high


def test_the_reason_says_what_the_margin_is_made_of():
    base, harmed = np.r_[np.ones(30), np.zeros(170)], np.r_[np.ones(30), np.zeros(170)]
    one = judged(base, harmed)
    assert one.outcome is Outcome.ACCEPT
    assert one.margin == pytest.approx(0.05 + 0.2 * 0.15)
    assert (
        "the margin of 0.08 (0.05, and 0.2 of the 15.0% that the source has itself)" in one.reason
    )


def test_where_no_candidate_could_be_accepted_that_is_said_with_what_would_do():
    """40 of 200 differ either way: an interval wider than its margin around no difference."""
    base, harmed = np.r_[np.ones(20), np.zeros(180)], np.r_[np.zeros(180), np.ones(20)]
    one = judged(base, harmed, replace(RULE, relative=0.0))
    assert one.outcome is Outcome.INCONCLUSIVE
    assert "200 items cannot accept even a candidate with the same rate, about" in one.reason
    needed = int(one.reason.partition("same rate, about ")[2].partition(" ")[0].replace(",", ""))
    many = needed / 200  # each item so often: the same rates on so many items
    repeated = judged(
        *(np.repeat(v, round(many)) for v in (base, harmed)), replace(RULE, relative=0.0)
    )
    assert repeated.outcome is Outcome.ACCEPT


def test_few_items_that_never_differ_are_not_said_to_differ():
    """None of 60 differs: the interval reaches over 5 points for their number alone."""
    never = judged(np.zeros(60), np.zeros(60), replace(RULE, relative=0.0))
    assert never.outcome is Outcome.INCONCLUSIVE
    assert "60 items cannot accept even a candidate with the same rate" in never.reason
    assert "differ" not in never.reason


def test_the_built_in_gate_allows_a_share_of_loops_and_caps_alone():
    shares = {rule.match: rule.relative for rule in find_gate(None).slices if rule.relative}
    assert shares == {"tools/loops": SHARE, "answers/cap": SHARE}
