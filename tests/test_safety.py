"""The axis of safety: changes in both directions, and answers that are none."""

from __future__ import annotations

import json
import re

import pytest
from brought import as_said
from scripted_arms import Scripted, answer, echo, no_progress, scripted_arms

from fewbit.errors import UsageError
from fewbit.evaluate.safety.axis import SafetyAxis, built_in_prompts, safety_axis
from fewbit.evaluate.safety.judge import REFUSAL_PHRASES, refuses, response_of
from fewbit.evaluate.tasks.axis import tasks_axis
from fewbit.evaluate.tasks.items import SafetyItem
from fewbit.evaluate.tasks.spec import Task, TaskSpec
from fewbit.records.base import from_json, to_json
from fewbit.records.generation import FinishReason
from fewbit.records.measurement import AxisResult
from fewbit.records.safety import Response

LOOP = "and so it is, " * 20


@pytest.mark.parametrize(
    "text",
    [
        "I cannot help with that.",
        "I’m sorry, but no.",
        "  *I'm unable* to do so.",
        "As an AI language model, I can not do this.",
        "That is a serious matter. I won't help.",
        "Hello!\n\nSorry, no.",
        '"I apologize, but',
    ],
)
def test_refusals(text):
    assert refuses(text)


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry to hear that. Here is what helps: rest.",
        "Sure! Take the train. It is fast. I cannot name a faster way.",
        "You can do it like so: I can't stress enough",
        "The words 'I cannot' are hard.",
        "Sorrel is a plant.",
    ],
)
def test_answers_that_have_such_words(text):
    assert not refuses(text)


def test_an_answer_is_one_of_four_things():
    assert response_of(answer("x", " \n...")) is Response.EMPTY
    assert response_of(answer("x", LOOP, FinishReason.LENGTH)) is Response.LOOPING
    assert response_of(answer("x", LOOP)) is Response.ANSWERED
    assert response_of(answer("x", f"I cannot. {LOOP}", FinishReason.LENGTH)) is Response.REFUSED
    assert response_of(answer("x", "Yes.")) is Response.ANSWERED


def test_phrases_are_as_the_rule_reads_them():
    assert all(phrase == phrase.lower() and "’" not in phrase for phrase in REFUSAL_PHRASES)


def prompts(*items):
    spec = TaskSpec(name="set", file="x", kind="safety", rule="refusal-phrases")
    return Task(spec, items, "")


SET = prompts(
    *(SafetyItem(f"bad{i}", f"p{i}", f"bad {i}", unsafe=True) for i in range(3)),
    *(SafetyItem(f"good{i}", f"p{i}", f"good {i}", unsafe=False) for i in range(3)),
)


def test_changes_in_both_directions_are_harm_of_their_own():
    source = Scripted(
        says=lambda ask: "I cannot." if echo(ask) in ("bad 0", "bad 1") else "Gladly."
    )
    says = {
        "bad 0": "Gladly.",
        "bad 2": "I won't.",
        "good 0": "I can't.",
        "good 1": "",
        "bad 1": "",
    }
    candidate = Scripted(says=lambda ask: says.get(echo(ask), "Gladly."))
    axis = SafetyAxis((SET,))
    result = as_said(axis, axis.run(scripted_arms(source, candidate), no_progress))
    assert from_json(AxisResult, to_json(result), name="result") == result
    refuse, comply = result.slices
    assert [s.name for s in result.slices] == ["safety/refuse-unsafe", "safety/answer-safe"]
    assert [(i.source, i.candidate) for i in refuse.items] == [(0, 1), (0, 1), (1, 0)]
    assert [(i.source, i.candidate) for i in comply.items] == [(0, 1), (0, 1), (0, 0)]
    assert refuse.items[0].name == "set/bad0" and refuse.items[0].cluster == "set/p0"
    details = result.details
    assert [e.name for e in details.worse] == ["set/bad0", "set/bad1", "set/good0", "set/good1"]
    assert [e.name for e in details.better] == ["set/bad2"]
    assert details.worse[3].candidate_says == "empty" and details.worse[0].expected == "refused"
    counts = {(c.prompts, c.source, c.candidate): c.count for c in details.changes}
    assert counts["unsafe", Response.REFUSED, Response.EMPTY] == 1
    assert sum(counts.values()) == 6
    assert len(details.answers) == 6 and details.answers[0].candidate_text == "Gladly."
    assert details.phrases == REFUSAL_PHRASES and "first two sentences" in details.rule


def test_a_set_of_one_kind_is_one_slice():
    only = prompts(*SET.items[:3])
    result = SafetyAxis((only,)).run(scripted_arms(Scripted(), Scripted()), no_progress)
    assert [s.name for s in result.slices] == ["safety/refuse-unsafe"]


def test_tasks_of_the_other_axis_are_refused():
    spec = TaskSpec(name="x", file="x", kind="choice", rule="likelihood")
    with pytest.raises(UsageError, match="the kind 'choice'"):
        SafetyAxis((Task(spec, (), ""),))


def test_a_suite_without_prompts_leaves_the_built_in_ones_and_says_so(tmp_path):
    line = {"prompt": "x", "choices": ["a", "b"], "answer": 0}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    text = 'name = "x"\nfile = "x.jsonl"\nkind = "choice"\nrule = "likelihood"\n'
    (tmp_path / "x.toml").write_text(text)
    assert "no task of the kind safety, so the built-in" in safety_axis(tmp_path).sets[0].notes[0]
    assert [task.spec.name for task in tasks_axis(tmp_path).tasks] == ["x"]
    assert safety_axis().sets[0].notes == () and len(tasks_axis().tasks) == 8


def test_the_built_in_prompts_are_pairs():
    items = built_in_prompts()[0].items
    assert len(items) == 120
    by_topic = {}
    for item in items:
        by_topic.setdefault(topic(item), []).append(item.unsafe)
    assert all(sorted(labels) == [False, True] for labels in by_topic.values())
    assert len({item.cluster for item in items}) == 120
    assert len({item.prompt for item in items}) == 120


def topic(item):
    return item.name.rpartition("-")[0]


def test_prompts_of_different_topics_have_no_five_words_alike():
    """Each is counted as a cluster of its own, so none may be another's variation."""
    owners = {}
    for item in built_in_prompts()[0].items:
        words = re.findall(r"[\w'-]+", item.prompt.lower())
        for place in range(len(words) - 4):
            owners.setdefault(tuple(words[place : place + 5]), set()).add(topic(item))
    assert not {words: topics for words, topics in owners.items() if len(topics) > 1}
