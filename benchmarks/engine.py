"""Python's share of a step: scheduling, sampling and bookkeeping around a model that costs nothing.

The vocabulary is small, so that drawing costs next to nothing either; what the native executor adds
per step (checking and reading the step) is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.runtime.step import StepInput
from fewbit.sampling import SamplingParams, SamplingThreads
from fewbit.speculate.drafts import NgramDraft

STEPS = 2000
VOCABULARY = 64
SECOND = 1e6  # in microseconds


def bar(sequences: int) -> float:
    """Microseconds a step, from the design: 60, and 15 for each sequence of a batch."""
    return 60 + 15 * (sequences if sequences > 1 else 0)


class MockExecutor:
    """Answers every step with the same logits."""

    pages = 1024

    def __init__(self) -> None:
        self._logits = np.random.default_rng(0).normal(0, 1, (512, VOCABULARY)).astype(np.float32)

    def step(self, step: StepInput) -> np.ndarray:
        return self._logits[: len(step.wanted)]


class Letters:
    """A decoder of text that holds nothing back."""

    def push(self, token: int) -> str:
        return "abcdefgh"[token % 8]

    def finish(self) -> str:
        return ""


def decoder(_prompt: Sequence[int]) -> Letters:
    return Letters()


def step_seconds(sequences: int, speculation: Speculation | None = None) -> list[float]:
    """Return the times of decoding steps over that many sequences."""
    served = Served(MockExecutor(), VOCABULARY, 4096, decoder, SamplingThreads())
    engine = Engine(served, speculation)
    for i in range(sequences):
        params = SamplingParams(temperature=0.8, top_p=0.9, seed=i)
        engine.add(Request((i, 1, 2, 3), params, StopCondition(max_tokens=STEPS + 100)))
    for _ in range(50):
        engine.step()
    found = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        engine.step()
        found.append(time.perf_counter() - begun)
    return found


def main() -> None:
    print("Python's share of a step, us        median    p90    bar")
    for sequences in (1, 4, 16):
        _print_row(
            f"{sequences} sequence{'s' if sequences > 1 else ''}",
            step_seconds(sequences),
            f"{bar(sequences):6.0f}",
        )
    draft = Speculation(NgramDraft())
    _print_row("16 sequences, n-gram draft", step_seconds(16, draft), "     -")


def _print_row(name: str, seconds: list[float], bar_text: str) -> None:
    ninth = statistics.quantiles(seconds, n=10)[-1] * SECOND
    print(f"  {name:30} {statistics.median(seconds) * SECOND:10.1f} {ninth:6.1f} {bar_text}")


if __name__ == "__main__":
    main()
