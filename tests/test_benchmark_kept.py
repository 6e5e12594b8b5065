"""benchmarks/kept_parts.py: a stopped benchmark goes on with the parts that are missing."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
ASKED = {"models": [["a.gguf", 3, 17], None], "sizes": [2, 8, 96]}


@pytest.fixture
def kept_parts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("kept_parts", "table"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield importlib.import_module("kept_parts")
    for name in ("kept_parts", "table"):
        sys.modules.pop(name, None)


def rows_of(kept_parts, figure="1.50 x"):
    return (kept_parts.Row("work", figure=figure, met=True, values={"turns": [1.0]}),)


def test_a_part_is_run_once_for_what_is_asked(kept_parts, tmp_path):
    path, notes, runs = tmp_path / "a" / "pair.json", [], []

    def run():
        runs.append(1)
        notes.append("a condition")
        return rows_of(kept_parts)

    first = kept_parts.part_of(path, ASKED, run, notes)
    again = kept_parts.part_of(path, ASKED, run, [])
    assert (first.kept, again.kept, len(runs)) == (False, True, 1)
    assert (again.rows, again.notes) == (first.rows, first.notes) != ((), ())
    assert again.seconds == first.seconds
    kept_parts.part_of(path, {**ASKED, "sizes": [2, 8, 32]}, run, notes)
    assert len(runs) == 2


def test_a_part_that_failed_or_was_cut_is_run_again(kept_parts, tmp_path):
    path = tmp_path / "pair.json"
    failed = kept_parts.part_of(path, ASKED, lambda: rows_of(kept_parts, "failed: no model"), [])
    assert failed.failed
    assert not path.exists()
    path.write_text('{"asked": ')
    found = kept_parts.part_of(path, ASKED, lambda: rows_of(kept_parts), [])
    assert not found.kept
    assert kept_parts.part_of(path, ASKED, list, []).kept


def test_a_file_is_told_from_another_by_its_state(kept_parts, tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(b"abc")
    before = kept_parts.stamp(file)
    file.write_bytes(b"abcd")
    assert before != kept_parts.stamp(file)
    assert kept_parts.stamp(None) is None
