"""Many sequences at once, what Python costs, and a step beside a busy neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

import numpy as np
from bench import Bench, best_of, take_turns
from processes import Worker, busy_neighbour
from table import Row, at_most, compared

SEQUENCES = 16
MICROSECONDS = "{:.0f} us"
SETTINGS = tuple(
    f"{attention}{store} sequences={SEQUENCES}"
    for attention in ("plain", "flash")
    for store in ("", " unified")
)
SAMPLING = ("temperature", "top-k 40")


def concurrent(bench: Bench) -> Iterator[Row]:
    """Sixteen sequences that decode together, a token drawn for each in every step.

    fewbit draws from the whole vocabulary; llama.cpp may take the faster of that and the 40
    likeliest.
    """
    count = bench.sizes.generated
    settings = [f"{setting}, {sampling}" for setting in SETTINGS for sampling in SAMPLING]
    options = {"context": 256, "sequences": SEQUENCES}
    with bench.both(bench.models.small("q4_0"), **options) as (ours, peer):
        best = best_of(peer, settings, partial(_drawn, count // 4))
        pairs = take_turns(ours, peer, best, partial(_drawn, count), bench.rounds)
    work = f"SmolLM2 Q4_0, {SEQUENCES} at once, {count} each, sampled"
    yield compared(work, pairs, 3.0, best.replace(f" sequences={SEQUENCES}", ""))


def _drawn(tokens: int, worker: Worker, setting: str) -> float:
    """Return tokens per second; a setting is the context's, a comma, and how tokens are drawn."""
    context, _, sampling = setting.partition(", ")
    asked = {"sequences": SEQUENCES, "tokens": tokens, "sampling": sampling or SAMPLING[0]}
    rate: float = worker.ask("concurrent", context, **asked)
    return rate


def python(bench: Bench) -> Iterator[Row]:
    """What of a decoding step is neither the model's nor the sampler's native code."""
    steps = bench.sizes.steps // 5
    with bench.ours(bench.models.small("q4_0"), context=256, sequences=SEQUENCES) as ours:
        micro = {
            sequences: [
                1e6 * median(ours.ask("python", sequences=sequences, tokens=steps))
                for _ in range(bench.rounds)
            ]
            for sequences in (1, SEQUENCES)
        }
    each = [(many - one) / (SEQUENCES - 1) for one, many in zip(*micro.values(), strict=True)]
    work = "Python's share of a step, SmolLM2"
    yield at_most(f"{work}, batch 1", micro[1], (), 60, MICROSECONDS)
    yield at_most(f"{work}, batch {SEQUENCES}", micro[SEQUENCES], (), 300, MICROSECONDS)
    yield at_most(f"{work}, a sequence more", each, (), 15, MICROSECONDS)


def neighbour(bench: Bench) -> Iterator[Row]:
    """The slowest of a hundred steps over the median one, while another process takes a core."""
    with bench.both(bench.models.small("q4_0")) as (ours, peer):
        alone = median(ours.ask("decode", tokens=bench.sizes.steps))
        with busy_neighbour():
            found = [
                (
                    ours.ask("decode", tokens=bench.sizes.steps),
                    peer.ask("decode", "plain", tokens=bench.sizes.steps // 5),
                )
                for _ in range(max(1, bench.rounds // 2))
            ]
    mine, theirs = ([_tail(pair[i]) for pair in found] for i in (0, 1))
    yield at_most("SmolLM2 Q4_0, p99 of a step over its median, busy neighbour", mine, theirs, 5)
    beside = [1e3 * median(pair[0]) for pair in found], [1e3 * median(pair[1]) for pair in found]
    work = f"same, the median step (alone {1e3 * alone:.2f} ms)"
    yield at_most(work, *beside, None, "{:.2f} ms")


def _tail(steps: list[float]) -> float:
    return float(np.quantile(steps, 0.99)) / median(steps)
