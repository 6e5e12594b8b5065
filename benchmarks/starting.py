"""From the start of a process to its first token, when the model was run before."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import Bench
from processes import WORKERS, WorkerError
from speed import NO_LARGE
from table import Row, at_most, not_run

PROMPT = "def add(a, b):"
MOST = 1.0
MOST_PACKING = 3.0
"""Where no packed weights were kept, so that they are packed first."""


def start(bench: Bench) -> Iterator[Row]:
    """The second start and those after it; the first leaves the packed weights behind for them."""
    work = "1.5B, start of the process to first token, second start"
    if bench.models.large is None:
        yield not_run(work, f"<= {MOST:.2f} s", NO_LARGE)
        return
    bench.models.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.models.folder) as folder:
        link = Path(folder) / bench.models.large.name
        link.symlink_to(bench.models.large.resolve())
        shared = [f"--threads={bench.threads}", f"--prompt={PROMPT}"]
        ours = [sys.executable, "-m", "fewbit", "generate", str(link), *shared, "--raw"]
        ours.append("--max-tokens=1")
        peer = [bench.peer_python, str(WORKERS / "llama_cpp_start.py"), str(link), *shared]
        script = [sys.executable, str(WORKERS / "python_start.py"), str(link), *shared]
        packing = [first_token(script)[0] for _ in range(bench.rounds)]
        first, _ = first_token([*ours, "--keep-packed"])
        first_token(peer)
        pairs = []
        for _ in range(bench.rounds):
            seconds, said = first_token(ours)
            pairs.append((seconds, first_token(peer)[0]))
        scripted = [first_token(script)[0] for _ in range(bench.rounds)]
        bench.note(f"second start: {_about_weights(said)}".replace(f"{folder}/", ""))
    mine, theirs = zip(*pairs, strict=True)
    yield at_most(f"{work} (first {first:.2f} s)", mine, theirs, MOST, "{:.2f} s")
    yield at_most("the same by fewbit.load", scripted, (), MOST, "{:.2f} s")
    work = "1.5B, fewbit.load to first token, nothing kept"
    yield at_most(work, packing, (), MOST_PACKING, "{:.2f} s")


def first_token(command: Sequence[str]) -> tuple[float, str]:
    """Return the seconds until a command's first byte of output, and what it said on stderr."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        byte = process.stdout.read(1)
        seconds = time.perf_counter() - begun
        _, errors = process.communicate()
    if not byte or process.returncode:
        raise WorkerError(f"{command[1:4]} printed nothing: {errors.decode()[-300:]}")
    return seconds, errors.decode()


def _about_weights(said: str) -> str:
    """Return the line that says where the weights came from: kept, or packed anew."""
    return next((line for line in said.splitlines() if "weights" in line), "weights packed anew")
