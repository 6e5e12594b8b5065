"""How fast a model runs on this machine, and how near that is to what the machine can do.

Requests go through the engine as a server's would: prompts are computed, tokens drawn and turned
into text. Between the measurements of the model those of the machine are taken, so that a rate and
its limit belong to the same minutes.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel, load_model
from fewbit.engine.request import Request
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.evaluate.conditions import conditions
from fewbit.evaluate.work import cache_bytes, integer_operations, weight_bytes
from fewbit.model.facts import model_facts
from fewbit.model.runner import RunSettings
from fewbit.program import CacheType
from fewbit.records.generation import GenerationRecord
from fewbit.records.kernels import Activations
from fewbit.records.speed import MachineSpeed, SpeedReport, SpeedRun, UnitPeak, Work
from fewbit.runtime.executor import Executor
from fewbit.runtime.kv import page_bytes
from fewbit.runtime.machine import ReadProbe, measure_integer_peaks, size_beyond_caches
from fewbit.runtime.native import available_cores
from fewbit.runtime.step import PAGE, StepInput
from fewbit.sampling import SamplingParams

TEMPERATURE = 0.8
"""Tokens are drawn, as a server draws them; the seed is fixed."""

_MACHINE_ROUNDS = 3
_WARM_UP_TOKENS = 4

Notify = Callable[[str], None]
"""Told what is measured next."""


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """What is measured.

    Raises:
        UsageError: a count below 1, more requests at once than the engine's steps have rows, or
            fewer than two tokens, which have no gap between them.
    """

    prompt: int = 512
    tokens: int = 128
    concurrency: tuple[int, ...] = (1, 4, 16)
    threads: int | None = None
    activations: Activations | None = None
    """As `RunSettings`."""
    cache_type: CacheType = CacheType.F16
    rotate_keys: bool = False
    keep_packed: bool = False
    buffer_bytes: int | None = None
    """Of the buffer that measures memory; None for one that no cache holds."""

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.prompt, *self.concurrency) < 1:
            raise UsageError("prompt and concurrency must be at least 1.")
        if max(self.concurrency) > Limits.rows:
            raise UsageError(
                f"concurrency is {max(self.concurrency)}; the engine serves at most {Limits.rows} "
                "requests at once."
            )
        if self.tokens < 2:
            raise UsageError(f"tokens is {self.tokens}; a gap needs at least 2.")


def measure_speed(
    path: Path, settings: SpeedSettings, notify: Notify = lambda _: None
) -> SpeedReport:
    """Load a model and measure it.

    Raises:
        UsageError: prompt and tokens exceed the context that the model was made for, or threads
            below 1.
        BadFileError, MissingError, UnsupportedError, KernelError: as `load_model`.
    """
    threads = settings.threads or available_cores()
    most = max(settings.concurrency)
    run_settings = RunSettings(
        threads=settings.threads,
        context=settings.prompt + 1 + settings.tokens,
        sequences=most,
        activations=settings.activations,
        cache_type=settings.cache_type,
        rotate_keys=settings.rotate_keys,
        keep_packed=settings.keep_packed,
    )
    notify("loading")
    begun = time.perf_counter()
    loaded = load_model(path, run_settings)
    load_seconds = time.perf_counter() - begun
    stand = _Stand(loaded, settings)
    stand.warm_up()
    weights = weight_bytes(loaded.runner.program, loaded.runner.kernels)
    machine = _Machine(threads, weights, settings.buffer_bytes or size_beyond_caches(weights))
    runs = []
    for sequences in settings.concurrency:
        machine.measure()
        notify(f"{sequences} at once")
        runs.append(stand.run(sequences))
    machine.measure()
    return SpeedReport(
        model=model_facts(loaded.runner.source),
        kernels=loaded.runner.kernels,
        conditions=conditions(
            loaded.runner.kernels,
            threads,
            "native",
            kv=settings.cache_type.value,
            rotated_keys=settings.rotate_keys,
        ),
        cache_type=settings.cache_type.value,
        rotated_keys=settings.rotate_keys,
        prompt=settings.prompt,
        tokens=settings.tokens,
        temperature=TEMPERATURE,
        load_seconds=load_seconds,
        loading=loaded.runner.loading,
        peak_memory_bytes=peak_memory() - machine.bytes,
        machine=machine.record(),
        runs=tuple(runs),
    )


class _Machine:
    """What the machine can do, the best of all measurements so far."""

    def __init__(self, threads: int, weights: int, buffer: int) -> None:
        self._threads = threads
        self._memory = ReadProbe(buffer, threads)
        self._weights = ReadProbe(weights, threads)
        self._rates = [0.0, 0.0]
        self._peaks: dict[str, float] = {}

    @property
    def bytes(self) -> int:
        """Memory that the measurement itself holds."""
        return self._memory.bytes + self._weights.bytes

    def measure(self) -> None:
        for _ in range(_MACHINE_ROUNDS):
            measured = self._memory.measure(), self._weights.measure()
            self._rates = [max(pair) for pair in zip(self._rates, measured, strict=True)]
            for peak in measure_integer_peaks(self._threads):
                best = self._peaks.get(peak.isa, 0.0)
                self._peaks[peak.isa] = max(best, peak.operations_per_second)

    def record(self) -> MachineSpeed:
        memory, weights = self._rates
        return MachineSpeed(
            memory=memory,
            buffer_bytes=self._memory.bytes,
            huge_bytes=self._memory.huge_bytes,
            weights=weights,
            units=tuple(
                UnitPeak(isa=isa, operations_per_second=rate) for isa, rate in self._peaks.items()
            ),
        )


class _TimedExecutor:
    """Passes steps on and adds up the time they take."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.seconds = 0.0

    @property
    def pages(self) -> int:
        return self._executor.pages

    def step(self, step: StepInput) -> NDArray[np.float32]:
        begun = time.perf_counter()
        logits = self._executor.step(step)
        self.seconds += time.perf_counter() - begun
        return logits


