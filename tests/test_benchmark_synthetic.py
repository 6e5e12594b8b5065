"""benchmarks/built_in.py and synthetic.py: the suite's own sizes, truths that are what they say."""

import numpy as np
import pytest
from benchmark_modules import imported
from msgspec.structs import replace

from fewbit.evaluate.gating.declared import subjects
from fewbit.evaluate.gating.estimates import Draws, estimate
from fewbit.evaluate.gating.file import DEFAULT
from fewbit.evaluate.gating.gate import judge
from fewbit.evaluate.language.conversations import conversations, passages
from fewbit.evaluate.safety.axis import built_in_prompts
from fewbit.evaluate.tasks.built_in import built_in_tasks
from fewbit.evaluate.tools.structured_suite import builtin_schemas
from fewbit.evaluate.tools.suite import builtin_items
from fewbit.records.measurement import AxisResult, Measure


@pytest.fixture(scope="module")
def benchmark():
    with imported(("built_in", "synthetic")) as modules:
        yield modules


@pytest.fixture(scope="module")
def suite(benchmark):
    return benchmark["built_in"].built_in_slices()


@pytest.fixture(scope="module")
def sound(benchmark, suite):
    return benchmark["synthetic"].good(suite, DEFAULT)


def sizes(slices, axis):
    return {s.name: (len(s.items), len({i.cluster for i in s.items})) for s in slices
            if s.name.startswith(axis)}  # fmt: skip


def test_questions_are_those_of_the_suite(suite):
    tasks = {
        f"tasks/{t.spec.name}": (len(t.items), len({i.cluster for i in t.items}))
        for t in built_in_tasks()
    }
    assert sizes(suite, "tasks/") == tasks
    (prompts,) = built_in_prompts()
    assert sum(items for items, _ in sizes(suite, "safety/").values()) == len(prompts.items)
    calls, notes = builtin_items(), builtin_schemas()
    assert sizes(suite, "tools/arguments")["tools/arguments"][0] == sum(
        bool(item.expected) for item in calls
    )
    assert sizes(suite, "structured/")["structured/free"] == (
        len(notes),
        len({note.cluster for note in notes}),
    )
    assert sizes(suite, "answers/")["answers/cap"][0] == len(calls) + 2 * len(notes)


def test_texts_are_those_of_the_suite(suite):
    """Forty windows of as many documents; whatever tokenizer cuts them, these counts stay."""
    found = sizes(suite, "language/kl")
    assert found["language/kl"] == (40, 40)
    assert found["language/kl/prose"][0] + found["language/kl/code"][0] == 40
    assert found["language/kl/chat"][1] == len(conversations())
    assert found["language/kl/languages"][1] == len(passages().documents)


def test_long_texts_are_asked_about_text_by_text(suite):
    found = sizes(suite, "long-context/")
    assert found["long-context/recall"] == (180, 40)
    # Sixteen passages of 256 tokens, of which those beyond the first 512 count.
    assert found["long-context/kl"] == (14, 14)


def test_every_margin_but_those_of_mixtures_is_drawn(sound):
    names = {part.slice.name for part in sound.parts}
    axes = sound(np.random.default_rng(0))
    fits = {one.rule.match for one in subjects(axes, DEFAULT) if one.rule is not None}
    assert {rule.match for rule in DEFAULT.slices} - fits == {
        "numerics/rare-experts",
        "numerics/clipped",
    }
    assert "long-context/*" in names


def test_on_a_margin_the_truth_is_the_margin(benchmark, sound):
    """Means of 40 sets, within five standard errors of what the sets themselves vary by."""
    draws = Draws()
    for truth in benchmark["synthetic"].on_margin(sound, DEFAULT):
        rng, found = np.random.default_rng(1), []
        part = next(p for p in truth.parts if p.slice.name == truth.name)
        rule = benchmark["synthetic"].rule_of(DEFAULT, part)
        for _ in range(40):
            one = part.drawn(rng)
            figure = estimate(one, draws).figure.value
            found.append(figure - rule.relative * np.mean([i.source for i in one.items]))
        margin, measure = rule.margin, one.measure
        deviation = np.std(found) / np.sqrt(len(found))
        bias = 0.01 * margin if measure in {Measure.PERPLEXITY, Measure.RATIO} else 0.0
        assert abs(np.mean(found) - margin) < 5 * deviation + bias, truth.name


def test_a_gate_of_slices_apart_says_the_same(benchmark, suite, sound):
    """Items of eight tasks as one slice, and as eight that a rule judges as one."""
    part = next(p for p in sound.parts if p.slice.name == "tasks/*").at(0.05)
    items = {item.name: item for item in part.drawn(np.random.default_rng(3)).items}
    tasks = [s for s in suite if s.name.startswith("tasks/")]
    several = [
        replace(s, items=tuple(replace(items[f"{s.name}/{i.name}"], name=i.name) for i in s.items))
        for s in tasks
    ]
    one = replace(part.slice, items=tuple(items.values()))
    axes = [
        AxisResult(axis="tasks", slices=tuple(slices), seconds=0.0) for slices in ((one,), several)
    ]
    gates = benchmark["synthetic"].each_apart(DEFAULT), DEFAULT
    whole, pooled = (judge([axis], gate)[0][-1] for axis, gate in zip(axes, gates, strict=True))
    assert whole.figure == pooled.figure
    assert whole.outcome is pooled.outcome


def test_clusters_fail_together(benchmark, sound):
    """The negative control: with a correlation of 0.5 the figure varies by more than items do."""
    (questions,) = (p.slice for p in sound.parts if p.slice.name == "long-context/*")
    asked = benchmark["synthetic"].Asked(questions, worse=0.1, better=0.02, alike=0.5)
    rng, apart = np.random.default_rng(2), []
    for _ in range(200):
        items = asked.drawn(rng).items
        apart.append(np.mean([i.candidate - i.source for i in items]))
    independent = np.sqrt((0.12 - 0.08**2) / 180)
    assert np.mean(apart) == pytest.approx(0.08, abs=5 * np.std(apart) / np.sqrt(200))
    assert np.std(apart) > 1.3 * independent
