"""Outcomes that are kept: what a kill leaves, what a fingerprint tells apart."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fewbit.errors import BadFileError
from fewbit.records.answers import Likelihood
from fewbit.records.base import Record
from fewbit.records.kept import Kept, file_of, fingerprint, folder_digest, open_kept, program_digest

FOUND = Likelihood(logprob=-1.25, tokens=2, greedy=True)
OTHER = Likelihood(logprob=-3.5, tokens=1, greedy=False)


@pytest.mark.parametrize("kept_in_file", [True, False])
def test_what_is_added_is_read(tmp_path, kept_in_file):
    kept = open_kept(tmp_path / "a" / "b.jsonl" if kept_in_file else None)
    kept.add("one", FOUND)
    kept.add("two", OTHER)
    kept.add("one", OTHER)
    assert kept.names() == {"one", "two"}
    assert kept.read(Likelihood) == {"one": OTHER, "two": OTHER}


def test_another_process_finds_it(tmp_path):
    path = tmp_path / "b.jsonl"
    open_kept(path).add("one", FOUND)
    kept = open_kept(path)
    kept.add("two", OTHER)
    assert open_kept(path).read(Likelihood) == {"one": FOUND, "two": OTHER}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_cut_by_a_kill_is_dropped_and_what_follows_is_whole(tmp_path, cut):
    path = tmp_path / "b.jsonl"
    for name, record in (("one", FOUND), ("two", OTHER)):
        open_kept(path).add(name, record)
    path.write_bytes(path.read_bytes()[:-cut])
    kept = open_kept(path)
    assert kept.read(Likelihood) == {"one": FOUND}
    kept.add("three", OTHER)
    assert open_kept(path).read(Likelihood) == {"one": FOUND, "three": OTHER}


NESTED = b"[" * 200_000


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"name": 3, "record": {}}', b"\xff", b'{"name": "x", "record": ' + NESTED],
)
def test_a_damaged_line_is_refused_with_its_number(tmp_path, line):
    path = tmp_path / "b.jsonl"
    open_kept(path).add("one", FOUND)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(BadFileError, match="Line 2 of"):
        open_kept(path)


def test_a_record_of_another_kind_is_refused_by_name(tmp_path):
    path = tmp_path / "b.jsonl"
    path.write_text('{"name": "one", "record": {"logprob": 1.0}}\n')
    with pytest.raises(BadFileError, match="'one', which is no Likelihood"):
        open_kept(path).read(Likelihood)


class Tree(Record, frozen=True):
    below: Tree | None = None


def test_a_record_nested_too_deep_is_refused_by_name():
    text = b'{"below": ' * 50_000 + b"null" + b"}" * 50_000
    with pytest.raises(BadFileError, match="'one', which is no Tree"):
        Kept(None, {"one": text}).read(Tree)


def test_a_fingerprint_depends_on_every_value_and_on_nothing_else():
    @dataclass(frozen=True)
    class Spec:
        name: str
        margins: tuple[float, ...] = (0.5,)

    same = fingerprint("axis", Spec("a"), {"b": 1, "c": 2}, FOUND)
    assert same == fingerprint("axis", Spec("a"), {"c": 2, "b": 1}, FOUND)
    others = [
        ("axis2", Spec("a"), {"b": 1, "c": 2}, FOUND),
        ("axis", Spec("a", (0.25,)), {"b": 1, "c": 2}, FOUND),
        ("axis", Spec("a"), {"b": 1, "c": 3}, FOUND),
        ("axis", Spec("a"), {"b": 1, "c": 2}, OTHER),
        ("axis", Spec("a"), {"b": 1, "c": 2}),
    ]
    assert len({same, *(fingerprint(*parts) for parts in others)}) == 1 + len(others)


def test_files_lie_apart_by_arm_and_axis(tmp_path):
    found = file_of(tmp_path, "a" * 64, "b" * 64)
    assert found == tmp_path / "outcomes" / ("a" * 16) / f"{'b' * 16}.jsonl"
    assert file_of(None, "a", "b") is None


def test_what_is_kept_is_made_once(tmp_path):
    made = []

    def make():
        made.append(1)
        return FOUND

    for _ in range(2):
        kept = open_kept(tmp_path / "b.jsonl")
        assert kept.once("one", Likelihood, make) == FOUND
        assert kept.once("one", Likelihood, make) == FOUND
    assert len(made) == 1


def test_a_program_is_told_from_another_by_its_files(tmp_path):
    """Code, native code and their names decide; what Python compiled of them does not."""
    (tmp_path / "inner" / "__pycache__").mkdir(parents=True)
    files = {tmp_path / "_native.so": b"\0one", tmp_path / "inner" / "a.py": b"a = 1"}
    for path, content in files.items():
        path.write_bytes(content)
    seen = [folder_digest(tmp_path)]
    (tmp_path / "inner" / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    assert folder_digest(tmp_path) == seen[0]
    for path in files:
        path.write_bytes(path.read_bytes()[:-1] + b"2")
        seen.append(folder_digest(tmp_path))
    (tmp_path / "inner" / "a.py").rename(tmp_path / "inner" / "b.py")
    seen.append(folder_digest(tmp_path))
    assert len(set(seen)) == len(seen) == 4
    assert program_digest() == program_digest() and program_digest() not in seen
