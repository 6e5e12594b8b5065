"""Memory of a process that is resident, as the system counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

PROCESSES = Path("/proc")
"""Where Linux keeps the status of processes."""


def resident(name: str, process: int | str = "self") -> int | None:
    """Return a figure of Linux's status of a process in bytes, as `VmRSS`; None where absent.

    `VmHWM`, the peak, belongs to the process' own memory. `ru_maxrss` of a child begins with what
    its parent had when it was started.

    Raises:
        OSError: the system keeps no such status.
    """
    lines = (PROCESSES / str(process) / "status").read_text().splitlines()
    found = next((line.split()[1] for line in lines if line.startswith(f"{name}:")), None)
    return None if found is None else int(found) << 10


def peak_memory() -> int:
    """Return the most memory this process ever had resident, in bytes.

    Where there is no status of Linux's, what `getrusage` counts.
    """
    try:
        peak = resident("VmHWM")
    except OSError:
        peak = None
    if peak is not None:
        return peak
    counted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return counted if sys.platform == "darwin" else counted << 10
