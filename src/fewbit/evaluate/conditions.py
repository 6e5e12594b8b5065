"""The conditions that figures were taken under; without them they are nothing."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fewbit import __version__
from fewbit.records.conditions import Conditions
from fewbit.records.kernels import KernelRecord


def conditions(
    kernels: Iterable[KernelRecord],
    threads: int,
    executor: str,
    *,
    kv: str = "f16",
    rotated_keys: bool = False,
) -> Conditions:
    """Describe the machine and the software of this run."""
    kernels = tuple(kernels)
    return Conditions(
        cpu=processor(),
        isa=", ".join(sorted({instruction_set(k.kernel) for k in kernels})),
        activations=", ".join(sorted({kernel.activations for kernel in kernels})),
        threads=threads,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        numpy=np.__version__,
        fewbit=__version__,
        executor=executor,
        kv=kv,
        rotated_keys=rotated_keys,
    )


def processor() -> str:
    """Return the processor's name, as Linux tells it or else as Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def host() -> str:
    """Return what tells this machine from others: timings of one are none of another."""
    return f"{platform.node()}, {platform.system()} {platform.release()}, {processor()}"


def instruction_set(kernel: str) -> str:
    """Return the last part of a kernel id such as `w4.sym.g32/a8.g32/avx512vnni`."""
    return kernel.rpartition("/")[2]
