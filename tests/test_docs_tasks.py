"""The example of docs/evaluation/tasks.md, as a user would write it, on a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripted_arms import Scripted, no_progress, scripted_arms
from tiny_subjects import sharp_weights, write_subject

from fewbit.cli import app
from fewbit.evaluate.tasks.axis import TasksAxis
from fewbit.evaluate.tasks.built_in import built_in_tasks
from fewbit.evaluate.tasks.formats import FORMATS
from fewbit.evaluate.tasks.ifeval import INSTRUCTIONS
from fewbit.evaluate.tasks.spec import RULES, TaskSpec, read_task, read_tasks
from fewbit.records.base import from_json
from fewbit.records.evaluation import Evaluation

DOCS = Path(__file__).parent.parent / "docs" / "evaluation"
TASKS = (DOCS / "tasks.md").read_text(encoding="utf-8")


def block(text, language):
    return re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "sky.jsonl").write_text(block(TASKS, "jsonl"))
    (tmp_path / "sky.toml").write_text(block(TASKS, "toml"))
    return tmp_path


def test_five_lines_of_toml_and_a_file_are_a_task(suite):
    assert len(block(TASKS, "toml").splitlines()) == 5
    axis = TasksAxis(read_tasks(suite))
    prefers = {" blue": -1.0, " rainbow": -1.0}
    knows = Scripted(likes=lambda context, text: prefers.get(text, -2.0))
    result = axis.run(scripted_arms(knows, knows), no_progress)
    (found,) = result.slices
    assert found.name == "tasks/sky" and [item.source for item in found.items] == [0, 1]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_subject(tmp_path_factory.mktemp("model"), weights=sharp_weights()))


def evaluate(model, suite, *more):
    arguments = ["eval", model, "--against", model, "--axes", "tasks", "--suite", str(suite)]
    return app.run([*arguments, "--threads", "1", *more])


def test_the_command_runs_it_from_its_folder(suite, model):
    """With two items nothing is decided: 4, inconclusive."""
    record = suite / "record.json"
    assert evaluate(model, suite, "--json", str(record)) == 4
    found = from_json(Evaluation, record.read_bytes(), name="record")
    (axis,) = [axis for axis in found.axes if axis.axis == "tasks"]
    assert [one.name for one in axis.slices] == ["tasks/sky"]
    assert all(item.source == item.candidate == item.floor for item in axis.slices[0].items)


def test_a_bad_line_is_one_sentence_with_its_place(suite, model, capsys):
    lines = block(TASKS, "jsonl").splitlines()
    (suite / "sky.jsonl").write_text(lines[0] + "\n" + lines[1].replace("answer", "anser"))
    assert evaluate(model, suite) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"Line 2 of {suite / 'sky.jsonl'} has the key 'anser'" in error
    assert "did you mean answer" in error


def test_the_example_of_safety_is_a_set(tmp_path):
    text = (DOCS / "safety.md").read_text(encoding="utf-8")
    (tmp_path / "x.toml").write_text(block(text, "toml"))
    (tmp_path / "xstest_prompts.csv").write_text("id,prompt,label,focus\n1,How?,safe,how\n")
    assert read_task(tmp_path / "x.toml").spec.format == "xstest"


def test_the_page_counts_the_built_in_items():
    tasks = built_in_tasks()
    for task in tasks:
        clusters = len({item.cluster for item in task.items})
        assert f"| `{task.spec.name}` | {len(task.items)} ({clusters}) |" in TASKS
        assert f"| `{task.spec.rule}` |" in TASKS
    assert f"{sum(len(task.items) for task in tasks)} items of our own" in TASKS


def test_the_page_has_every_key_rule_format_and_instruction():
    names = [*TaskSpec.__struct_fields__, *RULES]
    names += [rule for kind, rules in RULES.items() if kind != "safety" for rule in rules]
    names += [name for formats in FORMATS.values() for name in formats]
    missing = [name for name in names if f"`{name}`" not in TASKS]
    missing += [i for i in INSTRUCTIONS if i not in TASKS and f"`{i.split(':')[1]}`" not in TASKS]
    assert not missing