@dataclass(frozen=True)
class _Step:
    seconds: float
    outside: float
    """Of the seconds, those not spent in the model."""
    whole: bool
    """Every sequence had its first token before and got one more."""


@dataclass(frozen=True)
class _Served:
    """Requests that all arrived at once and were served to their ends."""

    steps: list[_Step]
    records: list[GenerationRecord]

    @property
    def first_tokens(self) -> list[float]:
        return [first for r in self.records if (first := r.times.first_token) is not None]


class _Stand:
    """A loaded model behind an engine, and the requests that it is measured by."""

    def __init__(self, loaded: LoadedModel, settings: SpeedSettings) -> None:
        self._runner = loaded.runner
        self._settings = settings
        self._timed = _TimedExecutor(loaded.runner.executor)
        self._served = replace(loaded.served, executor=self._timed)
        self._limits = Limits(sequences=max(settings.concurrency))
        self._prompts = 0

    def warm_up(self) -> None:
        """Let buffers be touched and threads be woken."""
        self._serve(self._engine(), self._fresh(1), _WARM_UP_TOKENS)

    def run(self, sequences: int) -> SpeedRun:
        """Measure so many prompts at once, the same ones again, and decoding behind them."""
        engine = self._engine()
        prompts = self._fresh(sequences)
        cold = self._serve(engine, prompts, self._settings.tokens)
        cached = self._serve(engine, prompts, 1)
        # With a token more, a prompt of whole pages is all in the cache: all decode at once.
        longer = [(*prompt, prompt[0]) for prompt in prompts]
        decoded = self._serve(engine, longer, self._settings.tokens)
        decoding = [step for step in decoded.steps if step.whole]
        if not decoding:
            raise UsageError(
                f"{self._settings.tokens} tokens were generated before all {sequences} requests "
                "decoded at once, so that there is nothing to measure; give more --tokens."
            )
        seconds = [step.seconds for step in decoding]
        return SpeedRun(
            sequences=sequences,
            first_token_median=median(cold.first_tokens),
            first_token_last=max(cold.first_tokens),
            prompt_tokens_per_second=sequences * self._settings.prompt / max(cold.first_tokens),
            prompt_operations=sequences * self._operations(self._settings.prompt),
            cached_first_token_median=median(cached.first_tokens),
            cached_tokens=sum(record.cached_tokens for record in cached.records),
            decode_steps=len(decoding),
            decode_tokens_per_second=sequences * len(decoding) / sum(seconds),
            gap_median=median(seconds),
            gap_p99=float(np.quantile(seconds, 0.99)),
            outside_median=median(step.outside for step in decoding),
            longest_gap=max(chain.from_iterable(record.times.gaps for record in cold.records)),
            work=self._work(sequences),
        )

    def _engine(self) -> Engine:
        return Engine(self._served, limits=self._limits)

    def _fresh(self, count: int) -> list[tuple[int, ...]]:
        """Return prompts that share no beginning with any earlier one."""
        numbers = range(self._prompts, self._prompts + count)
        self._prompts += count
        return [_tokens(n, self._settings.prompt, self._served.vocabulary) for n in numbers]

    def _serve(self, engine: Engine, prompts: Sequence[tuple[int, ...]], tokens: int) -> _Served:
        params = SamplingParams(temperature=TEMPERATURE, seed=0)
        for prompt in prompts:
            engine.add(Request(prompt, params, StopCondition(tokens, frozenset(), ())))
        served, decoding = _Served([], []), set[int]()
        while engine.busy:
            begun, inside = time.perf_counter(), self._timed.seconds
            outputs = engine.step()
            seconds = time.perf_counter() - begun
            brought = {output.request for output in outputs if output.tokens}
            whole = len(brought) == len(decoding) == len(prompts)
            served.steps.append(_Step(seconds, seconds - (self._timed.seconds - inside), whole))
            served.records.extend(output.record for output in outputs if output.record)
            decoding |= brought
        return served

    def _operations(self, rows: int) -> int:
        return integer_operations(self._runner.program, self._runner.kernels, rows, 1)

    def _work(self, sequences: int) -> Work:
        program, kernels = self._runner.program, self._runner.kernels
        context = self._settings.prompt + self._settings.tokens // 2
        cached = cache_bytes(program, page_bytes(program) / PAGE, context)
        return Work(
            weight_bytes=weight_bytes(program, kernels),
            cache_bytes=sequences * cached,
            operations=sequences * self._operations(1),
        )


def _tokens(number: int, length: int, vocabulary: int) -> tuple[int, ...]:
    """Return a prompt's ids: spread over the vocabulary, the first one its own."""
    ids = (number * 104_729 + np.arange(length) * 7919) % vocabulary
    return tuple(ids.tolist())


def peak_memory() -> int:
    """Return the most memory this process ever had in use, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
