"""Tasks from files: what a user writes, and what is wrong with it, by file and line."""

from __future__ import annotations

import json

import pytest

from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.evaluate.tasks.items import ChoiceItem
from fewbit.evaluate.tasks.spec import PromptKind, key_of, read_task, read_tasks, spread

CHOICE = {"name": "fruit", "file": "fruit.jsonl", "kind": "choice", "rule": "likelihood"}
LINE = {"prompt": "Apples grow on", "choices": ["trees", "ropes"], "answer": 0}


def write(folder, table, lines):
    path = folder / "fruit.toml"
    path.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items()))
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / table.get("file", "fruit.jsonl")).write_text(text)
    return path


def read(folder, lines, **changes):
    return read_task(write(folder, CHOICE | changes, lines))


def refused(folder, lines, error=BadFileError, **changes):
    with pytest.raises(error) as caught:
        read(folder, lines, **changes)
    return str(caught.value)


def test_a_task_is_five_lines_and_a_file(tmp_path):
    task = read(tmp_path, [LINE, "", LINE | {"id": "b", "cluster": "c"}])
    assert task.spec.asked_as is PromptKind.TEXT
    assert task.items == (
        ChoiceItem("1", "1", ("Apples grow on",), (" trees", " ropes"), 0),
        ChoiceItem("b", "c", ("Apples grow on",), (" trees", " ropes"), 0),
    )
    assert len(task.sha256) == 64


def test_letters_are_listed_and_continue_the_prompt(tmp_path):
    (item,) = read(tmp_path, [LINE | {"letters": True}]).items
    assert item.contexts == ("Apples grow on\nA. trees\nB. ropes\nAnswer:",)
    assert item.continuations == (" A", " B")


