"""Details with everything that a report draws: curves, distributions, examples, sentences."""

import math
import random

from fewbit.records.base import Record
from fewbit.records.drawn import Band, Curve, Distribution, Example
from fewbit.records.interval import Interval


class Details(Record, frozen=True, kw_only=True):
    """What no single axis has, all of it."""

    kv_bytes_per_token: int = 23_040
    cache: str = "cold"
    curves: tuple[Curve, ...]
    gaps: tuple[Distribution, ...]
    examples: tuple[Example, ...]
    notes: tuple[str, ...] = ("Prompts are of 512 tokens.",)


def details():
    """Return all of it, the same each time."""
    return Details(curves=curves(), gaps=gaps(), examples=examples())


def curves():
    def bands(edges, rise):
        return tuple(
            Band(
                low=low,
                high=high,
                count=1000 - 90 * i,
                figure=Interval(value=v, low=0.85 * v, high=1.2 * v),
                floor=0.004,
            )
            for i, (low, high) in enumerate(zip(edges, [*edges[1:], None], strict=True))
            for v in [0.02 + rise * i]
        )

    return (
        Curve(
            title="Divergence by position",
            across="position, tokens",
            unit="nats",
            bands=bands([0.0, 64.0, 128.0, 256.0, 384.0, 512.0, 768.0, 1024.0], 0.004),
        ),
        Curve(
            title="Divergence by the source's confidence",
            across="probability of the source's first choice",
            unit="nats",
            bands=bands([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99], 0.002),
            note="Bands are of the source's own probability.",
        ),
    )


def gaps():
    draw = random.Random(7)

    def of(arm, middle):
        values = [middle * math.exp(draw.gauss(0, 0.08)) for _ in range(600)]
        values[300] = 14 * middle
        return Distribution(
            title="Gap between tokens, 4 requests at once",
            arm=arm,
            unit="seconds",
            values=tuple(values),
        )

    return of("source", 0.006), of("candidate", 0.0041)


def examples():
    return tuple(
        Example(
            name=f"sum {i}",
            slice="tasks/arithmetic",
            asked="A farmer has 17 sheep and sells 9.\nHow many are left?",
            source="17 - 9 = 8, so 8 are left.",
            candidate="He sells nine, so there are 17 + 9 = 26 sheep. " * (1 + i),
            source_says="right",
            candidate_says="wrong",
            expected="8",
            harm=1.0 - i / 10,
        )
        for i in range(5)
    )
