"""What carrying a plan out takes: memory, disk and time, from headers alone.

Bytes follow from shapes. Seconds are operations over the rate of a product of matrices that is
timed here and now, times the share of it that each kind of work reaches. The shares are the rough
part: derived from single earlier runs, not fitted, and far too slow beside other work.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewbit.errors import OutputError
from fewbit.methods.solvers import METHODS, Need, greatest_need
from fewbit.model.decoder import build_program
from fewbit.program import Program
from fewbit.quantization.pipeline import needs_text
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.quantization.transforming import need_text
from fewbit.quantization.walk import Stage, cuts, stages
from fewbit.records.figures import size
from fewbit.records.plan import Amount, Duration

_RUNTIME = 150 << 20
"""Interpreter, libraries and threads."""
_PIECE_ROWS = 4096
"""Rows that run through the model at once."""
_SOLVED_AT_ONCE = 1 << 24
"""Elements of a matrix that are solved at once, in about five arrays of float32."""

_SHARE = {"walk": 2.0, "gram": 1.0, "gptq": 0.02, "write": 2.0, "train": 0.8}
"""Of the timed rate; integer kernels reach more."""
_PER_WEIGHT = {
    "rtn": 7e3,
    "mse": 8e4,
    "hqq": 1.2e5,
    "imatrix": 8e4,
    "gptq": 2e4,
    "gptq-refined": 8e4,
}
"""Operations for each weight, at the timed rate, beside those that grow with the inputs."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much text takes part."""

    rows: int = 0
    """Tokens of calibration."""
    samples: int = 0
    """Of them and of the tuning's, those that the model writes itself."""
    tuned_rows: int = 0
    """Tokens of tuning, once for each step that sees them."""


def memory_needs(planned: QuantizationPlan, work: Workload) -> tuple[Amount, ...]:
    """Return what lies in memory at the peak of solving; tuning plans its own when it begins."""
    widest = max(t.source.shape[-1] for t in _quantized(planned))
    largest = max(t.weights for t in _quantized(planned))
    found = [
        Amount(what="runtime", bytes=_RUNTIME),
        Amount(what="a matrix being solved", bytes=5 * 4 * min(largest, _SOLVED_AT_ONCE)),
    ]
    if not needs_text(planned.recipe) or not work.rows:
        return tuple(found)
    program = build_program(planned.source.config)
    kept = max(_kept(program, stage, work.rows) for stage in stages(program, work.rows))
    gram = greatest_need(planned.recipe.methods) is Need.GRAM
    return (
        *found,
        Amount(what="hidden states of the calibration text", bytes=2 * kept),
        Amount(what="a piece of the text in a layer", bytes=_piece(program, work.rows)),
        Amount(what="statistics of a layer's input", bytes=4 * 4 * widest**2 if gram else 0),
        Amount(what="weights of a layer", bytes=_layer_bytes(planned)),
    )


def disk_needs(planned: QuantizationPlan, work: Workload) -> tuple[Amount, ...]:
    """Return what lies on disk beside the source when most does."""
    found = [Amount(what="the artefact", bytes=planned.promised_bytes)]
    if planned.recipe.methods != ("rtn",) or needs_text(planned.recipe):
        kept = sum(t.bytes for t in _quantized(planned))
        found.append(Amount(what="solved tensors, kept until it is written", bytes=kept))
    if planned.recipe.tune is not None:
        states = 4 * planned.source.config.hidden * work.rows
        found.append(Amount(what="the source's states, for tuning", bytes=states))
    return tuple(found)


def require_disk(planned: QuantizationPlan, work: Workload, out: Path) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        OutputError: the message has both numbers.
    """
    needed = sum(amount.bytes for amount in disk_needs(planned, work))
    free = free_disk(out)
    if free is not None and free < needed:
        raise OutputError(
            f"{out} and the work on it need {size(needed)}, and the disk has {size(free)} left; "
            "make room or choose another output."
        )


def free_disk(out: Path) -> int | None:
    """Return the bytes left where an output goes; None where that cannot be told."""
    try:
        return shutil.disk_usage(out.absolute().parent).free
    except OSError:
        return None


def time_needs(
    planned: QuantizationPlan, work: Workload, rate: Callable[[], float] | None = None
) -> tuple[Duration, ...]:
    """Return about how long each step takes."""
    timed = (rate or multiply_rate)()
    matrices = _quantized(planned)
    method, recipe = planned.recipe.method, planned.recipe
    weights = sum(t.weights for t in matrices)
    steps = {"writing samples": 2 * weights * work.samples / _SHARE["write"]}
    if needs_text(recipe):
        walks = 1 + sum(name in ("awq", "smoothquant") for name in recipe.transforms)
        rows = work.rows * (walks if need_text(recipe.transforms) else 1)
        steps["running the calibration text"] = 2 * weights * rows / _SHARE["walk"]
    solving = weights * _PER_WEIGHT[method]
    if METHODS[method].needs is Need.GRAM:
        program = build_program(planned.source.config)
        inputs = [program.widths[cut.x] for cut in cuts(program)]
        solving += work.rows * sum(width**2 for width in inputs) / _SHARE["gram"]
        solving += sum(width**3 for width in inputs) / _SHARE["gptq"]
        solving += sum(t.weights * t.source.shape[-1] for t in matrices) / _SHARE["gptq"]
    steps["solving"] = solving
    if recipe.tune is not None:
        steps["tuning"] = 6 * weights * work.tuned_rows / _SHARE["train"]
    return tuple(Duration(what=w, seconds=n / timed) for w, n in steps.items() if n)


def multiply_rate() -> float:
    """Return the operations a second of a product of matrices in NumPy, at best within 0.3 s.

    The best of many short ones, since others may be using the machine just now.
    """
    one = np.ones((768, 768), np.float32)
    one @ one
    best, until = math.inf, time.perf_counter() + 0.3
    while (began := time.perf_counter()) < until:
        one @ one
        best = min(best, time.perf_counter() - began)
    return float(2 * 768**3 / best)


def _quantized(planned: QuantizationPlan) -> list[PlannedTensor]:
    return [t for t in planned.tensors if t.status == "quantized"]


def _kept(program: Program, stage: Stage, rows: int) -> int:
    return 4 * rows * sum(program.widths[name] for name in stage.kept)


def _piece(program: Program, rows: int) -> int:
    layers: dict[int, int] = {}
    for op in program.ops:
        if op.out != program.logits:
            layers[op.layer] = layers.get(op.layer, 0) + program.widths[op.out]
    return 4 * min(rows, _PIECE_ROWS) * max(layers.values())


def _layer_bytes(planned: QuantizationPlan) -> int:
    """Return the bytes of the largest layer as the source has it, twice for repacking."""
    layers: dict[str, int] = {}
    for tensor in planned.tensors:
        stem = ".".join(tensor.slot.split(".")[:2])
        layers[stem] = layers.get(stem, 0) + (tensor.source.nbytes if tensor.slot else 0)
    return 2 * max(layers.values())
