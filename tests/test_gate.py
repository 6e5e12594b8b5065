"""The gate: slices, findings, what was not measured, and the error rates of its decisions."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from fewbit.errors import FaultError, NumericalError, UsageError
from fewbit.evaluate.gating.estimates import Draws
from fewbit.evaluate.gating.gate import holm, items_needed, judge, waived
from fewbit.records.gate import Gate, SliceRule, Waiver
from fewbit.records.measurement import AxisResult, Finding, Item, Measure, Slice
from fewbit.records.outcome import Outcome

A, R, I = Outcome.ACCEPT, Outcome.REJECT, Outcome.INCONCLUSIVE  # noqa: E741
DRAWS = Draws()
KL, PPL = "language/kl", "language/perplexity"


def items(candidate, source=None, floor=None, clusters=None):
    count = len(candidate)
    return tuple(
        Item(
            name=str(i),
            cluster=str(i if clusters is None else clusters[i]),
            source=0.0 if source is None else float(source[i]),
            candidate=float(candidate[i]),
            floor=None if floor is None else float(floor[i]),
        )
        for i in range(count)
    )


def part(name, found, measure=Measure.MEAN, unit=""):
    axis = name.partition("/")[0]
    return Slice(name=name, axis=axis, measure=measure, unit=unit, title="harm", items=found)


def axis(*slices, findings=(), name="language"):
    return AxisResult(axis=name, slices=slices, findings=findings, seconds=0.0)


def gate(*rules, level=0.95, waive=()):
    made = tuple(SliceRule(match=m, margin=margin, minimum_items=12) for m, margin in rules)
    return Gate(level=level, slices=made, waive=waive)


def normal(mean, spread=0.01, count=40, seed=0):
    """Values of exactly this mean, so that what follows is known."""
    x = np.random.default_rng(seed).standard_normal(count)
    return mean + spread * (x - x.mean()) / x.std(ddof=1)


def verdict(*args, **kwargs):
    return judge(*args, **kwargs, draws=DRAWS)[1]


GATE = gate((KL, 0.05), (PPL, 1.03))


@pytest.mark.parametrize(
    ("kl", "loss", "outcome"),
    [
        (0.03, 0.01, A),
        (0.03, math.log(1.03), I),
        (0.03, 0.06, R),
        (0.05, 0.01, I),
        (0.05, 0.06, R),
        (0.07, 0.01, R),
        (0.07, 0.06, R),
    ],
)
def test_the_worst_slice_decides(kl, loss, outcome):
    slices = part(KL, items(normal(kl))), part(PPL, items(normal(loss)), Measure.PERPLEXITY)
    assert verdict([axis(*slices)], GATE).outcome is outcome


def test_a_perplexity_is_judged_as_a_ratio():
    (one,), _ = judge([axis(part(PPL, items(normal(0.01)), Measure.PERPLEXITY))], gate((PPL, 1.03)))
    assert one.figure.value == pytest.approx(math.exp(0.01))
    assert one.figure.low < one.figure.value < one.figure.high < 1.03


def test_no_perplexity_lies_under_a_margin_of_nothing():
    found = axis(part(PPL, items(normal(0.01)), Measure.PERPLEXITY))
    assert verdict([found], gate((PPL, 0.0))).outcome is R


def test_a_ratio_is_of_sums():
    source = np.full(40, 2.0)
    found = part("speed/task", items(source * 1.2, source), Measure.RATIO)
    (one,), said = judge([axis(found, name="speed")], gate(("speed/task", 1.1)))
    assert one.figure.value == pytest.approx(1.2)
    assert said.outcome is R


def test_a_rounded_figure_never_passes():
    """0.946 that rounds to a bar of 95% must not pass: an upper bound 1e-10 over its margin."""
    found = axis(part(KL, items(normal(0.03))))
    (one,), _ = judge([found], gate((KL, 0.05)), DRAWS)
    high = one.figure.high
    assert judge([found], gate((KL, high - 1e-10)), DRAWS)[1].outcome is I
    assert judge([found], gate((KL, high + 1e-10)), DRAWS)[1].outcome is A


def test_the_excess_over_the_floor_is_judged():
    floor = normal(0.04, seed=1)
    found = axis(part(KL, items(floor + normal(0.03), floor=floor)))
    (one,), said = judge([found], gate((KL, 0.05)), DRAWS)
    assert said.outcome is A
    assert one.figure.value == pytest.approx(0.07)
    assert one.floor.value == pytest.approx(0.04)
    assert one.excess.value == pytest.approx(0.03)
    assert "The excess of language/kl" in said.reasons[0]
    plain = replace(gate((KL, 0.05)).slices[0], excess=False)
    assert verdict([found], Gate(slices=(plain,))).outcome is R


def test_without_a_floor_the_figure_itself_is_judged():
    found = items(normal(0.07), floor=normal(0.04))
    last = replace(found[-1], floor=None)
    assert verdict([axis(part(KL, (*found[:-1], last)))], gate((KL, 0.05))).outcome is R


def test_too_few_items_or_clusters_judge_nothing():
    few = axis(part(KL, items(normal(9.0, count=11))))
    (one,), said = judge([few], gate((KL, 0.05)))
    assert said.outcome is I
    assert one.items_needed == 12
    assert "at least 12 in 12 are needed" in one.reason
    alike = axis(part(KL, items(normal(0.01), clusters=[i % 3 for i in range(40)])))
    (one,), said = judge([alike], gate((KL, 0.05)))
    assert said.outcome is I
    assert one.figure.low is None
    assert one.items_needed == 160


def test_a_slice_without_a_margin_is_shown_and_not_judged():
    more = part("language/kl/code", items(normal(9.0)))
    judgements, said = judge([axis(part(KL, items(normal(0.01))), more)], gate((KL, 0.05)))
    assert said.outcome is A
    assert judgements[1].outcome is None
    assert "has no margin" in judgements[1].reason


def test_nothing_judged_accepts_nothing():
    rule = SliceRule(match="tasks/*", margin=0.1, optional=True)
    found = axis(part(KL, items(normal(0.0))))
    assert verdict([found], Gate(slices=(rule,))).outcome is I


def test_what_must_be_measured_and_was_not_is_inconclusive():
    rules = gate((KL, 0.05), ("tasks/*", 0.02))
    said = verdict([axis(part(KL, items(normal(0.01))))], rules)
    assert said.outcome is I
    assert said.reasons[0].startswith("Nothing that 'tasks/*' fits was measured")
    optional = tuple(replace(rule, optional=True) for rule in rules.slices)
    said = verdict([axis(part(KL, items(normal(0.01))))], Gate(slices=optional))
    assert said.outcome is A
    assert said.reasons[-1] == "Declared, optional and not measured: tasks/*."


def test_a_slice_that_could_be_and_was_not_measured_is_inconclusive():
    """What no axis can bring is refused before (test_gate_declared); now the work is done."""
    said = verdict([axis(part(KL, items(normal(0.01))))], gate((KL, 0.05), ("language/kl/code", 1)))
    assert said.outcome is I
    assert said.reasons[0].startswith("Nothing that 'language/kl/code' fits was measured")


def test_the_first_rule_that_fits_counts():
    found = axis(part(KL, items(normal(0.07))))
    fallback = SliceRule(match="language/*", margin=0.01, optional=True)
    assert verdict([found], Gate(slices=(*gate((KL, 0.1)).slices, fallback))).outcome is A
    assert verdict([found], gate(("language/*", 0.01), (KL, 0.1))).outcome is R


def test_what_an_earlier_rule_judges_is_not_measured_for_a_later_one():
    found, rules = axis(part(KL, items(normal(0.01)))), gate((KL, 0.05), ("language/*", 1.03))
    said = verdict([found], rules)
    assert said.outcome is I
    assert said.reasons[0] == (
        "Of what 'language/*' fits only what earlier rules judge was measured (language/kl), and "
        "its margin is not optional."
    )
    more = part(PPL, items(np.full(40, 0.001)), Measure.PERPLEXITY)
    assert verdict([axis(*found.slices, more)], rules).outcome is A


FAILED = Finding(name="kernels/float", axis="kernels", passed=False, found="One layer ran in bf16.")


def test_a_failed_finding_rejects_whatever_the_figures():
    said = verdict([axis(part(KL, items(normal(0.01))), findings=(FAILED,))], gate((KL, 0.05)))
    assert said.outcome is R
    assert said.reasons[0] == "kernels/float: One layer ran in bf16."


def test_a_waived_finding_does_not_hinder_and_is_shown_with_its_reason():
    waive = (Waiver(finding="kernels/float", reason="The head is small."),)
    found = [axis(part(KL, items(normal(0.01))), findings=(FAILED,))]
    said = verdict(found, gate((KL, 0.05), waive=waive))
    assert said.outcome is A
    assert "kernels/float: One layer ran in bf16 (waived: The head is small)." in said.reasons
    assert waived(found, gate(waive=waive))[0].findings[0].waived == "The head is small."


def test_pooled_slices_are_judged_as_one_and_shown_alone():
    d = np.zeros(60)
    tasks = [part(f"tasks/{n}", items(d, d), Measure.PROPORTION) for n in ("a", "b", "c")]
    spread = [
        replace(s, items=tuple(replace(i, cluster=s.name + i.name) for i in s.items)) for s in tasks
    ]
    rule = SliceRule(match="tasks/*", margin=0.03, pool=True)
    judgements, said = judge([axis(*spread, name="tasks")], Gate(slices=(rule,)))
    assert said.outcome is A
    assert [(j.slice, j.items) for j in judgements if j.outcome] == [("tasks/*", 180)]
    apart = Gate(slices=(replace(rule, pool=False),))
    assert verdict([axis(*spread, name="tasks")], apart).outcome is I
    # Items of one cluster in several slices are one cluster: 60 of them do not suffice.
    assert verdict([axis(*tasks, name="tasks")], Gate(slices=(rule,))).outcome is I


def test_slices_of_two_measures_are_not_pooled():
    one = part("tasks/a", items(np.zeros(20)), Measure.PROPORTION)
    other = part("tasks/b", items(np.zeros(20)))
    rule = SliceRule(match="tasks/*", margin=0.03, pool=True)
    with pytest.raises(UsageError, match="tasks/a is a proportion, tasks/b is a mean"):
        judge([axis(one, other, name="tasks")], Gate(slices=(rule,)))


def test_no_failure_in_200_is_shown_with_its_bound():
    found = part("tasks/a", items(np.zeros(200), np.zeros(200)), Measure.PROPORTION)
    (one,), said = judge([axis(found, name="tasks")], gate(("tasks/a", 0.01)))
    assert said.outcome is I  # the difference is bounded at 1.9%, not known to be 0
    assert one.figure.high == pytest.approx(0.0188, abs=1e-4)
    assert "candidate 0 of 200 (under 1.5% at 95%" in one.reason
    assert "0 by the candidate alone, 0 by the source alone" in one.reason


@pytest.mark.parametrize("arm", ["source", "candidate", "floor"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_never_left_out(arm, value):
    found = items(normal(0.01), floor=normal(0.01))
    found = (*found[:7], replace(found[7], **{arm: value}), *found[8:])
    with pytest.raises(NumericalError, match=f"The {arm} .* at '7' of language/kl"):
        judge([axis(part(KL, found))], gate((KL, 0.05)))


@pytest.mark.parametrize(
    ("measure", "change"),
    [
        (Measure.PROPORTION, {"candidate": 0.5}),
        (Measure.RATIO, {"source": 0.0}),
        (Measure.MEAN, {"weight": 0.0}),
    ],
)
def test_values_that_a_measure_does_not_allow_are_faults(measure, change):
    found = items(np.ones(20), np.ones(20))
    found = (replace(found[0], **change), *found[1:])
    with pytest.raises(FaultError):
        judge([axis(part("speed/task", found, measure), name="speed")], gate(("speed/task", 1.1)))


def test_holm_is_bonferroni_first_and_steps_down():
    assert holm([0.02, 0.5, 0.005], 0.025) == [False, False, True]
    assert holm([0.011, 0.5, 0.005], 0.025) == [True, False, True]
    assert holm([0.012, 0.012, 0.012], 0.03) == [False, False, False]
    assert holm([], 0.025) == []


def test_many_slices_over_by_chance_do_not_reject_and_say_why():
    """Twenty slices on their margins: one lies over by its own interval, by Holm's none."""
    rng = np.random.default_rng(4)
    slices = [part(f"tasks/{i}", items(rng.standard_normal(40))) for i in range(19)]
    over = part("tasks/over", items(normal(2.4 / math.sqrt(40), 1.0)))
    judgements, said = judge([axis(*slices, over, name="tasks")], gate(("tasks/*", 0.0)))
    assert said.outcome is I
    assert "but not by Holm's correction over 20 slices" in judgements[-1].reason
    assert verdict([axis(over, name="tasks")], gate(("tasks/*", 0.0))).outcome is R


