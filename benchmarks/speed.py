"""One sequence: decoding, prompts, blocks of a few tokens, a long context, one thread and two."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from bench import Bench, best_of, take_turns
from processes import Worker
from table import PERCENT, Row, at_least, at_most, compared, not_run, spread

ATTENTION = ("plain", "flash")
PROMPT_SETTINGS = ("plain", "flash", "plain ubatch=256", "flash ubatch=256")
BLOCKS = {2: None, 4: 1.15, 8: 1.5}
NO_LARGE = "give --model-1.5b FILE"


def small(bench: Bench) -> Iterator[Row]:
    """SmolLM2-135M in each form."""
    with bench.both(bench.models.small("q4_0")) as (ours, peer):
        yield _decode(bench, "SmolLM2 Q4_0, decode", ours, peer, 2.6)
        yield _prompt(bench, "SmolLM2 Q4_0", ours, peer)
    for form, least in (("q8_0", 2.0), ("bf16", 1.5)):
        with bench.both(bench.models.small(form)) as (ours, peer):
            yield _decode(bench, f"SmolLM2 {form.upper()}, decode", ours, peer, least)


def large(bench: Bench) -> Iterator[Row]:
    """The 1.5B model."""
    if bench.models.large is None:
        yield not_run("1.5B Q4_K_M, decode", ">= 1.65 x", NO_LARGE)
        yield not_run("same, of the bandwidth", ">= 78%", NO_LARGE)
        yield not_run("1.5B Q4_K_M, prompt of 512", ">= 2.5 x", NO_LARGE)
        yield not_run("1.5B Q4_K_M, scoring 4, 8 at once", "<= 1.15, 1.5", NO_LARGE)
        return
    with bench.both(bench.models.large) as (ours, peer):
        yield _decode(bench, "1.5B Q4_K_M, decode", ours, peer, 1.65)
        yield _bandwidth(bench, ours)
        yield _prompt(bench, "1.5B Q4_K_M", ours, peer)
        yield from _blocks(bench, ours, peer)


def long(bench: Bench) -> Iterator[Row]:
    """Decoding behind a long prompt whose keys and values are int8."""
    context = bench.sizes.context
    work, least = f"1.5B decode at {context} tokens, int8 KV", 1.5
    if bench.models.large is None:
        yield not_run(work, f">= {least} x", NO_LARGE)
        return
    options: dict[str, Any] = {"kv": "int8", "context": context + 64}
    with bench.both(bench.models.large, **options) as (ours, peer):
        setting = "flash"  # llama.cpp quantizes values for flash attention only
        filled = ours.ask("fill", tokens=context), peer.ask("fill", setting, tokens=context)
        bench.note(f"{context} tokens were read in {filled[0]:.1f} and {filled[1]:.1f} s")
        pairs = [
            (
                _rate(ours, "default", bench.sizes.behind, context),
                _rate(peer, setting, bench.sizes.behind, context),
            )
            for _ in range(bench.rounds)
        ]
        yield compared(work, pairs, least, f"{setting}, q8_0")


def threads(bench: Bench) -> Iterator[Row]:
    """One thread and two, and what memory gives to each."""
    work = "1.5B decode, two threads over one"
    if bench.models.large is None:
        yield not_run(work, ">= 1.7 x or memory's", NO_LARGE)
        return
    model = bench.models.large
    rates: list[tuple[float, float]] = []
    reads: list[tuple[float, float]] = []
    with bench.ours(model, threads=1) as one, bench.ours(model, threads=2) as two:
        for worker in (one, two):
            worker.ask("bandwidth")
            _rate(worker, "default", 4)
        for _ in range(bench.rounds):
            reads.append((one.ask("bandwidth"), two.ask("bandwidth")))
            count = bench.sizes.decode // 2
            rates.append((_rate(one, "default", count), _rate(two, "default", count)))
    memory = median(b / a for a, b in reads)
    ratios = [b / a for a, b in rates]
    least = min(1.7, memory)
    yield Row(
        work,
        f"{median(a for a, _ in rates):.1f} to {median(b for _, b in rates):.1f} tok/s",
        f"memory {memory:.2f} x",
        f"{median(ratios):.2f} x",
        spread(ratios),
        f">= {least:.2f} x",
        median(ratios) >= least,
        {"rates": rates, "reads": reads},
    )


def _decode(bench: Bench, work: str, ours: Worker, peer: Worker, least: float) -> Row:
    count = bench.sizes.decode

    def measure(worker: Worker, setting: str) -> float:
        return _rate(worker, setting, count)

    best = best_of(peer, ATTENTION, measure)
    pairs = take_turns(ours, peer, best, measure, bench.rounds)
    return compared(work, pairs, least, best)


def _prompt(bench: Bench, name: str, ours: Worker, peer: Worker) -> Row:
    count = bench.sizes.prompt

    def measure(worker: Worker, setting: str) -> float:
        rate: float = worker.ask("prompt", setting, tokens=count)
        return rate

    best = best_of(peer, PROMPT_SETTINGS, measure)
    pairs = take_turns(ours, peer, best, measure, bench.rounds)
    return compared(f"{name}, prompt of {count}", pairs, 2.5, best)


def _bandwidth(bench: Bench, ours: Worker) -> Row:
    """Decoding's bytes per second over what memory gives, read before and after each turn."""
    facts, count = ours.ask("facts"), bench.sizes.decode
    read = facts["weight_bytes"] + facts["position_bytes"] * count / 2
    fractions = []
    for _ in range(bench.rounds):
        before = ours.ask("bandwidth")
        rate = _rate(ours, "default", count)
        memory = max(before, ours.ask("bandwidth"))
        bench.note(f"{memory / 1e9:.1f} GB/s read from memory")
        fractions.append(rate * read / memory)
    return at_least(f"same, {read / 1e6:.0f} MB a token of the bandwidth", fractions, 0.78, PERCENT)


def _blocks(bench: Bench, ours: Worker, peer: Worker) -> Iterator[Row]:
    """Scoring 2, 4 and 8 tokens at once, in units of one; the sizes take turns in a worker."""
    asked: dict[str, Any] = {"sizes": [1, *BLOCKS], "rounds": bench.sizes.block_rounds}
    found = [
        (ours.ask("blocks", **asked), peer.ask("blocks", "plain", **asked))
        for _ in range(max(1, bench.rounds // 2))
    ]
    for size, most in BLOCKS.items():
        mine, theirs = ([r[i][str(size)] / r[i]["1"] for r in found] for i in (0, 1))
        yield at_most(f"1.5B Q4_K_M, scoring {size} at once", mine, theirs, most)


def _rate(worker: Worker, setting: str, count: int, at: int = 0) -> float:
    """Return tokens per second by the median step, so that an interruption counts but once."""
    steps: list[float] = worker.ask("decode", setting, tokens=count, at=at)
    return 1 / median(steps)
