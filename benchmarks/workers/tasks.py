"""What every worker measures, and how it is asked: a JSON object a line in, one a line out.

A worker is a process of its own that holds one model and waits, asleep, for its turn. So two
engines can alternate in short turns on one machine without loading anything again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

Task = Callable[..., Any]


class Steps(Protocol):
    """A model that can run tokens at a position of one sequence and forget them again."""

    def forget(self, position: int) -> None:
        """Drop everything from `position` on."""

    def run(self, tokens: list[int], position: int, *, every_logit: bool) -> None:
        """Run `tokens` from `position`; the logits of all, or of the last, are computed."""


class Engine(Protocol):
    """What a worker serves."""

    def use(self, setting: str) -> None:
        """Run what follows under one of the engine's settings."""

    def tasks(self) -> Mapping[str, Task]:
        """Return what it can be asked for."""


def parser() -> argparse.ArgumentParser:
    """Return a parser of the arguments that all workers take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=1, help="of so long a context each")
    parser.add_argument("--kv", default="f16")
    return parser


def arguments() -> argparse.Namespace:
    """Read the arguments that all workers take."""
    return parser().parse_args()


def serve(load: Callable[[], Engine]) -> None:
    """Load an engine and answer until the input ends; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine = load()
    for line in sys.stdin:
        request = json.loads(line)
        engine.use(request.pop("setting"))
        task = engine.tasks()[request.pop("task")]
        print(json.dumps(task(**request)), file=answers, flush=True)


def step_tasks(model: Steps) -> dict[str, Task]:
    """Return what every engine that runs step by step can be asked for."""
    return {
        "prompt": partial(prompt, model),
        "fill": partial(fill, model),
        "decode": partial(decode, model),
        "blocks": partial(blocks, model),
    }


def prompt(model: Steps, tokens: int) -> float:
    """Return the tokens per second of one prompt, read from an empty cache."""
    model.forget(0)
    return tokens / _seconds(lambda: model.run(_ids(tokens), 0, every_logit=False))


def fill(model: Steps, tokens: int) -> float:
    """Read a long prompt, 512 tokens at a time, and keep it; return the seconds taken."""
    model.forget(0)
    ids = _ids(tokens)
    begun = time.perf_counter()
    for at in range(0, tokens, 512):
        model.run(ids[at : at + 512], at, every_logit=False)
    return time.perf_counter() - begun


def decode(model: Steps, tokens: int, at: int = 0) -> list[float]:
    """Return the seconds of each of `tokens` steps of one row, from position `at` on."""
    model.forget(at)
    return list(_steps(model, _ids(tokens), at))


def blocks(model: Steps, sizes: list[int], rounds: int) -> dict[str, float]:
    """Return the median seconds to score each number of tokens behind 64 others.

    The sizes take turns, so that all of them see the same machine.
    """
    model.forget(0)
    model.run(_ids(64), 0, every_logit=False)
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size, seconds in found.items():
            model.forget(64)
            block = _ids(size)
            seconds.append(_seconds(lambda block=block: model.run(block, 64, every_logit=True)))
    return {str(size): statistics.median(seconds) for size, seconds in found.items()}


def _steps(model: Steps, ids: list[int], at: int) -> Iterator[float]:
    for i, token in enumerate(ids):
        yield _seconds(lambda i=i, token=token: model.run([token], at + i, every_logit=True))


def _ids(count: int) -> list[int]:
    """Return ids spread over the vocabulary; which ones they are changes no timing."""
    return [(i * 7919) % 40_000 + 10 for i in range(count)]


def _seconds(act: Callable[[], None]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun
