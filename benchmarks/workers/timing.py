"""What both workers measure: a prompt, decoding, and blocks of a few tokens."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Protocol

BLOCKS = (1, 2, 4, 8)
BLOCK_ROUNDS = 40


class Runs(Protocol):
    """A model that can run tokens at a position and forget them again."""

    def forget(self, position: int) -> None: ...

    def run(self, tokens: list[int], position: int, *, every_logit: bool) -> None: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments both workers take."""
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=96)
    parser.add_argument("--context", type=int, default=2048)


def measure(model: Runs, arguments: argparse.Namespace) -> dict[str, object]:
    """Return tokens per second of a prompt and of decoding, and milliseconds of each block.

    Prompt and decoding are the best of three, a block the median of its rounds.
    """
    tokens = [(i * 7919) % 40_000 + 10 for i in range(max(arguments.prompt, 128))]
    prompt = tokens[: arguments.prompt]

    def run_prompt() -> None:
        model.forget(0)
        model.run(prompt, 0, every_logit=False)

    def decode() -> None:
        model.forget(0)
        for i in range(arguments.decode):
            model.run([tokens[i % len(tokens)]], i, every_logit=True)

    run_prompt()
    prompt_seconds = min(_seconds(run_prompt) for _ in range(3))
    decode_seconds = min(_seconds(decode) for _ in range(3))
    model.forget(0)
    model.run(tokens[:64], 0, every_logit=False)
    return {
        "prompt": arguments.prompt / prompt_seconds,
        "decode": arguments.decode / decode_seconds,
        "blocks": _blocks(model, tokens),
    }


def _blocks(model: Runs, tokens: list[int]) -> dict[str, float]:
    """Return the median milliseconds to score each number of tokens behind 64 others.

    The sizes take turns, so that all of them see the same machine.
    """
    seconds: dict[int, list[float]] = {size: [] for size in BLOCKS}
    for _ in range(BLOCK_ROUNDS):
        for size, found in seconds.items():
            model.forget(64)
            block = tokens[:size]
            found.append(_seconds(lambda block=block: model.run(block, 64, every_logit=True)))
    return {str(size): 1e3 * statistics.median(found) for size, found in seconds.items()}


def _seconds(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start
