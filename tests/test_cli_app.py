"""How the command line ends: help, usage errors, faults."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from fewbit.cli import app
from fewbit.errors import NumericalError, UsageError


def _failing(error: BaseException) -> object:
    def build() -> object:
        def run(*_: object, **__: object) -> None:
            raise error

        return run

    return build


def test_help_shows_an_example_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Example: fewbit ")


@pytest.mark.parametrize("command", sorted(app.COMMANDS))
def test_every_command_answers_help_with_its_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run([*command.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Example: {app.COMMANDS[command][1]}\n")


@pytest.mark.parametrize("arguments", [["nope"], ["pull"], ["pull", "x", "--unheard-of"]])
def test_wrong_usage_is_one_line_and_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("fewbit: ")
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("bits is 9."), 2), (NumericalError("NaN in layer 3."), 3)]
)
def test_our_errors_are_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "build", _failing(error))
    assert app.run([]) == code
    assert capsys.readouterr().err == f"fewbit: {error}\n"


def test_a_fault_of_ours_is_70_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "build", _failing(ZeroDivisionError()))
    assert app.run([]) == 70
    assert "please report" in capsys.readouterr().err


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "build", _failing(KeyboardInterrupt()))
    assert app.run([]) == 130


def test_nothing_heavy_is_imported_for_help() -> None:
    code = (
        "import sys, fewbit.cli.app as app; app.run(['--help']);"
        "heavy = {'torch', 'numpy', 'transformers', 'jinja2', 'tokenizers'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_output_is_one_line_and_2(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "build", _failing(OSError(number, "cannot")))
    assert app.run([]) == 2
    assert capsys.readouterr().err == (
        "fewbit: the output cannot be written (cannot); make room or write elsewhere.\n"
    )


def test_another_error_of_the_system_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "build", _failing(OSError(errno.EBADF, "bad")))
    assert app.run([]) == 70


def test_only_what_was_asked_for_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["compress", "--help"]) == 0
    assert "--empty" not in capsys.readouterr().out


def test_a_terminated_command_leaves_nothing_half_written(tmp_path: Path) -> None:
    code = """
import os, pathlib, signal, sys
from fewbit.atomic import replacing_folder
from fewbit.cli import app

def command(*_, **__):
    with replacing_folder(pathlib.Path(sys.argv[1]) / "out") as partial:
        (partial / "half").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGTERM)

app.build = lambda: command
app.main([])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == 143
    assert not list(tmp_path.iterdir())