def test_far_over_a_margin_rejects_among_many_slices_and_few_clusters():
    """The tail of 4,000 draws ends at 1 in 4,000; how far outside a margin lies must count."""
    slices = [part(f"tasks/{i}", items(normal(0.0, 0.1, 12))) for i in range(59)]
    bad = part("tasks/bad", items(normal(5.0, 1.0, 12)))
    assert verdict([axis(*slices, bad, name="tasks")], gate(("tasks/*", 0.5))).outcome is R


def test_the_items_needed_would_decide_as_often_as_promised():
    """A normal mean half-way to its margin: 80% of sets of that size decide; 100 sets, 3 errors."""
    rule, rng = gate((KL, 0.05)), np.random.default_rng(6)
    even = normal(0.0, 0.04, 20)
    (one,), _ = judge([axis(part(KL, items(0.04 + np.concatenate([even, -even]))))], rule)
    assert one.outcome is I
    # The deviate, 1.6, is read from 4,000 draws, which know it to .04; it counts squared.
    assert one.items_needed == pytest.approx((0.04 / 0.01 * (1.96 + 0.8416)) ** 2, rel=0.15)
    decided = sum(
        verdict(
            [axis(part(KL, items(0.04 + 0.04 * rng.standard_normal(one.items_needed))))], rule
        ).outcome
        is A
        for _ in range(100)
    )
    assert abs(decided / 100 - 0.8) < 3 * math.sqrt(0.16 / 100)


