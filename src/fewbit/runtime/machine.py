"""What this machine can do at most: reading memory, and multiplying bytes.

A kernel that reads weights once a step is held to the first, one over a prompt to the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fewbit._native import ReadBuffer, integer_peak
from fewbit.errors import UsageError
from fewbit.runtime.chooser import ISAS, choose_isa
from fewbit.runtime.memory import available_memory

LEAST_BYTES = 3 << 29
"""Of a buffer whose reading measures memory (1.5 GiB): several times the largest caches."""

_PEAK_STEPS = {
    "amx": 100_000,
    "avx512vnni": 1_000_000,
    "avx2": 1_000_000,
    "neon": 500_000,
    "portable": 20_000,
}
"""Some milliseconds each: long beside the start of a thread, short beside an interruption."""


@dataclass(frozen=True)
class IntegerPeak:
    """int8 operations per second, an addition and a multiplication being two."""

    isa: str
    operations_per_second: float


class ReadProbe:
    """A buffer on huge pages where there are any, and how fast all threads together read it."""

    def __init__(self, size: int, threads: int, isa: str | None = None) -> None:
        """Take the buffer and fill it.

        Args:
            size: its bytes, rounded up to whole megabytes.
            threads: how many read.
            isa: the instruction set whose loads read; None for the best.

        Raises:
            UsageError: threads outside 1 to 1024, or no memory or threads for it.
            KernelError: this CPU lacks the instruction set.
        """
        self._isa = choose_isa(isa)
        before = _huge_bytes()
        try:
            self._buffer = ReadBuffer(size, threads)
        except (MemoryError, RuntimeError, ValueError) as error:
            raise UsageError(
                f"Reading {size} bytes with {threads} threads cannot be measured ({error}); free "
                "memory, or ask for fewer threads."
            ) from error
        self.huge_bytes = max(0, _huge_bytes() - before)
        """How much of the buffer lies on huge pages, as the system counts it."""

    @property
    def bytes(self) -> int:
        """Bytes that one measurement reads."""
        return self._buffer.nbytes

    def measure(self) -> float:
        """Read everything once and return bytes per second."""
        seconds, _ = self._buffer.read(self._isa)
        return self._buffer.nbytes / seconds


def size_beyond_caches(model_bytes: int) -> int:
    """Return how large a buffer must be so that reading it measures memory.

    1.5 GiB or the model's size, whichever is more; at most half of the memory that this process
    may still take.
    """
    wanted, available = max(LEAST_BYTES, model_bytes), available_memory().bytes
    return wanted if available is None else min(wanted, available // 2)


def measure_integer_peaks(threads: int, isa: str | None = None) -> tuple[IntegerPeak, ...]:
    """Measure the units that the kernels of an instruction set use, once.

    With AMX these are its tiles, which take prompts, and the vector units, which take few rows.

    Raises:
        UsageError: threads outside 1 to 1024, or more than the system gives.
        KernelError: this CPU lacks the instruction set.
    """
    chosen = choose_isa(isa)
    units = ISAS[:2] if chosen == "amx" else (chosen,)
    try:
        return tuple(
            IntegerPeak(unit, integer_peak(unit, threads, _PEAK_STEPS[unit])) for unit in units
        )
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"{threads} threads cannot be measured ({error}).") from error


def _huge_bytes() -> int:
    """Return how much of this process lies on huge pages; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    kilobytes = (line.split()[1] for line in lines if line.startswith("AnonHugePages:"))
    return int(next(kilobytes, "0")) << 10
