"""The axis of memory: measured by the system in processes of their own, never computed.

Each process loads one arm and serves 1, 4 and 16 sequences of a stated length; the most it ever had
is its peak. What was computed (weights, keys and values a token) stands beside it, and how many
sequences fit in a budget is foretold from the peaks and checked by one more run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fewbit.errors import UsageError
from fewbit.evaluate.arms import PAIR, Arms, Role
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.conditions import host
from fewbit.evaluate.machine.memory_probe import TOKENS, Task, measure_apart
from fewbit.progress import Progress
from fewbit.records.figures import size
from fewbit.records.kept import fingerprint
from fewbit.records.measurement import AxisResult, Finding, Item, Measure, Slice
from fewbit.records.memory_axis import ArmMemory, Fit, MemoryDetails, MemoryRun, Peak

NAME = "memory"

FITS = f"{NAME}/fits"

_MOST_RUN = 64
"""Sequences of the run that checks how many fit, at most: it reads a prompt for each of them."""

SLACK = 1.05
"""A run may take so many times what was foretold: allocators round, and threads keep buffers."""


@dataclass(frozen=True, kw_only=True)
class MemoryAxis:
    """How memory is measured.

    Raises:
        UsageError: a count below 1, numbers of sequences that do not ascend, or sequences of no
            more than the tokens that are generated.
    """

    length: int = 256
    """Tokens of a sequence, prompt and answer together."""
    concurrency: tuple[int, ...] = (1, 4, 16)
    processes: int = 5
    """Of each arm."""
    budget: int | None = None
    """Bytes; None for the source's peak at the most sequences."""

    def __post_init__(self) -> None:
        if min(self.processes, *self.concurrency) < 1 or self.length <= TOKENS:
            raise UsageError(
                f"processes and concurrency must be at least 1, and length over {TOKENS}."
            )
        if list(self.concurrency) != sorted(set(self.concurrency)) or len(self.concurrency) < 2:
            raise UsageError("concurrency must be two or more ascending numbers.")

    @property
    def name(self) -> str:
        """`memory`."""
        return NAME

    @property
    def brings(self) -> Brings:
        """Weights, keys and values, peaks, and whether what fits was foretold rightly."""
        peaks = (f"peak/{n}" for n in self.concurrency)
        names = (f"{NAME}/{name}" for name in ("weights", "kv", *peaks))
        return Brings(dict.fromkeys(names, Measure.RATIO), (FITS,))

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Measure both arms, process after process, turn about.

        Raises:
            UnsupportedError: an arm runs elsewhere, or the system does not say what a process has.
            UsageError: a process ended before it had an answer, as for lack of memory.
        """
        began = time.perf_counter()
        runs: dict[Role, list[MemoryRun]] = {role: [] for role in PAIR}
        for turn in range(self.processes):
            for role in PAIR:
                progress("processes", sum(map(len, runs.values())), 2 * self.processes)
                runs[role].append(self._run(arms, role, self.concurrency, f"process {turn + 1}"))
        fits = tuple(self._fit(arms, role, runs) for role in PAIR)
        return AxisResult(
            axis=NAME,
            slices=tuple(memory_slices(runs, self.concurrency, self.length)),
            findings=(fits_as_foretold(fits, self.length),),
            details=MemoryDetails(
                length=self.length,
                processes=self.processes,
                arms=tuple(self._arm(role, runs[role]) for role in PAIR),
                fits=fits,
            ),
            seconds=time.perf_counter() - began,
        )

    def _run(self, arms: Arms, role: Role, sequences: tuple[int, ...], name: str) -> MemoryRun:
        """Measure one process, or return what is kept of it."""
        party = arms.local(role)
        kept = arms.kept(role, fingerprint(NAME, host(), self.length, sequences))
        task = Task(
            path=str(party.path), settings=party.settings, length=self.length, sequences=sequences
        )
        return kept.once(name, MemoryRun, lambda: measure_apart(task))

    def _fit(self, arms: Arms, role: Role, runs: Mapping[Role, Sequence[MemoryRun]]) -> Fit:
        """Foretell how many sequences fit in the budget, and run that many."""
        most = self.concurrency[-1]
        budget = self.budget or _middle(runs[Role.SOURCE], lambda run: run.peak(most))
        growth = Growth.of(runs[role], self.concurrency[-2:], self.length)
        sequences = growth.fitting(budget)
        run = max(1, min(sequences, _MOST_RUN))
        measured = self._run(arms, role, (run,), "check").peak(run)
        return Fit(
            arm=role.value,
            budget=budget,
            sequences=sequences,
            run=run,
            expected=growth.peak(run),
            measured=measured,
        )

    def _arm(self, role: Role, runs: Sequence[MemoryRun]) -> ArmMemory:
        few, many = self.concurrency[-2:]
        grown = _middle(runs, lambda run: run.peak(many) - run.peak(few))
        return ArmMemory(
            arm=role.value,
            weights_counted=runs[0].weights,
            weights_resident=_middle(runs, lambda run: run.resident),
            kv_bytes_per_token=runs[0].page_bytes / runs[0].page_tokens,
            kv_bytes_per_token_measured=grown / (many - few) / self.length,
            peaks=tuple(
                Peak(sequences=n, bytes=_middle(runs, _peak_at(n))) for n in self.concurrency
            ),
        )


@dataclass(frozen=True)
class Growth:
    """How the peak grows with the number of sequences: a line through the measured peaks."""

    sequences: int
    bytes: int
    """At so many sequences."""
    each: int
    """A sequence more."""

    @classmethod
    def of(cls, runs: Sequence[MemoryRun], between: tuple[int, ...], length: int) -> Growth:
        """Return the line through the medians at two numbers of sequences.

        A sequence takes at least its pages, whatever the peaks say: an earlier peak, as of loading,
        may hide some.
        """
        few, many = between
        low, high = (_middle(runs, _peak_at(n)) for n in between)
        pages = -(-length // runs[0].page_tokens) * runs[0].page_bytes
        return cls(many, high, max(pages, (high - low) // (many - few), 1))

    def peak(self, sequences: int) -> int:
        """Return the peak to expect with so many sequences."""
        return self.bytes + (sequences - self.sequences) * self.each

    def fitting(self, budget: int) -> int:
        """Return how many sequences stay within a budget."""
        return max(0, self.sequences + (budget - self.bytes) // self.each)


def memory_slices(
    runs: Mapping[Role, Sequence[MemoryRun]], concurrency: Sequence[int], length: int
) -> Iterator[Slice]:
    """Yield what is judged; an item is a process of each arm."""
    yield _slice("weights", "resident bytes of the weights", runs, lambda run: run.resident)
    yield _slice(
        "kv",
        "bytes of keys and values a token",
        runs,
        lambda run: run.page_bytes / run.page_tokens,
    )
    for n in concurrency:
        yield _slice(
            f"peak/{n}",
            f"peak memory, {n} sequences of {length} tokens at once",
            runs,
            _peak_at(n),
        )


def fits_as_foretold(fits: Sequence[Fit], length: int) -> Finding:
    """Return whether runs took what was foretold of them."""
    wrong = [fit for fit in fits if fit.measured > SLACK * max(fit.expected, 0)]
    if wrong:
        fit = wrong[0]
        found = (
            f"The {fit.arm} took {size(fit.measured)} with {fit.run} sequences of {length} tokens, "
            f"where {size(max(fit.expected, 0))} were to be expected from fewer sequences."
        )
    else:
        found = " and ".join(
            f"{fit.sequences} sequences of {length} tokens of the {fit.arm}" for fit in fits
        )
        checks = ", ".join(f"{size(fit.measured)} with {fit.run}" for fit in fits)
        found = f"In {size(fits[0].budget)} fit {found}; runs took {checks}."
    return Finding(name=FITS, axis=NAME, passed=not wrong, found=found)


def _slice(
    name: str,
    title: str,
    runs: Mapping[Role, Sequence[MemoryRun]],
    figure: Callable[[MemoryRun], float],
) -> Slice:
    pairs = zip(*(runs[role] for role in PAIR), strict=True)
    return Slice(
        name=f"{NAME}/{name}",
        axis=NAME,
        measure=Measure.RATIO,
        unit="bytes",
        title=title,
        items=tuple(
            Item(
                name=f"process {i}",
                cluster=f"process {i}",
                source=figure(source),
                candidate=figure(candidate),
            )
            for i, (source, candidate) in enumerate(pairs, 1)
        ),
    )


def _peak_at(sequences: int) -> Callable[[MemoryRun], float]:
    return lambda run: run.peak(sequences)


def _middle(runs: Sequence[MemoryRun], figure: Callable[[MemoryRun], float]) -> int:
    return round(median(figure(run) for run in runs))
