"""How often the gate's intervals hold the truth, by seeded simulation beside other intervals.

    python benchmarks/coverage.py [--trials 4000]

For every kind of figure data are drawn from a known distribution, an interval of 95% is made of
them, and it is counted how often the truth lies under it and over it: 2.5% each would be exact. The
side that matters most is "over": a truth over the upper bound is what lets a bad model pass.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.evaluate.gating.bootstrap import bootstrap_ratio, resample, studentized_ratio
from fewbit.evaluate.gating.proportions import PairedCounts, paired_counts
from fewbit.records.interval import Interval

LEVEL = 0.95
Z = 1.959963984540054

Values = NDArray[np.float64]
Data = tuple[Values, Values]
"""What is resampled: numerators and denominators by cluster."""


@dataclass(frozen=True)
class Case:
    """A distribution with its truth, and the intervals that are tried on it."""

    name: str
    truth: float
    draw: Callable[[np.random.Generator], object]
    methods: Mapping[str, Callable[[object], Interval]]


def bca(draws: Values) -> Callable[[Data], Interval]:
    return lambda data: bootstrap_ratio(*data, draws).interval(LEVEL)


def studentized(draws: Values) -> Callable[[Data], Interval]:
    return lambda data: studentized_ratio(*data, draws).interval(LEVEL)


def percentile(draws: Values) -> Callable[[Data], Interval]:
    def found(data: Data) -> Interval:
        resampled = np.sort((draws @ data[0]) / (draws @ data[1]))
        low, high = np.quantile(resampled, [0.025, 0.975])
        return Interval(value=float(data[0].sum() / data[1].sum()), low=low, high=high)

    return found


def means() -> Iterator[Case]:
    """Skewed documents, as divergences are; some so that a small set seldom shows how skewed."""
    for count in (12, 18, 24, 40, 120):
        draws = resample(count)
        methods = {
            "studentized": studentized(draws),
            "bca": bca(draws),
            "percentile": percentile(draws),
        }

        def even(rng: np.random.Generator, count: int = count) -> Data:
            return np.exp(0.7 * rng.standard_normal(count)), np.ones(count)

        yield Case(f"mean, log-normal .7, {count}", math.exp(0.245), even, methods)

        def outliers(rng: np.random.Generator, count: int = count) -> Data:
            large = np.where(rng.random(count) < 0.1, 4.0, 1.0)
            return large * np.exp(0.3 * rng.standard_normal(count)), np.ones(count)

        yield Case(f"mean, one in ten large, {count}", 1.3 * math.exp(0.045), outliers, methods)

        def uneven(rng: np.random.Generator, count: int = count) -> Data:
            size = rng.integers(20, 256, count).astype(float)
            return size * np.exp(0.5 * rng.standard_normal(count)), size

        yield Case(f"mean, sizes 20 to 255, {count}", math.exp(0.125), uneven, methods)

        def latencies(rng: np.random.Generator, count: int = count) -> Data:
            pace = np.exp(0.2 * rng.standard_normal(count))
            own = np.exp(0.1 * rng.standard_normal((2, count)))
            return 1.05 * pace * own[0], pace * own[1]

        yield Case(f"ratio of seconds, {count}", 1.05, latencies, methods)


def wald(counts: PairedCounts) -> Interval:
    n, b, c = counts.items, counts.first_alone, counts.second_alone
    half = Z * math.sqrt(max(b + c - (b - c) ** 2 / n, 0.0)) / n
    return Interval(value=counts.value, low=counts.value - half, high=counts.value + half)


def newcombe(both: float) -> Callable[[PairedCounts], Interval]:
    """Newcombe's tenth method (Statistics in Medicine 17, 1998): Wilson's, squared and added.

    It needs the share of items that both arms fail, which Tango's does not; of the two correlations
    that it may take, this is the plain one.
    """

    def found(counts: PairedCounts) -> Interval:
        n, b, c = counts.items, counts.first_alone, counts.second_alone
        a = round(both * (n - b - c))
        d = n - a - b - c
        (p1, low1, high1), (p2, low2, high2) = wilson(a + b, n), wilson(a + c, n)
        product = (a + b) * (c + d) * (a + c) * (b + d)
        phi = (a * d - b * c) / math.sqrt(product) if product else 0.0

        def half(x: float, y: float) -> float:
            return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

        return Interval(
            value=p1 - p2,
            low=p1 - p2 - half(p1 - low1, high2 - p2),
            high=p1 - p2 + half(high1 - p1, p2 - low2),
        )

    return found


def wilson(count: float, of: float) -> tuple[float, float, float]:
    p = count / of
    middle = (p + Z**2 / (2 * of)) / (1 + Z**2 / of)
    half = Z / (1 + Z**2 / of) * math.sqrt(p * (1 - p) / of + Z**2 / (4 * of**2))
    return p, middle - half, middle + half


def proportions() -> Iterator[Case]:
    """One item a cluster: b of n failed by the candidate alone, c by the source alone."""
    for count, worse, better in (
        (50, 0.02, 0.02),
        (50, 0.10, 0.05),
        (100, 0.01, 0.0),
        (100, 0.05, 0.02),
        (200, 0.01, 0.01),
        (200, 0.05, 0.05),
        (200, 0.06, 0.03),
        (450, 0.04, 0.02),
        (450, 0.15, 0.12),
    ):
        draws = resample(count, count=2000)

        def draw(
            rng: np.random.Generator, n: int = count, b: float = worse, c: float = better
        ) -> PairedCounts:
            found = rng.multinomial(n, [b, c, 1 - b - c])
            return PairedCounts(n, int(found[0]), int(found[1]))

        def resampled(counts: PairedCounts, draws: Values = draws) -> Interval:
            n, b, c = int(counts.items), int(counts.first_alone), int(counts.second_alone)
            d = np.concatenate([np.ones(b), -np.ones(c), np.zeros(n - b - c)])
            return bootstrap_ratio(d, np.ones(n), draws).interval(LEVEL)

        yield Case(
            f"proportions, {count} items, {worse:g} and {better:g}",
            worse - better,
            draw,
            {
                "tango": lambda counts: counts.interval(LEVEL),
                "newcombe": newcombe(0.5),
                "wald": wald,
                "bca": resampled,
            },
        )


def clustered() -> Iterator[Case]:
    """Chances of a failure by one arm alone that differ between clusters (beta, mean as given)."""
    for clusters, size, worse, better, alike in (
        (13, 4, 0.05, 0.03, 0.1),
        (20, 10, 0.02, 0.02, 0.0),
        (20, 10, 0.02, 0.02, 0.2),
        (20, 10, 0.06, 0.03, 0.2),
        (50, 4, 0.02, 0.01, 0.0),
        (50, 4, 0.02, 0.01, 0.5),
        (50, 4, 0.06, 0.04, 0.2),
        (150, 3, 0.02, 0.01, 0.3),
        (150, 3, 0.05, 0.04, 0.1),
    ):
        owners = np.repeat(np.arange(clusters), size)
        draws = resample(clusters, count=2000)

        def draw(
            rng: np.random.Generator,
            shape: tuple[int, int] = (clusters, size),
            chance: tuple[float, float] = (worse, better),
            alike: float = alike,
        ) -> Values:
            either = sum(chance)
            level = np.full((shape[0], 1), either)
            if alike:
                total = 1 / alike - 1
                level = rng.beta(either * total, (1 - either) * total, (shape[0], 1))
            one = rng.random(shape) < level
            sign = np.where(rng.random(shape) < chance[0] / either, 1.0, -1.0)
            return (one * sign).reshape(-1)

        def tango(d: Values, owners: NDArray[np.intp] = owners) -> Interval:
            return paired_counts(d, owners).interval(LEVEL)

        def naive(d: Values) -> Interval:
            counts = (float((d == sign).sum()) for sign in (1, -1))
            return PairedCounts(len(d), *counts).interval(LEVEL)

        def resampled(
            d: Values, owners: NDArray[np.intp] = owners, draws: Values = draws
        ) -> Interval:
            sums = np.bincount(owners, weights=d)
            found = bootstrap_ratio(sums, np.bincount(owners).astype(float), draws)
            return found.interval(LEVEL) if found.varies else tango(d, owners)

        yield Case(
            f"{clusters} clusters of {size}, {worse:g} and {better:g}, alike {alike:g}",
            worse - better,
            draw,
            {"tango by effect": tango, "tango, clusters ignored": naive, "bca": resampled},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"{options.trials} trials; share of truths under and over the interval, mean width")
    for case in (*means(), *proportions(), *clustered()):
        if options.only in case.name:
            print(case.name)
            for name, row in measured(case, options.trials).items():
                print(f"  {name:24s} {row}")


def measured(case: Case, trials: int) -> dict[str, str]:
    """Return for every method how often it missed, each side, and how wide it is."""
    rng = np.random.default_rng(2026)
    rows = {name: np.zeros(3) for name in case.methods}
    for _ in range(trials):
        data = case.draw(rng)
        for name, method in case.methods.items():
            found = method(data)
            assert found.low is not None
            assert found.high is not None
            rows[name] += (
                case.truth < found.low - 1e-12,
                case.truth > found.high + 1e-12,
                found.high - found.low,
            )
    return {
        name: f"under {row[0] / trials:6.2%}  over {row[1] / trials:6.2%}  {row[2] / trials:.4f}"
        for name, row in rows.items()
    }


if __name__ == "__main__":
    main()
