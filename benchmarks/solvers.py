"""How long GPTQ takes: against a straightforward torch version, on a model, on a large layer.

    python benchmarks/solvers.py                     # all three
    python benchmarks/solvers.py versus --repeats 3

`versus`: 4096 x 4096, int4-g128, ours and torch in turn in one program. The torch side is written
from the paper as anyone would: Cholesky, inverse, upper Cholesky, blocks of 128, a loop over
columns, scales from each group's largest weight. Ours also searches scales and orders columns. The
loss of ours is compared with the textbook algorithm in float64 on some rows (tests/gptq_oracle.py).
The limit is the arithmetic of one Cholesky factor and of the feedback at the rate of a float32
matrix product measured in the same run.
`model`: the 210 matrices of SmolLM2-135M in q4_0. `large`: the layer of Qwen2.5-1.5B with 8,960
inputs, in a process of its own, with its peak memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from table import Row, markdown

from fewbit.evaluate.machine.resident import peak_memory
from fewbit.formats import grid as grids
from fewbit.formats.registry import decode, parse_format
from fewbit.methods.gptq import block_order, gptq
from fewbit.methods.hessian import DAMPING, SHRINKAGE
from fewbit.methods.statistics import InputStatistics

SIZE, GROUP = 4096, 128
MOST_OF_TORCH, MOST_OVER_ORACLE, MOST_MODEL_SECONDS = 0.5, 1.01, 8.0
SMOLLM2 = {(576, 576): 60, (192, 576): 60, (1536, 576): 60, (576, 1536): 30}
"""Outputs and inputs of the matrices of the 30 layers, and how many there are."""
LARGE = (1536, 8960)
ORACLE_ROWS = 32


def random_layer(rows: int, columns: int) -> tuple[np.ndarray, InputStatistics]:
    """Weights, and the statistics of inputs with correlations and uneven channels."""
    rng = np.random.default_rng(0)
    tokens = columns // 2
    x = rng.standard_normal((tokens, columns), np.float32)
    x[:, 1:] += 0.7 * x[:, :-1]
    x *= np.exp(rng.normal(0, 1, columns)).astype(np.float32)
    gram = x.T @ x
    weight = rng.standard_normal((rows, columns), np.float32) * np.float32(0.05)
    squares = gram.diagonal().astype(np.float64)
    statistics = InputStatistics(tokens, squares, np.abs(x).max(0), np.abs(x).sum(0, float), gram)
    return weight, statistics


def torch_gptq(weight: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Straightforward GPTQ in torch: int4, symmetric, a scale per GROUP; returns the values."""
    import torch  # noqa: PLC0415

    w, h = torch.from_numpy(weight).clone(), torch.from_numpy(gram).clone()
    h += DAMPING * h.diagonal().mean() * torch.eye(len(h))
    upper = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    q = torch.zeros_like(w)
    for start in range(0, w.shape[1], GROUP):
        stop = start + GROUP
        block, inverse = w[:, start:stop].clone(), upper[start:stop, start:stop]
        errors = torch.zeros_like(block)
        scale = w[:, start:stop].abs().amax(dim=1) / 7
        for j in range(GROUP):
            column = block[:, j]
            q[:, start + j] = torch.clamp(torch.round(column / scale), -8, 7) * scale
            errors[:, j] = (column - q[:, start + j]) / inverse[j, j]
            block[:, j:] -= errors[:, j : j + 1] * inverse[j : j + 1, j:]
        w[:, stop:] -= errors @ upper[start:stop, stop:]
    return q.numpy()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def product_rate(repeats: int) -> float:
    """Float32 operations a second of a large matrix product."""
    a = np.ones((2048, 2048), np.float32)
    return 2 * 2048**3 / min(seconds(lambda: a @ a) for _ in range(repeats + 2))


def loss(weight: np.ndarray, values: np.ndarray, gram: np.ndarray) -> float:
    error = weight.astype(np.float64) - values
    return float(np.einsum("rc,rc->", error @ gram.astype(np.float64), error))


