"""Mean KL(source || candidate) window by window: 512 tokens from a text's start, second halves.

The protocol of every quality figure: consecutive windows from the start of the text, each begun as
the tokenizer begins a text; of a window's n positions n / 2 to n - 2 are scored.

What was measured is kept in `measured/` beside the files, by window, and the source's logits in
`logits/` and `llama.cpp/` (50 MB a window with 49,152 tokens, 155 MB with 151,936), so that a
stopped run goes on and a new file costs one run of its own. A file that changed is measured again.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figures import Values
from numpy.typing import NDArray

from fewbit.evaluate.language.divergence import compare
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import open_model
from fewbit.records.kernels import Activations

WINDOWS, LENGTH = 40, 512
PEER = Path(__file__).parent / "workers" / "llama_cpp_quality.py"

Windows = Mapping[str, NDArray[np.int32]]
"""Token ids int32 [LENGTH] by the hash of each window, in the text's order."""


@dataclass(frozen=True)
class Candidate:
    """A model to be measured."""

    path: Path
    activations: str | None = None
    """How layers round their inputs; None for what the model says."""

    @property
    def name(self) -> str:
        """A name of its own among what is kept."""
        return self.path.name + (f".{self.activations}" if self.activations else "")


@dataclass(frozen=True)
class Peer:
    """How llama.cpp is run: a Python that has it."""

    python: str

    def ask(self, task: str, **arguments: object) -> None:
        """Have llama.cpp do a task in a process of its own; ends the program where it cannot."""
        command = [self.python, str(PEER), task, json.dumps(arguments)]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"llama.cpp failed at: {task}")


def windows_of(model: Path, text: str, count: int = WINDOWS) -> Windows:
    """Return up to `count` windows from the start of a text."""
    with open_model(model) as source:
        tokenizer = tokenizer_of(source)
    prefix = list(tokenizer.behaviour.prefix)
    ids = tokenizer.encode(text, add_special=False)
    body = LENGTH - len(prefix)
    found = [
        np.array([*prefix, *ids[i * body : (i + 1) * body]], np.int32)
        for i in range(min(count, len(ids) // body))
    ]
    return {hashlib.sha256(window.tobytes()).hexdigest()[:16]: window for window in found}


def in_fewbit(
    source: Path, candidates: Sequence[Candidate], windows: Windows, folder: Path
) -> dict[Candidate, Values]:
    """Return what fewbit's native executor gives, one candidate after the other."""
    logits = folder / "logits"
    logits.mkdir(exist_ok=True)
    exact = _Loaded(Candidate(source))

    def measured(candidate: Candidate, wanted: Windows) -> Iterator[tuple[str, float]]:
        runner = _runner(candidate)
        for key, window in wanted.items():
            whole = _kept_logits(logits / f"{key}.npy", exact, window)
            yield key, _mean(whole, runner, window)

    return _all(candidates, windows, folder, "fewbit", measured)


def in_llama_cpp(
    source: Path, candidates: Sequence[Candidate], windows: Windows, folder: Path, peer: Peer
) -> dict[Candidate, Values]:
    """Return the same, run by llama.cpp itself in processes of its own."""
    shared = folder / "llama.cpp"
    shared.mkdir(exist_ok=True)
    chosen = {"source": str(source), "folder": str(shared), "threads": 2}

    def measured(candidate: Candidate, wanted: Windows) -> Iterator[tuple[str, float]]:
        np.savez(shared / "windows.npz", **wanted)
        peer.ask("divergences", candidate=str(candidate.path), **chosen)
        yield from zip(wanted, np.load(shared / "divergences.npy").tolist(), strict=True)

    return _all(candidates, windows, folder, "llama.cpp", measured)


Measure = Callable[[Candidate, Windows], Iterator[tuple[str, float]]]


def _all(
    candidates: Sequence[Candidate], windows: Windows, folder: Path, engine: str, measure: Measure
) -> dict[Candidate, Values]:
    found = {}
    for done, candidate in enumerate(candidates, 1):
        print(f"{engine}: {candidate.name} ({done} of {len(candidates)})", file=sys.stderr)
        found[candidate] = kept_values(
            folder / "measured" / f"{candidate.name}.{engine}.json",
            state_of(candidate.path),
            windows,
            lambda wanted, candidate=candidate: measure(candidate, wanted),
        )
    return found


def kept_values(
    path: Path, state: str, windows: Windows, measure: Callable[[Windows], Iterator]
) -> Values:
    """Return the value of every window, from a file where it is kept or measured and kept there.

    Args:
        path: a JSON file, written after every window.
        state: what the values belong to; those of another state are dropped.
        windows: what is wanted.
        measure: yields the hash and the value of each window it is given.
    """
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    values = kept["values"] if kept.get("state") == state else {}
    left = {key: window for key, window in windows.items() if key not in values}
    if left:
        for done, (key, value) in enumerate(measure(left), 1):
            values[key] = value
            path.write_text(json.dumps({"state": state, "values": values}))
            print(f"  window {done} of {len(left)}: {value:.4f}", file=sys.stderr)
    return np.array([values[key] for key in windows])


def state_of(path: Path) -> str:
    """Return what tells a model from another of its name: sizes and times of its files."""
    files = sorted(path.glob("*")) if path.is_dir() else [path]
    return " ".join(f"{f.name}:{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files)


class _Loaded:
    """A runner that is made when it is first needed."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._runner: Runner | None = None

    def __call__(self) -> Runner:
        self._runner = self._runner or _runner(self._candidate)
        return self._runner


def _runner(candidate: Candidate) -> Runner:
    chosen = Activations(candidate.activations) if candidate.activations else None
    return runner_of(open_model(candidate.path), RunSettings(context=LENGTH, activations=chosen))


def _kept_logits(path: Path, exact: _Loaded, window: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the source's logits of a window's second half, kept in a file."""
    if not path.exists():
        first = len(window) // 2
        blocks = [block.copy() for block in exact().score(window[:-1], first, 128)]
        partial = path.with_suffix(".partial.npy")
        np.save(partial, np.concatenate(blocks))
        partial.rename(path)
    return np.load(path)


def _mean(whole: NDArray[np.float32], runner: Runner, window: NDArray[np.int32]) -> float:
    first = len(window) // 2
    targets = window[first + 1 :]
    row, total = 0, 0.0
    for block in runner.score(window[:-1], first, 128):
        part = slice(row, row + len(block))
        total += float(compare(whole[part], block, targets[part]).divergence.sum())
        row += len(block)
    return total / row
