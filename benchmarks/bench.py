"""What every part of the benchmark is given, and how two engines take turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from models import Models
from processes import Worker

WARM_UP = 4
"""Tokens decoded before anything is measured: every page of the weights is touched."""

Measure = Callable[[Worker, str], float]
"""Has a worker do something under a setting; larger is better."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    prompt: int = 512
    decode: int = 64
    block_rounds: int = 24
    generated: int = 128
    steps: int = 500
    context: int = 8192
    behind: int = 24
    """Tokens decoded behind that context."""


QUICK = Sizes(64, 8, 3, 8, 40, 512, 4)
"""Enough to see that everything runs; the figures mean nothing."""


@dataclass(frozen=True)
class Bench:
    """The choices of one run."""

    models: Models
    peer_python: str
    vllm_python: str | None
    vllm_model: Path | None
    threads: int
    rounds: int
    sizes: Sizes
    notes: list[str] = field(default_factory=list)
    """Conditions to print below the table, in the order they became known."""

    def ours(self, model: Path, **options: str | int) -> Worker:
        """Start fewbit with a model."""
        chosen = {"threads": self.threads, **options}
        return Worker(sys.executable, "fewbit_native.py", model, **chosen)

    def peer(self, model: Path, **options: str | int) -> Worker:
        """Start llama.cpp with a model."""
        chosen = {"threads": self.threads, **options}
        return Worker(self.peer_python, "llama_cpp_peer.py", model, **chosen)

    @contextmanager
    def both(self, model: Path, **options: str | int) -> Iterator[tuple[Worker, Worker]]:
        """Start fewbit and llama.cpp with the same model."""
        with self.ours(model, **options) as ours, self.peer(model, **options) as peer:
            ours.ask("decode", tokens=WARM_UP)
            peer.ask("decode", tokens=WARM_UP)
            kernels = ", ".join(ours.ask("facts")["kernels"])
            self.note(f"{model.stem}: {kernels}")
            self.note(f"llama.cpp: {peer.ask('facts')['system']}")
            yield ours, peer

    def note(self, text: str) -> None:
        """Keep a condition, once."""
        if text not in self.notes:
            self.notes.append(text)


def best_of(peer: Worker, settings: Sequence[str], measure: Measure) -> str:
    """Try each of the peer's settings once and return the fastest."""
    return max(settings, key=lambda setting: measure(peer, setting))


def take_turns(
    ours: Worker, peer: Worker, setting: str, measure: Measure, rounds: int
) -> list[tuple[float, float]]:
    """Measure both `rounds` times, one after the other; return (ours, peer's) of each round."""
    measure(ours, "default")
    return [(measure(ours, "default"), measure(peer, setting)) for _ in range(rounds)]