def oracle_values(weight: np.ndarray, statistics: InputStatistics, grid: grids.Grid) -> np.ndarray:
    """What the textbook algorithm in float64 makes of some rows with our scales."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    import gptq_oracle  # noqa: PLC0415

    assert statistics.gram is not None
    order = block_order(statistics.gram.diagonal(), grid.layout.block)
    hessian = gptq_oracle.damped(statistics.gram, DAMPING, SHRINKAGE)
    codes, _, _ = gptq_oracle.solve(weight, hessian, grid.form, order, grid)
    return grids.values(codes, grid)


def versus(repeats: int) -> list[Row]:
    weight, statistics = random_layer(SIZE, SIZE)
    assert statistics.gram is not None
    gram, form = statistics.gram, parse_format(f"int4-g{GROUP}")
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(seconds(lambda: gptq(weight, statistics, form)))
        theirs.append(seconds(lambda: torch_gptq(weight, gram)))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    operations = SIZE**3 / 3 + SIZE * SIZE**2
    limit = operations / product_rate(repeats) / min(ours)
    solved = gptq(weight, statistics, form).tensor
    rows = slice(0, ORACLE_ROWS)
    _, grid = grids.split(solved.take_rows(rows))
    oracle = oracle_values(weight[rows], statistics, grid)
    quality = loss(weight[rows], decode(solved)[rows], gram) / loss(weight[rows], oracle, gram)
    against_torch = loss(weight, decode(solved), gram) / loss(
        weight, torch_gptq(weight, gram), gram
    )
    return [
        Row(
            f"GPTQ {SIZE} x {SIZE} int4-g{GROUP}",
            ours=f"{np.median(ours):.2f} s",
            peer=f"{np.median(theirs):.2f} s (torch)",
            figure=f"{np.median(ratios):.2f} x",
            spread=f"{min(ratios):.2f} .. {max(ratios):.2f}",
            bar=f"<= {MOST_OF_TORCH} x",
            met=bool(np.median(ratios) <= MOST_OF_TORCH),
        ),
        Row("  of the limit of arithmetic", figure=f"{limit:.0%}"),
        Row(
            f"  loss over the float64 oracle's, {ORACLE_ROWS} rows",
            figure=f"{quality:.4f}",
            bar=f"<= {MOST_OVER_ORACLE}",
            met=bool(quality <= MOST_OVER_ORACLE),
        ),
        Row(
            "  loss over torch's (scales searched, columns ordered)", figure=f"{against_torch:.3f}"
        ),
    ]


def model(repeats: int) -> list[Row]:
    form, total = parse_format("q4_0"), 0.0
    for (outputs, inputs), count in SMOLLM2.items():
        weight, statistics = random_layer(outputs, inputs)
        times = [seconds(lambda: gptq(weight, statistics, form)) for _ in range(repeats + 1)]  # noqa: B023
        total += count * float(np.median(times))
    return [
        Row(
            "GPTQ of SmolLM2-135M's 210 matrices, q4_0",
            ours=f"{total:.1f} s",
            bar=f"<= {MOST_MODEL_SECONDS:.0f} s",
            met=total <= MOST_MODEL_SECONDS,
        )
    ]


def large_here() -> None:
    """Solve the large layer in this process; print seconds and peak megabytes as JSON."""
    weight, statistics = random_layer(*LARGE)
    taken = seconds(lambda: gptq(weight, statistics, parse_format("q4_k")))
    print(json.dumps({"seconds": taken, "megabytes": peak_memory() / 1e6}))


def large(_: int) -> list[Row]:
    command = [sys.executable, __file__, "large-here"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    figure = f"peak {found['megabytes']:,.0f} MB"
    work = f"GPTQ {LARGE[0]} x {LARGE[1]} q4_k"
    return [Row(work, ours=f"{found['seconds']:.1f} s", figure=figure)]


PARTS: dict[str, Callable[[int], list[Row]]] = {"versus": versus, "model": model, "large": large}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, "large-here", []])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.parts == ["large-here"]:
        large_here()
        return
    rows = [row for part in arguments.parts or PARTS for row in PARTS[part](arguments.repeats)]
    print(markdown(rows))


if __name__ == "__main__":
    main()