def test_two_contexts_share_a_continuation(tmp_path):
    line = {"contexts": ["The cup", "The box"], "continuation": "is full of tea.", "answer": 0}
    (item,) = read(tmp_path, [line]).items
    assert item.contexts == ("The cup", "The box")
    assert item.continuations == (" is full of tea.",) and item.options == ("The cup", "The box")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Line 2 of {path} is no JSON"),
        ("[1]", "Line 2 of {path} is a list"),
        (LINE | {"answr": 1}, "has the key 'answr'"),
        (LINE | {"answr": 1}, "did you mean answer"),
        (LINE | {"answer": 2}, "has 2 under 'answer' and 2 options"),
        (LINE | {"answer": -1}, "counted from 0 to 1"),
        (LINE | {"answer": "0"}, "give a whole number"),
        (LINE | {"answer": True}, "give a whole number"),
        (LINE | {"choices": ["one"]}, "give at least two"),
        (LINE | {"choices": ["one", ""]}, "give a list of strings"),
        (LINE | {"choices": "one"}, "give a list of strings"),
        (LINE | {"prompt": " "}, "has nothing under 'prompt'"),
        (LINE | {"letters": "yes"}, "give true or false"),
        ({"choices": ["a", "b"], "answer": 0}, "lacks the key 'prompt'; it has choices, answer"),
        ({"contexts": ["a", "b"], "answer": 0}, "lacks the key 'continuation'"),
        ("[" * 3000, "is no JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    said = refused(tmp_path, [LINE, line])
    assert f"Line 2 of {tmp_path / 'fruit.jsonl'}" in said
    assert message.replace("{path}", str(tmp_path / "fruit.jsonl")) in said


def test_what_is_no_text_is_refused(tmp_path):
    path = write(tmp_path, CHOICE, [LINE])
    (tmp_path / "fruit.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(BadFileError, match="Line 1"):
        read_task(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limits": 3}, "has the key 'limits', which a task does not have; did you mean limit"),
        ({"kind": "choices"}, "has the kind 'choices', which there is not; did you mean choice?"),
        ({"kind": "x"}, "choose from choice, generation, instructions, safety."),
        ({"rule": "likelyhood"}, "did you mean likelihood?"),
        ({"rule": "exact"}, "has the rule 'exact', which there is not; choose from likelihood"),
        ({"format": "ark"}, "did you mean arc?"),
        ({"name": "My Task"}, "use small letters"),
        ({"name": "../x"}, "use small letters"),
        ({"limit": 0}, "limit = 0; it must be at least 1"),
        ({"max_tokens": -1}, "max_tokens = -1"),
        ({"prompt": "speech"}, "not valid"),
        ({"leave_out": ["a"]}, "only tasks of the kind instructions"),
    ],
)
def test_a_bad_key_is_named(tmp_path, changes, message):
    said = refused(tmp_path, [LINE], **changes)
    assert str(tmp_path / "fruit.toml") in said and message in said


def test_a_missing_key_or_file_is_named(tmp_path):
    path = write(tmp_path, {k: v for k, v in CHOICE.items() if k != "rule"}, [LINE])
    with pytest.raises(BadFileError, match="rule"):
        read_task(path)
    with pytest.raises(MissingError, match=r"none.toml cannot be read"):
        read_task(tmp_path / "none.toml")
    write(tmp_path, CHOICE, [LINE])
    (tmp_path / "fruit.jsonl").unlink()
    with pytest.raises(MissingError, match=r"fruit.jsonl cannot be read"):
        read_task(path)


def test_no_items_and_two_of_a_name_are_refused(tmp_path):
    assert "has no items" in refused(tmp_path, ["", " "])
    assert "two items with the id 'a'" in refused(tmp_path, [LINE | {"id": "a"}] * 2)


def test_a_limit_spreads_over_the_file(tmp_path):
    task = read(tmp_path, [LINE | {"id": str(i)} for i in range(10)], limit=4)
    assert [item.name for item in task.items] == ["0", "2", "5", "7"]
    assert task.notes == ("fruit: 4 of 10 items, evenly spaced.",)
    assert len(spread(task.items, 9)) == 4


def test_a_folder_has_each_task_once(tmp_path):
    write(tmp_path, CHOICE, [LINE])
    assert [task.spec.name for task in read_tasks(tmp_path)] == ["fruit"]
    (tmp_path / "again.toml").write_text((tmp_path / "fruit.toml").read_text())
    with pytest.raises(BadFileError, match="two tasks named 'fruit'"):
        read_tasks(tmp_path)
    with pytest.raises(MissingError, match=r"no .toml file"):
        read_tasks(tmp_path / "nothing")


INSTRUCTIONS = {
    "name": "obey",
    "file": "obey.jsonl",
    "kind": "instructions",
    "rule": "strict",
    "format": "ifeval",
}
OBEY = {
    "prompt": "Name two trees without commas, please.",
    "instruction_id_list": ["punctuation:no_comma", "new:kind"],
    "kwargs": [{}, {"x": None}],
}


def test_an_unknown_instruction_is_an_error_or_declared_as_left_out(tmp_path):
    with pytest.raises(UnsupportedError, match=r"Line 1 of .*'new:kind', which cannot be checked"):
        read_task(write(tmp_path, INSTRUCTIONS, [OBEY]))
    task = read_task(write(tmp_path, INSTRUCTIONS | {"leave_out": ["new:kind"]}, [OBEY]))
    assert [one.id for one in task.items[0].instructions] == ["punctuation:no_comma"]
    assert task.notes == ("obey: new:kind left out, and with them 0 of 1 prompts.",)
    every = INSTRUCTIONS | {"leave_out": ["new:kind", "punctuation:no_comma"]}
    with pytest.raises(BadFileError, match="leaves out every instruction"):
        read_task(write(tmp_path, every, [OBEY]))
    with pytest.raises(BadFileError, match="leaves out 'old:kind', which no line"):
        read_task(write(tmp_path, INSTRUCTIONS | {"leave_out": ["old:kind"]}, [OBEY]))


def test_what_is_right_does_not_decide_what_is_kept(tmp_path):
    one = read(tmp_path, [LINE])
    other = read(tmp_path, [LINE | {"answer": 1, "id": "x"}], rule="likelihood-per-byte")
    assert key_of(one.items[0]) == key_of(other.items[0]) and one.fingerprint == other.fingerprint
    chat = read(tmp_path, [LINE], prompt="chat")
    assert chat.fingerprint != one.fingerprint
    longer = read(tmp_path, [LINE | {"choices": ["trees", "rocks"]}])
    assert key_of(longer.items[0]) != key_of(one.items[0])


SPOKEN = {"kind": "generation", "rule": "contains"}


@pytest.mark.parametrize(
    ("rule", "answer", "message"),
    [
        ("contains", "...", "nothing but marks"),
        ("exact", ["yes", "!"], "nothing but marks"),
        ("number", "a dozen", "has no number"),
        ("number", ["many", "few"], "has no number"),
    ],
)
def test_an_item_that_every_answer_or_none_would_be_right_for_is_refused(
    tmp_path, rule, answer, message
):
    line = {"id": "a", "prompt": "How many?", "answer": answer}
    said = refused(tmp_path, [line], **SPOKEN | {"rule": rule})
    assert message in said and "item 'a'" in said


def test_one_answer_with_a_number_is_enough(tmp_path):
    line = {"prompt": "How many?", "answer": ["a dozen", "12"]}
    assert len(read(tmp_path, [line], **SPOKEN | {"rule": "number"}).items) == 1


def test_there_are_no_more_letters_than_choices_may_be(tmp_path):
    line = LINE | {"choices": [str(i) for i in range(27)], "answer": 26, "letters": True}
    assert "there are 26 letters" in refused(tmp_path, [line])
