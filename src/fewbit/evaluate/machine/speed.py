"""How fast a model runs on this machine, and how near that is to what the machine can do.

Requests go through the engine as a server's would: prompts are computed, tokens drawn and turned
into text. Between the measurements of the model those of the machine are taken, so that a rate and
its limit belong to the same minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from fewbit.engine.loaded import load_model
from fewbit.engine.scheduler import Limits
from fewbit.errors import UsageError
from fewbit.evaluate.conditions import conditions
from fewbit.evaluate.machine.resident import peak_memory
from fewbit.evaluate.machine.stand import TEMPERATURE, Measured, Stand
from fewbit.evaluate.machine.work import cache_bytes, integer_operations, weight_bytes
from fewbit.model.facts import model_facts
from fewbit.model.runner import Runner, RunSettings
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.records.kernels import Activations
from fewbit.records.speed import MachineSpeed, SpeedReport, SpeedRun, UnitPeak, Work
from fewbit.runtime.kv import page_bytes
from fewbit.runtime.machine import ReadProbe, measure_integer_peaks, size_beyond_caches
from fewbit.runtime.native import threads_of
from fewbit.runtime.step import PAGE

_MACHINE_ROUNDS = 3

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

    @property
    def positions(self) -> int:
        """Of a request: decoding is measured behind one token more than its prompt has."""
        return self.prompt + 1 + self.tokens

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
    threads = threads_of(settings.threads)
    _require_room(path, settings)
    most = max(settings.concurrency)
    run_settings = RunSettings(
        threads=settings.threads,
        context=settings.positions,
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
    stand = Stand(loaded, prompt=settings.prompt, tokens=settings.tokens, sequences=most)
    stand.warm_up()
    weights = weight_bytes(loaded.runner.program, loaded.runner.kernels)
    machine = _Machine(threads, weights, settings.buffer_bytes or size_beyond_caches(weights))
    runs = []
    for sequences in settings.concurrency:
        machine.measure()
        notify(f"{sequences} at once")
        runs.append(_run_of(stand.measure(sequences), sequences, loaded.runner, settings))
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


def _require_room(path: Path, settings: SpeedSettings) -> None:
    with open_model(path) as model:
        most = model.config.context
    if settings.positions > most:
        raise UsageError(
            f"A prompt of {settings.prompt} tokens and {settings.tokens} to generate take "
            f"{settings.positions} positions, and {path} was made for {most}; lower --prompt or "
            "--tokens."
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


def _run_of(
    measured: Measured, sequences: int, runner: Runner, settings: SpeedSettings
) -> SpeedRun:
    cold, decoding = measured.cold, measured.decoding
    seconds = [step.seconds for step in decoding]
    last = max(cold.first_tokens)
    return SpeedRun(
        sequences=sequences,
        first_token_median=median(cold.first_tokens),
        first_token_last=last,
        prompt_tokens_per_second=sequences * settings.prompt / last,
        prompt_operations=sequences * _operations(runner, settings.prompt),
        cached_first_token_median=median(measured.cached.first_tokens),
        cached_tokens=sum(record.cached_tokens for record in measured.cached.records),
        decode_steps=len(decoding),
        decode_tokens_per_second=sequences * len(decoding) / sum(seconds),
        gap_median=median(seconds),
        gap_p99=float(np.quantile(seconds, 0.99)),
        outside_median=median(step.outside for step in decoding),
        longest_gap=max(cold.gaps),
        work=_work(runner, settings, sequences),
    )


def _operations(runner: Runner, rows: int) -> int:
    return integer_operations(runner.program, runner.kernels, rows, 1)


def _work(runner: Runner, settings: SpeedSettings, sequences: int) -> Work:
    program, kernels = runner.program, runner.kernels
    context = settings.prompt + settings.tokens // 2
    cached = cache_bytes(program, page_bytes(program) / PAGE, context)
    return Work(
        weight_bytes=weight_bytes(program, kernels),
        cache_bytes=sequences * cached,
        operations=sequences * _operations(runner, 1),
    )
