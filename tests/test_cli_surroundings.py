"""Streams that do not take every character, and terminals that are too narrow."""

from __future__ import annotations

import io
import os
import sys

import pytest

from fewbit.cli import app
from fewbit.cli.surroundings import NARROWEST, make_fit


def stream(monkeypatch: pytest.MonkeyPatch, encoding: str) -> io.BytesIO:
    """Put a stdout of an encoding in place, and return what takes its bytes."""
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(taken, encoding, write_through=True))
    return taken


@pytest.mark.parametrize(
    ("encoding", "text", "written"),
    [
        ("ascii", "ü\ufffd", rb"\xfc\ufffd"),
        ("latin-1", "ü\ufffd", b"\xfc\\ufffd"),
        ("UTF-8", "ü\ufffd", "ü\ufffd".encode()),
        ("utf8", "small\udcff", b"small\xff"),  # as os.fsdecode gives a name that is no UTF-8
    ],
)
def test_stdout_takes_every_text(monkeypatch, encoding, text, written):
    taken = stream(monkeypatch, encoding)
    with pytest.raises(UnicodeEncodeError):
        print(text + "\ud800", end="")  # the control: without it such a stream refuses
    make_fit()
    print(text, end="")
    assert taken.getvalue() == written


@pytest.mark.parametrize("columns", ["1", "2", "9"])
@pytest.mark.parametrize("command", [[], ["draft"], ["quantize"]])
def test_help_is_written_whatever_the_terminal_s_width(monkeypatch, columns, command):
    monkeypatch.setenv("COLUMNS", columns)
    taken = stream(monkeypatch, "utf-8")
    with pytest.raises(SystemExit) as ended:
        app.main([*command, "--help"])
    assert ended.value.code == 0
    assert max(map(len, taken.getvalue().decode().splitlines())) <= NARROWEST


def test_a_terminal_that_is_wide_enough_is_left_as_it_is(monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    make_fit()
    assert os.environ["COLUMNS"] == "72"
