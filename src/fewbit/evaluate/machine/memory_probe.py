"""A process of its own that loads a model, serves it, and says what memory that took.

`python -m fewbit.evaluate.machine.memory_probe` reads a task as JSON from stdin and writes a
`MemoryRun` to stdout.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from fewbit.engine.scheduler import UNHURRIED
from fewbit.errors import FewbitError, UnsupportedError, UsageError
from fewbit.evaluate.arms import load_subject
from fewbit.evaluate.machine.resident import PROCESSES, resident
from fewbit.evaluate.machine.stand import Stand
from fewbit.evaluate.subject import open_subject
from fewbit.model.runner import RunSettings
from fewbit.records.memory_axis import MemoryRun, Peak
from fewbit.runtime.kv import page_bytes
from fewbit.runtime.step import PAGE

TOKENS = 64
"""Of a sequence, those that are generated: more than the steps until all prompts are computed, so
that all sequences are in memory at once."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is run and measured."""

    path: str
    settings: RunSettings
    """But for context and sequences."""
    length: int
    """Tokens of a sequence, prompt and answer together; more than `TOKENS`."""
    sequences: tuple[int, ...]
    """How many at once, ascending."""


def measure_apart(task: Task) -> MemoryRun:
    """Have a new process do a task.

    Raises:
        UsageError: the process ended without an answer; says with which last words.
    """
    command = [sys.executable, "-m", "fewbit.evaluate.machine.memory_probe"]
    done = subprocess.run(
        command, input=msgspec.json.encode(task), capture_output=True, check=False
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise UsageError(
            f"The process that measures the memory of {task.path} with "
            f"{max(task.sequences)} sequences of {task.length} tokens ended with exit code "
            f"{done.returncode} ({said[-1] if said else 'it said nothing'}); ask for fewer or "
            "shorter ones."
        )
    return msgspec.json.decode(done.stdout, type=MemoryRun)


def probe(task: Task) -> MemoryRun:
    """Do a task in this process; its peak is only this task's if nothing larger ran in it before.

    Raises:
        UnsupportedError: the system does not say what memory a process has.
        BadFileError, MissingError, KernelError, UsageError: as `open_subject` and `runner_of`.
    """
    subject = open_subject(Path(task.path))
    before = _status("VmRSS")
    most = max(task.sequences)
    settings = replace(task.settings, context=task.length + PAGE, sequences=most)
    loaded = load_subject(subject, settings)
    ready = _status("VmRSS")
    stand = Stand(
        loaded,
        prompt=task.length - TOKENS,
        tokens=TOKENS,
        sequences=most,
        stall=UNHURRIED,
    )
    peaks = []
    for count in task.sequences:
        stand.serve(count)
        peaks.append(Peak(sequences=count, bytes=_status("VmHWM")))
    return MemoryRun(
        before=before,
        loaded=ready,
        peaks=tuple(peaks),
        weights=loaded.runner.loading.memory.weights,
        page_bytes=page_bytes(loaded.runner.program),
        page_tokens=PAGE,
    )


def _status(name: str) -> int:
    """Return a figure of this process' status, in bytes."""
    try:
        found = resident(name)
    except OSError as error:
        raise UnsupportedError(
            f"Memory cannot be measured: {error.filename} cannot be read ({error.strerror}). It is "
            "measured on Linux; leave the axis out elsewhere."
        ) from error
    if found is None:
        raise UnsupportedError(
            f"Memory cannot be measured: a process' status in {PROCESSES} has no {name}; leave the "
            "axis out."
        )
    return found


def main() -> int:
    """Do the task on stdin; the exit code is 0, or an error's."""
    try:
        found = probe(msgspec.json.decode(sys.stdin.buffer.read(), type=Task))
    except FewbitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
