"""`fewbit pull` prints a path, last and alone, on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from fewbit.checkpoint.local import cache_root
from fewbit.cli.app import run


def test_a_path_is_printed_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", str(tmp_path)]) == 0
    out, err = capfd.readouterr()
    assert out == f"{tmp_path}\n"
    assert err == ""


def test_an_unknown_name_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "smollm2-135"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "did you mean 'smollm2-135m'" in err


def test_help_begins_with_an_example(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["pull", "--help"]) == 0
    assert capfd.readouterr().out.startswith("Example: fewbit pull smollm2-135m")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FEWBIT_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/fewbit")),
        ({"XDG_CACHE_HOME": ""}, Path.home() / ".cache" / "fewbit"),
    ],
)
def test_the_cache(environment: dict[str, str], expected: Path) -> None:
    assert cache_root(environment) == expected
