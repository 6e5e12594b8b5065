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
        Tokens((5, 6, 7)),
        Tokens((5,)),
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


def test_line_ends_of_unicode_may_stand_in_a_string(tmp_path):
    """As `json.dumps(..., ensure_ascii=False)` leaves them; they end no line of JSON."""
    texts = ["one\u2028two", "three\x85four", "five\u2029six"]
    path = tmp_path / "some.jsonl"
    lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
    path.write_bytes("\r\n".join(lines).encode())
    assert read_entries(path) == tuple(map(Passage, texts))


def test_a_mark_of_byte_order_is_no_text(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "first"}\n')
    assert read_entries(path) == (Passage("first"),)


@pytest.mark.parametrize("mask", [[0, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0]])
def test_padding_is_dropped_wherever_it_lies(tmp_path, mask):
    path = written(tmp_path, {"input_ids": [5, 6, 7, 8], "attention_mask": mask})
    (entry,) = read_entries(path)
    assert entry.ids == tuple(i for i, kept in zip([5, 6, 7, 8], mask, strict=True) if kept)
