"""Mean KL(source || candidate) window by window: 512 tokens from a text's start, second halves.

The protocol of every quality figure: consecutive windows from the start of the text, each begun as
the tokenizer begins a text; of a window's n positions n / 2 to n - 2 are scored.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewbit.evaluate.divergence import compare
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import open_model

WINDOWS, LENGTH = 40, 512
RESAMPLES = 10_000
PEER = Path(__file__).parent / "workers" / "llama_cpp_quality.py"


@dataclass(frozen=True)
class Figure:
    """A mean over windows, and its bootstrap interval of 95%."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"


def windows_of(model: Path, text: str, count: int = WINDOWS) -> NDArray[np.int32]:
    """Return int32 [count, LENGTH] from the start of a text."""
    with open_model(model) as source:
        tokenizer = tokenizer_of(source)
    prefix = list(tokenizer.behaviour.prefix)
    ids = tokenizer.encode(text, add_special=False)
    body = LENGTH - len(prefix)
    found = [
        [*prefix, *ids[i * body : (i + 1) * body]] for i in range(min(count, len(ids) // body))
    ]
    return np.array(found, np.int32)


def in_fewbit(
    source: Path, candidates: Sequence[Path], windows: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return float64 [candidates, windows], run by fewbit's native executor.

    The source runs once; each candidate runs the window right after it.
    """
    exact, *others = (_runner(path) for path in (source, *candidates))
    return np.array([_row(exact, others, window) for window in windows]).T


def in_llama_cpp(
    source: Path, candidates: Sequence[Path], windows: NDArray[np.int32], folder: Path, python: str
) -> NDArray[np.float64]:
    """Return the same, run by llama.cpp itself in a process of its own."""
    np.save(folder / "windows.npy", windows)
    out = folder / "divergences.npy"
    ask_peer(
        python,
        "divergences",
        source=str(source),
        candidates=[str(path) for path in candidates],
        windows=str(folder / "windows.npy"),
        out=str(out),
        threads=2,
    )
    return np.load(out)


def ask_peer(python: str, task: str, **arguments: object) -> None:
    """Have llama.cpp do a task in a process of its own; ends the program where it cannot."""
    command = [python, str(PEER), task, json.dumps(arguments)]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"llama.cpp failed at: {task}")


def mean(values: NDArray[np.float64]) -> Figure:
    """Return the mean of float64 [windows] with its interval."""
    return _figure(values.mean(), values[_resamples(len(values))].mean(axis=1))


def ratio(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Figure:
    """Return the ratio of two means over the same windows, with its interval."""
    chosen = _resamples(len(ours))
    return _figure(
        ours.mean() / theirs.mean(), ours[chosen].mean(axis=1) / theirs[chosen].mean(axis=1)
    )


def _runner(path: Path) -> Runner:
    return runner_of(open_model(path), RunSettings(context=LENGTH))


def _row(exact: Runner, others: Sequence[Runner], window: NDArray[np.int32]) -> list[float]:
    """Return each candidate's mean divergence on one window."""
    first = len(window) // 2
    targets = window[first + 1 :]
    logits = np.concatenate([block.copy() for block in exact.score(window[:-1], first, 128)])
    return [_mean(logits, runner, window[:-1], targets) for runner in others]


def _mean(
    logits: NDArray[np.float32],
    runner: Runner,
    tokens: NDArray[np.int32],
    targets: NDArray[np.int32],
) -> float:
    row, sums = 0, 0.0
    for block in runner.score(tokens, len(tokens) + 1 - len(targets) - 1, 128):
        part = slice(row, row + len(block))
        sums += float(compare(logits[part], block, targets[part]).divergence.sum())
        row += len(block)
    return sums / row


def _resamples(count: int) -> NDArray[np.intp]:
    return np.random.Generator(np.random.Philox(0)).integers(0, count, (RESAMPLES, count))


def _figure(found: float, resampled: NDArray[np.float64]) -> Figure:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Figure(float(found), float(low), float(high))
