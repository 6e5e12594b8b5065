"""benchmarks/gate.py: sets drawn anew, truths on their margins, and what a fault is caught by."""

from types import SimpleNamespace

import numpy as np
import pytest
from benchmark_modules import imported
from msgspec.structs import replace

from fewbit.evaluate.gating.gate import judge
from fewbit.records.gate import Gate, SliceRule
from fewbit.records.kept import open_kept
from fewbit.records.measurement import AxisResult, Item, Measure, Slice
from fewbit.records.outcome import Outcome

NAMES = (
    *("resampling", "built_in", "synthetic", "off_grid"),
    *("planted", "measuring", "trials", "gate"),
)
KL = "language/kl"
GATE = Gate(slices=(SliceRule(match=KL, margin=0.05, minimum_items=12),))


@pytest.fixture(scope="module")
def benchmark():
    with imported(NAMES) as modules:
        yield modules


def measured(mean, count=60, names=(KL,), seed=0):
    values = mean * np.exp(0.5 * np.random.default_rng(seed).standard_normal(count))
    items = tuple(
        Item(name=f"d{i}", cluster=f"d{i // 2}", source=0.0, candidate=float(v))
        for i, v in enumerate(values)
    )
    slices = tuple(
        Slice(name=n, axis="language", measure=Measure.MEAN, unit="nats", title="KL", items=items)
        for n in names
    )
    return AxisResult(axis="language", slices=slices, seconds=0.0)


@pytest.mark.parametrize(("mean", "outcome"), [(0.01, Outcome.ACCEPT), (0.5, Outcome.REJECT)])
def test_what_is_far_from_its_margin_is_decided_on_every_set(benchmark, mean, outcome):
    draw = benchmark["resampling"].Resampled.of([measured(mean)], GATE)
    rates = benchmark["resampling"].verdicts(draw, GATE, sets=30)
    assert rates.share(outcome) == 1.0
    assert rates.describe(outcome) == "100.0% [88.4%, 100.0%]"


def test_a_set_has_whole_clusters_of_all_slices_together(benchmark):
    population = benchmark["resampling"].Population(measured(0.1, names=(KL, "language/x")))
    drawn = population.drawn(np.random.default_rng(0))
    one, other = drawn.slices
    assert [i.candidate for i in one.items] == [i.candidate for i in other.items]
    assert len(one.items) == 60
    assert {i.cluster for i in one.items} == {str(i) for i in range(30)}
    assert len({i.name for i in one.items}) < 60  # with replacement


def test_slices_without_a_common_cluster_are_drawn_apart(benchmark):
    one, other = measured(0.1), measured(0.1, count=10, names=("language/chat",))
    apart = tuple(replace(i, cluster="chat" + i.cluster) for i in other.slices[0].items)
    axis = replace(one, slices=(*one.slices, replace(other.slices[0], items=apart)))
    drawn = benchmark["resampling"].Population(axis).drawn(np.random.default_rng(0))
    assert [len(found.items) for found in drawn.slices] == [60, 10]
    assert not {i.cluster for i in drawn.slices[0].items} & {
        i.cluster for i in drawn.slices[1].items
    }


def test_what_decides_is_kept_and_decides_the_same(benchmark):
    found = measured(0.06, names=(KL, "language/x"))
    floors = tuple(replace(i, floor=0.02) for i in found.slices[0].items)
    axes = [replace(found, slices=(replace(found.slices[0], items=floors), found.slices[1]))]
    kept = benchmark["resampling"].held(axes, GATE)
    assert [s.name for s in kept[0].slices] == [KL]
    (whole, _), said = judge(axes, GATE)
    (one,), also = judge(kept, GATE)
    assert one.figure == whole.excess
    assert also.outcome is said.outcome


def test_on_its_margin_a_truth_is_rarely_decided(benchmark):
    axes = [measured(0.1)]
    gate = benchmark["resampling"].at_margin(axes, GATE, KL)
    (one,), _ = judge(axes, gate)
    assert one.figure.value == gate.slices[0].margin
    draw = benchmark["resampling"].Resampled.of(axes, gate)
    rates = benchmark["resampling"].verdicts(draw, gate, sets=100)
    assert rates.share(Outcome.INCONCLUSIVE) > 0.85


def test_always_inconclusive_misses_the_targets(benchmark, capsys):
    gate, always = benchmark["gate"], benchmark["resampling"].always
    good = benchmark["planted"].Kind.GOOD
    assert not gate.show([gate.Row("x", good, always(Outcome.INCONCLUSIVE, 300))])
    assert "ACCEPT >= 95%: NOT MET" in capsys.readouterr().out
    assert gate.show([gate.Row("x", good, always(Outcome.ACCEPT, 300))])


def test_a_row_that_misses_is_not_hidden_by_those_that_meet(benchmark, capsys):
    gate, resampling = benchmark["gate"], benchmark["resampling"]
    bad = benchmark["planted"].Kind.BAD
    rows = [gate.Row(f"x{i}", bad, resampling.always(Outcome.REJECT, 300)) for i in range(9)]
    missed = resampling.Rates({Outcome.REJECT: 210, Outcome.INCONCLUSIVE: 90})
    assert gate.show(rows)
    assert not gate.show([*rows, gate.Row("lost", bad, missed)])
    assert "REJECT >= 95%: NOT MET by lost\n" in capsys.readouterr().out


def test_a_refusal_counts_as_rejected_and_says_by_what(benchmark):
    planted, gate = benchmark["planted"], benchmark["gate"]
    candidate = planted.Candidate("x", planted.Kind.BAD, planted.itself)
    assert gate.settled(candidate, "identity: two templates") == (
        Outcome.REJECT,
        "identity: two templates",
    )
    assert gate.settled(candidate, "")[0] is Outcome.ACCEPT  # nothing was found of a fault


def test_what_decides_is_told_by_the_gate_of_today(benchmark):
    earlier = SimpleNamespace(axes=[measured(0.01)], judgements=())
    assert benchmark["gate"].decided_by(earlier).startswith("language/kl 0.01")
    assert benchmark["gate"].decided_by(earlier).endswith(" of 0.05")
    trials = list(benchmark["gate"].margin_trials(earlier, earlier))
    assert [one.name for one in trials] == ["language/kl on its margin"]


def trial(benchmark, draw, drawn_from="x"):
    return benchmark["trials"].Trial("x", benchmark["planted"].Kind.GOOD, GATE, draw, drawn_from)


def test_what_was_judged_is_kept_until_anything_that_decides_it_changes(benchmark, tmp_path):
    draw = benchmark["resampling"].Resampled.of([measured(0.01)], GATE)
    told, judge_all = [], benchmark["trials"].judge_all

    def rates(sets=5, **changed):
        kept = open_kept(tmp_path / "rates.jsonl")
        one = trial(benchmark, draw, **changed)
        return judge_all([one], sets, kept, 1, lambda what, done, of: told.append((done, of)))["x"]

    assert rates().share(Outcome.ACCEPT) == 1.0
    assert rates().sets == 5
    assert told == [(1, 1)]
    assert rates(sets=6).sets == 6
    rates(drawn_from="other items")
    assert len(told) == 3
