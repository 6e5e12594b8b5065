"""The part of a large source that is read."""

import pytest

from fewbit.calibrate import portion as portions
from fewbit.calibrate.entries import Conversation, Passage, Tokens
from fewbit.calibrate.portion import Portion, portion


def test_what_is_not_large_is_read_as_it_is():
    entries = [Passage("abc" * 300_000), Tokens((1, 2, 3))]
    assert portion(entries, 100) == Portion(entries)


def test_a_passage_of_megabytes_comes_in_pieces():
    """The tokenizer takes 180 times the memory of what it is given at once."""
    text = "words and words\n" * 200_000
    found = portion([Passage(text)], 100)
    pieces = [entry.text for entry in found.entries]
    assert found.note == "" and "".join(pieces) == text
    assert min(map(len, pieces[:-1])) > 1 << 19 and max(map(len, pieces)) <= 1 << 20


@pytest.mark.parametrize("lines", [True, False])
def test_a_long_passage_is_read_in_evenly_spread_pieces(monkeypatch, lines):
    monkeypatch.setattr(portions, "LEAST", 20_000)
    monkeypatch.setattr(portions, "_PIECE", 500)
    line = "0123456789abcde\n" if lines else "0123456789abcdef"
    text = "".join(f"{n:05d}{line[5:]}" for n in range(10_000))
    found = portion([Passage(text)], 100)
    pieces = [entry.text for entry in found.entries]
    assert 10_000 < sum(map(len, pieces)) <= 20_000
    assert str(sum(map(len, pieces)))[:2] in found.note and "160,000" in found.note
    places = [text.index(piece) for piece in pieces]
    assert places == sorted(set(places))
    assert places[0] == 0 and places[-1] > 140_000  # from all of it
    assert all(piece.endswith("\n") for piece in pieces) == lines


def test_pieces_are_the_whole_text(monkeypatch):
    monkeypatch.setattr(portions, "_PIECE", 50)
    text = "".join(f"line {n}\n" * (n % 7) + "x" * (n * 3) for n in range(40))
    assert "".join(p.text for p in portions._pieces(Passage(text))) == text


def test_entries_are_taken_whole(monkeypatch):
    monkeypatch.setattr(portions, "LEAST", 100)
    chats = [Conversation(({"role": "user", "content": "x" * 50},)) for _ in range(20)]
    found = portion(chats, 1)
    assert len(found.entries) == 2 and all(entry in chats for entry in found.entries)


def test_more_is_read_where_more_is_asked_for(monkeypatch):
    monkeypatch.setattr(portions, "LEAST", 100)
    texts = [Passage("x" * 50) for _ in range(100)]
    assert len(portion(texts, 100).entries) == 100 * portions.CHARACTERS // 50