def test_a_figure_on_its_margin_needs_more_items_than_there_could_be():
    assert items_needed(40, 0.0, 0.025) is None
    assert items_needed(40, 1e-9, 0.025) is None
    assert items_needed(40, -1.0, 0.025) == math.ceil(40 * (1.959964 + 0.841621) ** 2)


def test_at_the_margin_the_gate_accepts_and_rejects_rarely():
    """True figure on the margin, skewed items, 200 sets: the bounds err 3.4% above, 1.2% below."""
    rng, truth = np.random.default_rng(7), math.exp(0.7**2 / 2)
    found = [
        verdict(
            [axis(part(KL, items(np.exp(0.7 * rng.standard_normal(40)))))], gate((KL, truth))
        ).outcome
        for _ in range(200)
    ]
    assert found.count(A) <= 200 * 0.034 + 3 * math.sqrt(200 * 0.034)
    assert found.count(R) <= 200 * 0.012 + 3 * math.sqrt(200 * 0.012)
    assert found.count(I) > 170


def test_reasons_are_sentences_the_deciding_ones_first():
    slices = part(KL, items(normal(0.01))), part(PPL, items(normal(0.5)), Measure.PERPLEXITY)
    said = verdict([axis(*slices)], GATE)
    assert said.outcome is R
    assert said.reasons[0].startswith("language/perplexity (harm)")
    for reason in said.reasons:
        assert reason.endswith(".")


def test_losses_beyond_a_float_reject_and_are_finite():
    """A candidate whose logits blew up has losses of thousands of nats: exp of them is no float."""
    huge = items(normal(2000.0, spread=100.0), source=normal(2.0))
    found = judge([axis(part(PPL, huge, Measure.PERPLEXITY))], gate((PPL, 1.03)), DRAWS)
    assert found[1].outcome is R
    figure = found[0][0].figure
    assert math.isfinite(figure.value) and math.isfinite(figure.high) and figure.low > 1e300
