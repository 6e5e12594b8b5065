"""The default text, and texts from files."""

from pathlib import Path

import pytest

from fewbit.calibrate import text
from fewbit.calibrate.overlap import overlap
from fewbit.calibrate.text import Half
from fewbit.errors import BadFileError, MissingError


@pytest.fixture(scope="module")
def halves() -> dict[Half, text.Documents]:
    return {half: text.default_text(half) for half in Half}


def test_default_text_is_the_same_every_time(halves):
    again = text.default_text(Half.EVALUATION)
    assert again == halves[Half.EVALUATION]
    assert again.sha256 != halves[Half.CALIBRATION].sha256


def test_halves_share_no_document_and_no_passage(halves):
    evaluation, calibration = halves[Half.EVALUATION], halves[Half.CALIBRATION]
    assert not {d.sha256 for d in evaluation.documents} & {d.sha256 for d in calibration.documents}
    assert overlap(evaluation, calibration) == ()


def test_topics_that_contain_each_other_would_have_overlapped(monkeypatch):
    """The negative control: without the check, pydoc's nested topics lie in both halves."""
    monkeypatch.setattr(text.Known, "admit", lambda *_: True)
    assert overlap(text.default_text(Half.EVALUATION), text.default_text(Half.CALIBRATION))


def test_default_text_begins_with_prose_and_code(halves):
    kinds = [d.name.partition(":")[0] for d in halves[Half.EVALUATION].documents[:20]]
    assert kinds[:4] == ["pydoc", "lib", "pydoc", "lib"]
    assert len(halves[Half.EVALUATION].documents) >= 40


def test_python_without_sources_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "_topics", lambda: iter(()))
    monkeypatch.setattr(text.sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(MissingError, match="--text"):
        text.default_text(Half.EVALUATION)


def test_three_sentences_are_one_document(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("One is here. Two is there.\n\nThree is nowhere.\n")
    assert len(text.read_text(path).documents) == 1


def test_plain_text_is_cut_at_blank_lines_without_losing_any(tmp_path):
    path = tmp_path / "long.txt"
    blocks = [f"block {i} " + "word " * 200 for i in range(10)]
    path.write_text("\n\n".join(blocks))
    found = text.read_text(path)
    assert len(found.documents) == 4
    assert "\n\n".join(d.text for d in found.documents) == path.read_text()


def test_a_line_of_white_space_is_blank(tmp_path):
    """As in WikiText's files, which otherwise were one document of a megabyte."""
    path = tmp_path / "long.txt"
    path.write_text(" \n".join(f" block {i} " + "word " * 600 + "\n" for i in range(5)))
    assert len(text.read_text(path).documents) == 5


def test_line_ends_of_unicode_may_stand_in_a_line_of_json(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes('{"text": "one\u2028two"}\n{"text": "three"}\n'.encode())
    assert [d.text for d in text.read_text(path).documents] == ["one\u2028two", "three"]


def test_half_a_surrogate_pair_becomes_a_replacement(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text('{"text": "cut \\ud83d"}\n{"text": "whole \\ud83d\\ude00"}\n')
    found = [d.text for d in text.read_text(path).documents]
    assert found == ["cut \N{REPLACEMENT CHARACTER}", "whole \N{GRINNING FACE}"]


def test_a_mark_of_byte_order_is_left_out(tmp_path):
    path = tmp_path / "some.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.")
    assert [d.text for d in text.read_text(path).documents] == ["One."]


@pytest.mark.parametrize("path", ["large.txt", "/dev/zero"])
def test_more_than_memory_should_hold_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.setattr(text, "LARGEST_FILE", 1 << 20)
    monkeypatch.setattr(text, "_CHUNK", 1 << 16)
    (tmp_path / "large.txt").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(BadFileError, match="more than 1 MiB"):
        text.read_text(tmp_path / path)


def test_json_lines_are_documents(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text('{"text": "first"}\n\n{"text": "second", "id": 7}\n{"text": " "}\n')
    assert [d.text for d in text.read_text(path).documents] == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\xff\xfe", "not UTF-8 \\(byte 0\\)"),
        ("a.txt", b"", "contains no text"),
        ("a.txt", b" \n\n \n", "contains no text"),
        ("a.jsonl", b"{", "line 1 is not JSON"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"texts": "y"}', 'line 2 has no string under "text"'),
        ("a.jsonl", b"[1]", 'line 1 has no string under "text"'),
    ],
)
def test_bad_texts_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadFileError, match=message):
        text.read_text(path)


def test_absent_text_is_refused(tmp_path):
    with pytest.raises(MissingError, match="cannot be read"):
        text.read_text(Path(tmp_path / "absent.txt"))
