"""From the start of a process to its first token, when the model was run before."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from bench import Bench
from processes import WORKERS, WorkerError
from speed import NO_LARGE
from table import Row, at_most, not_run

PROMPT = "def add(a, b):"
MOST = 1.0


def start(bench: Bench) -> Iterator[Row]:
    """The second start and those after it; the first may leave something behind for them."""
    work = "1.5B, start of the process to first token, second start"
    if bench.models.large is None:
        yield not_run(work, f"<= {MOST:.2f} s", NO_LARGE)
        return
    model, threads = str(bench.models.large), f"--threads={bench.threads}"
    shared = [model, threads, f"--prompt={PROMPT}"]
    ours = [sys.executable, "-m", "fewbit", "generate", *shared, "--raw", "--max-tokens=1"]
    peer = [bench.peer_python, str(WORKERS / "llama_cpp_start.py"), *shared]
    first = first_token(ours)
    first_token(peer)
    pairs = [(first_token(ours), first_token(peer)) for _ in range(bench.rounds)]
    mine, theirs = zip(*pairs, strict=True)
    yield at_most(f"{work} (first {first:.2f} s)", mine, theirs, MOST, "{:.2f} s")


def first_token(command: Sequence[str]) -> float:
    """Return the seconds until a command's first byte of output."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        byte = process.stdout.read(1)
        seconds = time.perf_counter() - begun
        _, errors = process.communicate()
    if not byte or process.returncode:
        raise WorkerError(f"{command[1:4]} printed nothing: {errors.decode()[-300:]}")
    return seconds
