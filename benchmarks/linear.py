"""How fast the linear kernels stream weights and how many operations they do.

    python benchmarks/linear.py                     # every format, the best instruction set
    python benchmarks/linear.py q4_0 --isa avx2

One row is limited by memory: its rate is compared with what plain reading of the same bytes gives
on one thread. Many rows are limited by arithmetic. Every time is the shortest of many.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fewbit import _native
from fewbit.formats.registry import encode, parse_format
from fewbit.formats.spec import BlockSpec, QuantSpec, QuantTensor
from fewbit.runtime.pack import pack

FORMATS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4", "int2-g32", "int3-g32", "int4-g128", "int4-g32-asym"),
    *("int7-g32", "bf16"),
)
FEW_ROWS = (2, 4, 8, 16)
MANY_ROWS = (64, 256, 512)
WIDE = (16384, 2048)
"""Outputs and inputs of the matrix that is streamed: 20 MB and more, beyond the second cache."""
NARROW = (256, 1536)
"""The matrix for many rows: short enough to be timed between two interruptions."""


def random_matrix(name: str, shape: tuple[int, int]) -> QuantTensor:
    """Bytes that decode to finite values; floats are normal numbers, as subnormal ones are slow."""
    spec = parse_format(name)
    rng = np.random.default_rng(0)
    if isinstance(spec, QuantSpec):
        return encode(rng.standard_normal(shape, np.float32), spec)
    assert isinstance(spec, BlockSpec)
    codes = rng.integers(0, 60, (shape[0], spec.row_bytes(shape[1])), dtype=np.uint8)
    if name == "mxfp4":
        codes[:, :: spec.block_bytes] = 128
    if spec.block_size == 1:
        codes[:, spec.block_bytes - 1 :: spec.block_bytes] = 60
    return QuantTensor(spec, shape, codes)


def read_rate(isa: str, repeats: int) -> float:
    """Return the bytes per second of reading 64 MiB on one thread."""
    memory = np.ones(64 << 20, np.uint8)
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        _native.simd_read(isa, memory)
        best = min(best, time.perf_counter() - start)
    return memory.nbytes / best


def measure(name: str, isa: str, bandwidth: float, repeats: int) -> str:
    """Return one line of the table."""
    rng = np.random.default_rng(1)
    wide = pack(random_matrix(name, WIDE))
    x = rng.standard_normal((max(MANY_ROWS), WIDE[1])).astype(np.float32)
    one = _native.time_multiply(wide, x[:1], isa, repeats)
    rate = wide.nbytes / one
    cells = [f"{name:>13}", f"{rate / 1e9:8.1f}", f"{100 * rate / bandwidth:6.0f}%"]
    for rows in FEW_ROWS:
        cells.append(f"{_native.time_multiply(wide, x[:rows], isa, repeats) / one:7.2f}")
    narrow = pack(random_matrix(name, NARROW))
    x = np.ascontiguousarray(x[:, : NARROW[1]])
    for rows in MANY_ROWS:
        taken = _native.time_multiply(narrow, x[:rows], isa, repeats)
        cells.append(f"{2 * NARROW[0] * NARROW[1] * rows / taken / 1e9:8.0f}")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("formats", nargs="*", default=FORMATS, metavar="FORMAT")
    parser.add_argument("--isa", default=_native.available_isas()[0])
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    bandwidth = read_rate(arguments.isa, arguments.repeats)
    print(f"{arguments.isa}, one thread; plain reading: {bandwidth / 1e9:.1f} GB/s")
    few = "  ".join(f"{rows:>6}x" for rows in FEW_ROWS)
    many = "  ".join(f"{rows:>4}GOP/s" for rows in MANY_ROWS)
    print(f"{'':13}  {'GB/s':>8}  {'of it':>7}  {few}  {many}")
    for name in arguments.formats:
        print(measure(name, arguments.isa, bandwidth, arguments.repeats), flush=True)


if __name__ == "__main__":
    main()
