"""benchmarks/built_in.py and synthetic.py: the suite's own sizes, truths that are what they say."""

import numpy as np
import pytest
from benchmark_modules import imported

from fewbit.evaluate.gating.declared import subjects
from fewbit.evaluate.gating.estimates import Draws, estimate
from fewbit.evaluate.gating.file import DEFAULT
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
    assert found["long-context/recall"] == (108, 24)
    # Sixteen passages of 256 tokens, of which those beyond the first 512 count.
    assert found["long-context/kl"] == (14, 14)


def test_every_margin_but_those_of_mixtures_is_drawn(sound):
    names = {part.name for part in sound.parts}
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
        part = next(p for p in truth.parts if p.name == truth.name)
        for _ in range(40):
            (one,) = (s for s in subjects(_axes(part, rng), DEFAULT) if s.rule is not None)
            figure = estimate(one.slice, draws).figure.value
            found.append(figure - one.rule.relative * np.mean([i.source for i in one.slice.items]))
        margin, measure = one.rule.margin, one.slice.measure
        deviation = np.std(found) / np.sqrt(len(found))
        bias = 0.01 * margin if measure in {Measure.PERPLEXITY, Measure.RATIO} else 0.0
        assert abs(np.mean(found) - margin) < 5 * deviation + bias, truth.name


def _axes(part, rng):
    return [AxisResult(axis="x", slices=tuple(part.drawn(rng)), seconds=0.0)]


def test_clusters_fail_together(benchmark, suite):
    """The negative control: with a correlation of 0.5 the figure varies by more than items do."""
    slices = tuple(s for s in suite if s.name.startswith("long-context/") and s.unit == "")
    asked = benchmark["synthetic"].Asked("x", slices, worse=0.1, better=0.02, alike=0.5)
    rng, apart = np.random.default_rng(2), []
    for _ in range(200):
        items = [i for s in asked.drawn(rng) for i in s.items]
        apart.append(np.mean([i.candidate - i.source for i in items]))
    independent = np.sqrt((0.12 - 0.08**2) / 108)
    assert np.mean(apart) == pytest.approx(0.08, abs=5 * np.std(apart) / np.sqrt(200))
    assert np.std(apart) > 1.3 * independent
