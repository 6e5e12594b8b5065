"""Where records go: a reader that leaves, and files that cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.cli import app
from fewbit.cli.output import STDOUT, deliver, writable
from fewbit.errors import OutputError
from fewbit.records.base import Record


class Small(Record, frozen=True):
    """A record."""

    lines: tuple[str, ...] = ("one", "two")


def draw(record: Small, console: Console) -> None:
    for line in record.lines:
        console.print(line)


@pytest.fixture
def left_reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stdout whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        yield
        monkeypatch.undo()


@pytest.mark.usefixtures("left_reader")
@pytest.mark.parametrize("json", [None, STDOUT])
def test_a_reader_that_leaves_changes_nothing_of_how_the_command_ends(json: Path | None) -> None:
    deliver(Small(), json, draw)
    print("the path of an artefact", flush=True)


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("file", ["", "absent/file", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    option: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / file) if file else ""
    # The model does not exist: naming it instead would say that the file was looked at too late.
    assert app.run(["eval", "no-model", "--against", "no-model", option, target]) == 2
    assert option in capsys.readouterr().err


def test_of_a_link_the_folder_behind_it_must_take_a_file(tmp_path: Path) -> None:
    link, behind = tmp_path / "link", tmp_path / "behind" / "file"
    link.symlink_to(behind)
    with pytest.raises(ValueError, match="behind is no folder"):
        writable(Path, link)
    behind.parent.mkdir()
    writable(Path, link)


@pytest.mark.parametrize(
    "content", [b"GGUF\x03\x00", b"\x10\x00\x00\x00\x00\x00\x00\x00{}", b"text"]
)
def test_a_model_is_not_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="something other than a record"):
        writable(Path, path)
    with pytest.raises(OutputError, match="something other than a record"):
        deliver(Small(), path, draw)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_models_json_is_not_written_over(tmp_path: Path, name: str) -> None:
    writable(Path, tmp_path / name)
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match="something other than a record"):
        writable(Path, tmp_path / name)


@pytest.mark.parametrize("content", [b"", b'\n{"a": 1}', b"<!doctype html>"])
def test_earlier_records_and_pages_are_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    writable(Path, path)
    deliver(Small(), path, draw)
    assert b"lines" in path.read_bytes()


def test_the_output_itself_is_no_place_for_the_record(tmp_path: Path) -> None:
    """It does not exist when the options are read."""
    source = write_gguf(tmp_path / "m.gguf", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    out = tmp_path / "out.gguf"
    arguments = ["--recipe", "rtn-q4_0", "--out", str(out), "--json", str(out)]
    assert app.run(["quantize", str(source), *arguments]) == 2
    assert out.read_bytes()[:4] == b"GGUF"
