"""What a calibration file may hold."""

import json

import pytest

from fewbit.calibrate.entries import Conversation, Passage, Tokens, read_entries
from fewbit.errors import BadFileError, MissingError


def written(tmp_path, *lines):
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_a_plain_file_is_one_passage(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("One.\n\nTwo.\n")
    assert read_entries(path) == (Passage("One.\n\nTwo.\n"),)


def test_lines_are_passages_conversations_and_tokens(tmp_path):
    said = [{"role": "user", "content": "Hi"}]
    path = written(
        tmp_path,
        {"text": "first"},
        {"messages": said},
        {"input_ids": [5, 6, 7]},
        {"input_ids": [0, 5], "attention_mask": [0, 1]},
        {"text": "  "},
        {"messages": []},
        {"input_ids": [1, 2], "attention_mask": [0, 0]},
    )
    assert read_entries(path) == (
        Passage("first"),
        Conversation(tuple(said)),
        Tokens((5, 6, 7), (True, True, True)),
        Tokens((0, 5), (False, True)),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"texts": "x"}', "line 1 has no string"),
        ("[1]", "line 1 has no string"),
        ("{", "line 1 is not JSON"),
        ('{"messages": "hello"}', "no list of objects"),
        ('{"messages": ["hello"]}', "no list of objects"),
        ('{"input_ids": "abc"}', "lists of integers of one length"),
        ('{"input_ids": [1, true]}', "lists of integers of one length"),
        ('{"input_ids": [1, 2], "attention_mask": [1]}', "lists of integers of one length"),
        ('{"text": ""}', "contains no text"),
    ],
)
def test_bad_lines_are_refused(tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(BadFileError, match=message):
        read_entries(path)


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(MissingError, match="cannot be read"):
        read_entries(tmp_path / "absent.txt")
