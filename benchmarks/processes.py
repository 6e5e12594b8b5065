"""Workers as processes: started once, asked in turns, idle and asleep in between."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from table import Row

_Subject = TypeVar("_Subject")

WORKERS = Path(__file__).parent / "workers"

LONGEST_TASK = 900.0
"""Seconds after which a worker is taken to hang: filling 8,192 positions takes llama.cpp 100 on a
quiet machine."""


class WorkerError(Exception):
    """A worker could not be started, or ended while it was asked."""


def rows_of(
    name: str, part: Callable[[_Subject], Iterator[Row]], subject: _Subject
) -> Iterator[Row]:
    """Yield the rows of a part; one that fails is a row that says so, and the others go on."""
    try:
        yield from part(subject)
    except WorkerError as error:
        yield Row(name, figure=f"failed: {error}".replace("\n", " ").replace("|", "/"))


class Worker:
    """One engine with one model; `with` ends it."""

    def __init__(self, python: str, script: str, model: Path, **options: str | int) -> None:
        self.name = script
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        flags = [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            [python, str(WORKERS / script), str(model), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, task: str, setting: str = "default", **arguments: Any) -> Any:
        """Have one task done and return its result."""
        request = {"task": task, "setting": setting, **arguments}
        timer = threading.Timer(LONGEST_TASK, self._process.kill)
        timer.start()
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline() if self._process.stdout else ""
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            raise WorkerError(f"{self.name} ended during {task}: {self._last_words()}")
        return json.loads(answer)

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().split("\n")
        return " ".join(lines[-3:]).strip() or f"exit code {self._process.returncode}"


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Keep one core busy with another process."""
    command = ["python3", "-c", "while True: pass"]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()
