"""What pip says about where a wheel is."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from fewbit.checkpoint.package_index import find_wheel, link_to
from fewbit.errors import DownloadError

LISTING = """Using pip 26.3
  Link requires a different Python (not in: '>=3.13'): https://m/tiny-9-py3-none-any.whl
  Found link https://mirror/a%2Fb/tiny-1.tar.gz (from https://mirror/simple/tiny/), version: 1
  Found link https://mirror/a/tiny-1-py3-none-any.whl#sha256=0 (from https://m/tiny/), version: 1
  Found link file:///wheels/tiny-2%2Bcpu-py3-none-any.whl, version: 2
tiny (2)
"""


def test_the_link_of_a_wheel() -> None:
    assert link_to("tiny-1-py3-none-any.whl", LISTING) == "https://mirror/a/tiny-1-py3-none-any.whl"
    assert link_to("tiny-2+cpu-py3-none-any.whl", LISTING) == (
        "file:///wheels/tiny-2%2Bcpu-py3-none-any.whl"
    )
    assert link_to("tiny-9-py3-none-any.whl", LISTING) is None
    assert link_to("y-1-py3-none-any.whl", LISTING) is None


def test_pip_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(stdout=LISTING, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert find_wheel("tiny", "tiny-1-py3-none-any.whl").startswith("https://mirror/a/")
    assert commands[0][-3:] == ["index", "versions", "tiny"]
    with pytest.raises(DownloadError, match=r"pip finds no tiny-9\.whl .* check the network"):
        find_wheel("tiny", "tiny-9.whl")


def test_pip_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(stdout="", stderr="python: No module named pip\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(DownloadError, match="ensurepip"):
        find_wheel("tiny", "tiny-1-py3-none-any.whl")


def test_pip_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(DownloadError, match="could not be run"):
        find_wheel("tiny", "tiny-1-py3-none-any.whl")
