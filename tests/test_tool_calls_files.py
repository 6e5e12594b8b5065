import json

import pytest

from fewbit.errors import BadFileError, MissingError, UnsupportedError
from fewbit.evaluate.tools.files import MOST_SCHEMA, read_bfcl, read_schemas

QUESTION = {
    "id": "parallel_multiple_0",
    "question": [[{"role": "user", "content": "Book two nights in Graz."}]],
    "function": [
        {
            "name": "hotel.book",
            "description": "Book.",
            "parameters": {
                "type": "dict",
                "properties": {
                    "type": {"type": "any"},
                    "price": {"type": "float"},
                    "guests": {"type": "tuple", "items": {"type": "float"}},
                },
                "required": ["price"],
            },
        }
    ],
}
KEY = {"id": "parallel_multiple_0", "ground_truth": [{"hotel.book": {"price": [2.0, ""]}}]}


def write(folder, question=QUESTION, key=KEY, name="BFCL_v4_parallel_multiple.json"):
    (folder / "possible_answer").mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(question) + "\n\n")
    if key is not None:
        (folder / "possible_answer" / name).write_text(json.dumps(key))
    return folder / name


def test_bfcl_becomes_questions_with_json_schemas(tmp_path):
    (item,) = read_bfcl(write(tmp_path))
    assert (item.kind, item.offered) == ("parallel-multiple", ("hotel.book",))
    assert [e.text for e in item.expected] == ['{"hotel.book": {"price": [2.0, ""]}}']
    assert item.tools[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "type": {},
            "price": {"type": "number"},
            "guests": {"type": "array", "items": {"type": "number"}},
        },
        "required": ["price"],
    }


def test_irrelevance_needs_no_key(tmp_path):
    (item,) = read_bfcl(write(tmp_path, key=None, name="BFCL_v4_irrelevance.json"))
    assert (item.kind, item.expected) == ("irrelevance", ())


@pytest.mark.parametrize(
    ("question", "key", "name", "error"),
    [
        (QUESTION, None, "BFCL_v4_multiple.json", MissingError),
        (QUESTION, {**KEY, "id": "other"}, "BFCL_v4_multiple.json", MissingError),
        (QUESTION, {"id": 3}, "BFCL_v4_multiple.json", BadFileError),
        ({**QUESTION, "function": "f"}, KEY, "BFCL_v4_multiple.json", BadFileError),
        ({**QUESTION, "question": []}, KEY, "BFCL_v4_multiple.json", UnsupportedError),
        (QUESTION, KEY, "BFCL_v4_simple_java.json", UnsupportedError),
        (QUESTION, KEY, "BFCL_v4_multi_turn_base.json", UnsupportedError),
        (QUESTION, KEY, "questions.json", UnsupportedError),
    ],
)
def test_a_bad_bfcl_file_is_refused_by_name(tmp_path, question, key, name, error):
    path = write(tmp_path, question, key, name)
    with pytest.raises(error, match=name.split(".")[0]):
        read_bfcl(path)


def test_a_cut_file_is_refused_by_its_line(tmp_path):
    path = write(tmp_path)
    path.write_text(path.read_text().rstrip()[:-9])
    with pytest.raises(BadFileError, match="Line 1 of"):
        read_bfcl(path)
    with pytest.raises(MissingError, match="cannot be read"):
        read_bfcl(tmp_path / "possible_answer")


def test_schemas_that_cannot_be_used_are_left_out_by_name(tmp_path):
    path = tmp_path / "some.jsonl"
    rows = [
        {"id": "good", "schema": {"type": "integer"}},
        {"id": "remote", "schema": {"$ref": "https://example.org/x.json"}},
        {"id": "long", "schema": {"description": "x" * MOST_SCHEMA}},
        {"id": "list", "schema": []},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    items, left = read_schemas(path)
    assert [item.name for item in items] == ["good"]
    assert [out.name for out in left] == ["remote", "long", "list"]
    assert all(out.why for out in left)


@pytest.mark.parametrize("text", ["", "{}", '{"id": "x"', '{"id": 3, "schema": {}}'])
def test_a_file_without_schemas_is_refused(tmp_path, text):
    path = tmp_path / "some.jsonl"
    path.write_text(text)
    with pytest.raises(BadFileError, match=r"some\.jsonl"):
        read_schemas(path)
