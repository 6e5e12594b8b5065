"""The built-in tasks: every item has one right answer, told again here another way."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from fewbit.evaluate.tasks.built_in import built_in_tasks
from fewbit.evaluate.tasks.ifeval import INSTRUCTIONS, checked_instruction
from fewbit.evaluate.tasks.spec import key_of

TASKS = {task.spec.name: task for task in built_in_tasks()}
CHOICES = [item for task in TASKS.values() if task.spec.kind == "choice" for item in task.items]


def right(item):
    return item.options[item.answer]


def test_names_and_prompts_are_of_their_own():
    for task in TASKS.values():
        names = Counter(item.name for item in task.items)
        keys = Counter(key_of(item) for item in task.items)
        assert names.most_common(1)[0][1] == 1 and keys.most_common(1)[0][1] == 1
        assert len({item.cluster for item in task.items}) >= 12


def test_there_are_some_hundred_items():
    assert 450 <= sum(len(task.items) for task in TASKS.values()) <= 650


def test_options_differ_and_the_right_one_is_not_always_in_one_place():
    for item in CHOICES:
        assert len(set(item.options)) == len(item.options) >= 2
        assert len(item.contexts) == 1 and item.contexts[0].strip() == item.contexts[0]
    for task in TASKS.values():
        places = Counter(
            i.answer / len(i.options) for i in task.items if task.spec.kind == "choice"
        )
        assert not places or max(places.values()) < 0.7 * len(task.items)


def test_items_are_the_same_everywhere():
    """Kept outcomes and figures of one version are of these very items."""
    assert TASKS["numbers"].items[0].contexts == TASKS["numbers"].items[0].contexts
    again = {task.spec.name: task for task in built_in_tasks()}
    assert {n: t.items for n, t in again.items()} == {n: t.items for n, t in TASKS.items()}


OPERATIONS = {"+": int.__add__, "*": int.__mul__}


def test_calculations_are_right():
    for item in TASKS["numbers"].items:
        a, operation, b = re.search(r"(\d+) ([+*]) (\d+) =$", item.contexts[0]).groups()
        assert int(right(item)) == OPERATIONS[operation](int(a), int(b))


def test_patterns_go_on_as_they_began():
    for item in TASKS["patterns"].items:
        text, answer = item.contexts[0], right(item)
        if item.name.startswith("sequence"):
            shown = [int(n) for n in text.rstrip(",").split(", ")]
            assert int(answer) == 2 * shown[-1] - shown[-2]
        elif item.name.startswith("order"):
            first, more, _, last = re.match(
                r"(\w+) is (\w+) than (\w+), and \3 is \2 than (\w+)\.", text
            ).groups()
            superlative = re.search(r"The (\w+) of the three", text)[1]
            assert answer == (first if superlative[:3] == more[:3] else last)


def test_answers_of_passages_stand_in_them_and_wrong_ones_do_not():
    for item in TASKS["reading"].items:
        passage = item.contexts[0].partition("\nQuestion:")[0]
        standing = [option for option in item.options if option in passage]
        assert standing == [right(item)]


def test_facts_have_one_right_option():
    by_prompt = {}
    for item in TASKS["facts"].items:
        by_prompt.setdefault(item.contexts[0], set()).add(right(item))
    assert all(len(answers) == 1 for answers in by_prompt.values())
    assert by_prompt["The capital city of Peru is"] == {"Lima"}


def test_what_is_looked_up_stands_there_once():
    for item in TASKS["lookups"].items:
        question = item.prompt.rpartition("Question:")[2]
        asked = re.search(r"How many (.+) does it have", question)[1]
        assert re.findall(rf"(\d+) {asked}[, .]", question) == [item.answers[0]]
        assert len(set(re.findall(r"\d+", question))) == 3


def test_short_answers_stand_in_their_questions():
    for item in TASKS["short-answers"].items:
        assert item.prompt.count(item.answers[0]) == 1


def test_demands_are_ones_that_can_be_checked():
    used = set()
    for item in TASKS["instructions"].items:
        for one in item.instructions:
            assert checked_instruction(one.id, one.values, "here") == one
            used.add(one.id)
    assert len(used) >= 12 and used <= set(INSTRUCTIONS)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_well_formed(name):
    assert TASKS[name].spec.name == name and TASKS[name].items
