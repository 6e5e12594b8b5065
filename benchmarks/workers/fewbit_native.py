"""fewbit as a worker: one loaded model, run step by step or through the engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tasks

from fewbit.engine.engine import Engine
from fewbit.engine.loaded import load_model
from fewbit.engine.request import Request
from fewbit.engine.stop import StopCondition
from fewbit.evaluate.machine.work import weight_bytes
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings
from fewbit.program import CacheType
from fewbit.runtime.kv import page_bytes
from fewbit.runtime.machine import ReadProbe, size_beyond_caches
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams

SAMPLING = {
    "temperature": SamplingParams(temperature=0.8, seed=0),
    "top-k 40": SamplingParams(temperature=0.8, top_k=40, seed=0),
}
PROMPT = 16
"""Tokens of each prompt where many sequences decode."""


class Native:
    """A loaded model; its one sequence owns the store's pages in order."""

    def __init__(self, path: str, threads: int, context: int, sequences: int, kv: str) -> None:
        settings = RunSettings(
            threads=threads, context=context, sequences=sequences, cache_type=CacheType(kv)
        )
        loaded = load_model(Path(path), settings)
        self._runner, self._served = loaded.runner, loaded.served
        self._threads = threads
        self._pages = np.arange(-(-context // PAGE), dtype=np.int32)
        self._probe: ReadProbe | None = None

    def tasks(self) -> Mapping[str, tasks.Task]:
        own = (self.facts, self.bandwidth, self.concurrent, self.python)
        return {**tasks.step_tasks(self), **{task.__name__: task for task in own}}

    def use(self, setting: str) -> None:
        assert setting == "default"

    def forget(self, position: int) -> None:
        """Do nothing: later steps overwrite what stands from `position` on."""

    def run(self, tokens: list[int], position: int, *, every_logit: bool) -> None:
        wanted = np.arange(0 if every_logit else len(tokens) - 1, len(tokens), dtype=np.int32)
        piece = Piece(np.array(tokens, np.int32), position, self._pages, wanted)
        self._runner.executor.step(step_of([piece]))

    def facts(self) -> dict[str, Any]:
        program, kernels = self._runner.program, self._runner.kernels
        return {
            "kernels": sorted({kernel.kernel for kernel in kernels}),
            "weight_bytes": weight_bytes(program, kernels),
            "position_bytes": page_bytes(program) / PAGE,
        }

    def bandwidth(self) -> float:
        """Return the best of three readings of a buffer that no cache holds."""
        if self._probe is None:
            size = size_beyond_caches(self.facts()["weight_bytes"])
            self._probe = ReadProbe(size, self._threads)
        return max(self._probe.measure() for _ in range(3))

    def concurrent(self, sequences: int, tokens: int, sampling: str) -> float:
        """Time the engine from the moment when every sequence has its first token."""
        engine = self._decoding(sequences, tokens, sampling)
        count, begun = 0, time.perf_counter()
        while engine.busy:
            count += sum(len(output.tokens) for output in engine.step())
        return count / (time.perf_counter() - begun)

    def python(self, sequences: int, tokens: int) -> list[float]:
        """Return each decoding step's seconds outside the native core.

        They are CPU seconds of the calling thread: other processes do not add to them.
        """
        engine = self._decoding(sequences, tokens, "temperature")
        executor, threads = self._runner.executor, self._served.threads
        clocks = Clock(executor._native), Clock(threads.native)
        executor._native, threads.native = clocks
        found = []
        while engine.busy:
            begun, native = time.thread_time(), sum(clock.seconds for clock in clocks)
            engine.step()
            spent = sum(clock.seconds for clock in clocks) - native
            found.append(time.thread_time() - begun - spent)
        executor._native, threads.native = (clock.native for clock in clocks)
        return found

    def _decoding(self, sequences: int, tokens: int, sampling: str) -> Engine:
        """Return an engine whose sequences all have their first token and `tokens` to come."""
        engine = Engine(self._served)
        stop = StopCondition(tokens + 1, frozenset(), ())
        for i in range(sequences):
            prompt = tuple(range(100 + i, 100 + i + PROMPT))
            engine.add(Request(prompt, SAMPLING[sampling], stop, sample=i))
        begun = set[int]()
        while len(begun) < sequences:
            begun |= {output.request for output in engine.step() if output.tokens}
        return engine


class Clock:
    """Stands for a native object and adds up the calling thread's CPU time in its calls."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.native, name)
        if not callable(found):
            return found

        def timed(*arguments: Any) -> Any:
            begun = time.thread_time()
            try:
                return found(*arguments)
            finally:
                self.seconds += time.thread_time() - begun

        return timed


def main() -> None:
    chosen = tasks.arguments()
    tasks.serve(
        lambda: Native(chosen.model, chosen.threads, chosen.context, chosen.sequences, chosen.kv)
    )


if __name__ == "__main__":
    main()
