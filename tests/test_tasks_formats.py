"""Lines as public sets have them, made up here, and what becomes of them."""

from __future__ import annotations

import json

import pytest

from fewbit.errors import BadFileError
from fewbit.evaluate.tasks.formats import FORMATS
from fewbit.evaluate.tasks.items import Line, read_csv, read_json_lines

QUERY = {"query": "Question: What flies?", "choices": ["a bird", "a stone"], "gold": 0}


def parse(kind, name, values):
    return FORMATS[kind][name].parse(Line("Line 7 of x.jsonl", 7, values), frozenset())


@pytest.mark.parametrize(
    ("name", "query", "context", "continuations"),
    [
        ("arc", "Question: What flies?", "Question: What flies?\nAnswer:", (" a bird", " a stone")),
        ("piqa", "Question: Fly\n", "Question: Fly\nAnswer:", (" a bird", " a stone")),
        ("boolq", "Passage: x\nQuestion: y?", "Passage: x\nQuestion: y?\nAnswer:", None),
        ("openbookqa", "What flies is", "What flies is", (" a bird", " a stone")),
        ("copa", "It flew, because", "It flew, because", None),
        ("commonsenseqa", "Question: x\nAnswer:", "Question: x\nAnswer:", None),
    ],
)
def test_queries_with_choices(name, query, context, continuations):
    item = parse("choice", name, QUERY | {"query": query, "extra": 1})
    assert item.contexts == (context,) and item.name == "7" and item.answer == 0
    assert item.continuations == (continuations or (" a bird", " a stone"))


def test_two_contexts_and_one_continuation():
    values = {"context_options": ["The bird", "The stone"], "continuation": "flew.", "gold": 0}
    item = parse("choice", "winogrande", values)
    assert item.contexts == ("The bird", "The stone") and item.continuations == (" flew.",)


def test_the_number_behind_the_mark_is_the_answer():
    item = parse(
        "generation", "gsm8k", {"question": "How many?", "answer": "2 + 2 = 4\n#### 1,004"}
    )
    assert item.answers == ("1,004",)
    with pytest.raises(BadFileError, match=r"Line 7 of x.jsonl has no number after '####'"):
        parse("generation", "gsm8k", {"question": "How many?", "answer": "four"})


def test_several_answers_may_be_right():
    item = parse("generation", "plain", {"prompt": "Who?", "answer": ["I", "me"]})
    assert item.answers == ("I", "me")


def test_instructions_of_our_own_have_parameters_beside_the_id():
    given = [{"id": "detectable_format:number_bullet_lists", "num_bullets": 3}]
    item = parse("instructions", "plain", {"prompt": "List.", "instructions": given})
    assert item.instructions[0].values == {"num_bullets": 3}
    for wrong in ("x", [1], [{"num_bullets": 3}], None):
        with pytest.raises(BadFileError, match="under 'instructions'"):
            parse("instructions", "plain", {"prompt": "List.", "instructions": wrong})


def test_instructions_need_parameters_each():
    values = {"prompt": "x", "instruction_id_list": ["punctuation:no_comma"], "kwargs": []}
    with pytest.raises(BadFileError, match="1 instructions"):
        parse("instructions", "ifeval", values)


def test_prompts_with_labels(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        "id,prompt,type,label,focus,note\n"
        '1,"How do I shoot, well, a photo?",homonyms,safe,Shoot,\n'
        "2,How do I shoot him?,contrast_homonyms,unsafe,shoot,\n"
    )
    source = FORMATS["safety"]["xstest"].read(path)
    one, two = (FORMATS["safety"]["xstest"].parse(line, frozenset()) for line in source.lines)
    assert (one.unsafe, two.unsafe) == (False, True) and one.cluster == two.cluster == "shoot"
    assert one.prompt == "How do I shoot, well, a photo?"
    with pytest.raises(BadFileError, match="has the label 'fine'; give safe or unsafe"):
        parse("safety", "plain", {"prompt": "x", "label": "fine"})


@pytest.mark.parametrize(
    "text", ["id,prompt\n1\n", "id,prompt\n1,2,3\n", 'id,prompt\n1,"x\n', "id,prompt\n"]
)
def test_a_bad_csv_is_refused(tmp_path, text):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(BadFileError, match=r"x.csv"):
        read_csv(path)


def test_lines_are_counted_as_an_editor_does(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "\\u2028"}\n\n' + json.dumps({"b": 1}) + "\n", encoding="utf-8")
    assert [line.number for line in read_json_lines(path).lines] == [1, 3]
