"""What carrying a plan out takes: memory, disk and time, from headers alone.

Bytes follow from shapes. Seconds are work over rates that are timed here and now (`Rates`), times
the share of them that each kind of work reaches. The shares are the rough part: from CPU times on a
machine whose rates are 460e9 and 6.0e9 (docs/log.md). The walk, statistics and what GPTQ takes for
a weight are those of SmolLM2-135M from bf16 with 8 x 512 tokens; what other methods take those of a
matrix of 768 x 768 in each kind of format; factors and feedback those of up to 4,096 inputs.

Held against others, with these rates: SmolLM2 in q4_0 with 96 x 512 tokens on two quiet cores took
37.6 s by gptq and 45.1 by gptq-refined, reckoned are 36 and 40; solving a layer of a model of 1.5B
in q5_k 6.6 and 12.9 CPU seconds, reckoned are 7.0 and 13.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from fewbit.atomic import free_bytes
from fewbit.errors import OutputError
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import BlockSpec, NumberFormat, QuantSpec
from fewbit.methods.solvers import METHODS, Need, greatest_need
from fewbit.model.decoder import build_program
from fewbit.model.memory import workspace_bound
from fewbit.program import Program
from fewbit.quantization.job import kept_bytes
from fewbit.quantization.pipeline import needs_text, solves_with_text
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.quantization.rates import Rates, timed_rates
from fewbit.quantization.walk import ROOM, Stage, cuts, stages
from fewbit.records.figures import size
from fewbit.records.plan import Amount, Duration
from fewbit.runtime.kv import page_bytes
from fewbit.runtime.native import threads_of
from fewbit.runtime.step import PAGE

_RUNTIME = 150 << 20
"""Interpreter, libraries and threads."""
_PACKED = 1.02
"""Bytes of packed weights over those that are stored, at most."""
_PIECE_ROWS = 4096
"""Rows that run through the model at once."""
_SOLVED_AT_ONCE = 1 << 24
"""Elements of a matrix that are solved at once, in about five arrays of float32."""

_Scales: TypeAlias = Literal["one", "zero points", "block", "two levels"]
"""How scales are searched: one of each group of integers, with a zero point, or those of a GGUF
block, of one level or of two."""
_SUPERBLOCK = 256
"""Weights in a block whose scales have two levels."""
_SHARE = {
    "walk": 0.28,
    "walk in floats": 0.093,
    "gram": 0.7,
    "factor": 0.45,
    "feedback": 0.25,
    "write": 0.2,
    "train": 0.052,
}
"""Of the rate of products that a kind of work reaches on a core."""
_NATIVE_GPTQ = {"gptq": 250.0, "gptq-refined": 365.0}
_PASSES: Mapping[_Scales, Mapping[str, float]] = {
    "one": {"rtn": 100.0, "mse": 1700.0, "hqq": 2700.0, "imatrix": 700.0, **_NATIVE_GPTQ},
    "zero points": {
        "rtn": 100.0,
        "mse": 1800.0,
        "hqq": 3200.0,
        "imatrix": 1000.0,
        "gptq": 1350.0,
        "gptq-refined": 1450.0,
    },
    "block": {"rtn": 100.0, "mse": 650.0, "hqq": 2700.0, "imatrix": 650.0, **_NATIVE_GPTQ},
    "two levels": {"rtn": 1000.0, "mse": 1000.0, "hqq": 4500.0, "imatrix": 1000.0, **_NATIVE_GPTQ},
}
"""NumPy passes' worth of time for each weight, beside what grows with the inputs; of GPTQ, where
scales are searched natively and where (integer zero points) they are not."""
_AROUND = 100.0
"""The same for what is around any method: hashing, packing to run it, writing."""
_SWEEPS = {"gptq-refined": 5}
"""Products of a matrix's errors with half of H that a method takes; one where nothing is said."""
_ORDER = (
    "writing samples",
    "searching factors",
    "running the calibration text",
    "solving",
    "tuning",
)
_SERIAL = {"imatrix": 0.5, "gptq": 0.75, "gptq-refined": 0.8}
"""The part of that which one core does; all of it where nothing is said."""
_SEARCH = {"awq": 1320.0, "smoothquant": 1870.0}
"""NumPy passes' worth of time for each weight of a search."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How much text takes part."""

    rows: int = 0
    """Tokens of calibration."""
    window: int = 0
    """Tokens of one of its windows, at most."""
    samples: int = 0
    """Of them and of the tuning's, those that the model writes itself."""
    tuned_rows: int = 0
    """Tokens of tuning, once for each step that sees them."""
    threads: int | None = None
    """None for every core."""


def memory_needs(planned: QuantizationPlan, work: Workload) -> tuple[Amount, ...]:
    """Return what lies in memory at the peak, of solving or of measuring keys and values.

    Tuning plans its own when it begins.
    """
    parts = _solving(planned, work), _measuring(planned, work)
    return max(parts, key=lambda amounts: sum(amount.bytes for amount in amounts))


def _measuring(planned: QuantizationPlan, work: Workload) -> tuple[Amount, ...]:
    """Return what the whole quantized model takes as it runs over a window of text."""
    if planned.recipe.kv is None or not work.rows:
        return ()
    program = build_program(planned.source.config)
    store = -(-work.window // PAGE) * page_bytes(program)
    return (
        Amount(what="runtime", bytes=_RUNTIME),
        Amount(what="the quantized model", bytes=round(_PACKED * planned.promised_bytes)),
        Amount(what="keys and values of a window", bytes=store),
        Amount(what="values of a step", bytes=workspace_bound(program)),
    )


def _solving(planned: QuantizationPlan, work: Workload) -> tuple[Amount, ...]:
    """Return what lies in memory at the peak of solving."""
    widest = max(t.source.shape[-1] for t in _quantized(planned))
    largest = max(t.weights for t in _quantized(planned))
    found = [
        Amount(what="runtime", bytes=_RUNTIME),
        Amount(what="a matrix being solved", bytes=5 * 4 * min(largest, _SOLVED_AT_ONCE)),
    ]
    if not needs_text(planned.recipe) or not work.rows:
        return tuple(found)
    program = build_program(planned.source.config)
    walks = 2 if planned.recipe.propagation else 1
    planned_stages = stages(program, work.rows, ROOM // walks)
    kept = walks * max(_kept(program, stage, work.rows) for stage in planned_stages)
    gram = greatest_need(planned.recipe.methods) is Need.GRAM
    return (
        *found,
        Amount(what="hidden states of the calibration text", bytes=2 * kept),
        Amount(what="a piece of the text in a layer", bytes=_piece(program, work.rows)),
        Amount(
            what="statistics of a layer's input", bytes=4 * (3 + walks) * widest**2 if gram else 0
        ),
        Amount(what="errors of earlier layers", bytes=_errors(planned, widest)),
        Amount(what="weights of a layer", bytes=_layer_bytes(planned)),
    )


def _errors(planned: QuantizationPlan, widest: int) -> int:
    """Return the bytes that solving for what makes up for them takes, in float64.

    The damped Gram matrix twice, drift and lag behind each other three times, and the solution.
    """
    if not planned.recipe.propagation:
        return 0
    right = widest * (widest + planned.source.config.hidden)
    return 8 * (2 * widest**2 + 4 * right)


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
    """Refuse to begin what the disk has no room for; what earlier work takes is there already.

    Raises:
        OutputError: the message has both numbers.
    """
    needed = sum(amount.bytes for amount in disk_needs(planned, work)) - kept_bytes(out)
    free = free_bytes(out)
    if free is not None and free < needed:
        raise OutputError(
            f"{out} and the work on it need {size(needed)}, and the disk has {size(free)} left; "
            "make room or choose another output."
        )


def time_needs(
    planned: QuantizationPlan, work: Workload, rates: Rates | None = None
) -> tuple[Duration, ...]:
    """Return about how long each step takes where nothing else runs.

    Args:
        planned: the plan.
        work: how much text takes part.
        rates: of a core; timed where they are not given.
    """
    timed, cores = rates or timed_rates(), threads_of(work.threads)
    recipe, matrices = planned.recipe, _quantized(planned)
    weights = sum(t.weights for t in matrices)
    in_layers = sum(t.weights for t in matrices if t.slot.startswith("layers."))
    steps = {"writing samples": weights * work.samples / _SHARE["write"]}
    if needs_text(recipe):
        steps["running the calibration text"] = work.rows * _walked(planned)
    if recipe.tune is not None:
        steps["tuning"] = weights * work.tuned_rows / _SHARE["train"]
    found = {what: products / timed.products / cores for what, products in steps.items()}
    searches = sum(_SEARCH.get(name, 0.0) for name in recipe.transforms)
    found["searching factors"] = in_layers * searches / timed.passes
    found["solving"] = _statistics_work(planned, work) / timed.products / cores + sum(
        t.weights * _passes(t) * _on(t.method, cores) / timed.passes for t in matrices
    )
    return tuple(Duration(what=what, seconds=found[what]) for what in _ORDER if found.get(what))


def _walked(planned: QuantizationPlan) -> float:
    """Return the products for each token of running it: as quantized, and as the source has it."""
    layers = [t for t in _quantized(planned) if t.slot.startswith("layers.")]
    found = 0.0
    if solves_with_text(planned.recipe):
        found += sum(t.weights for t in layers) / _SHARE["walk"]
    plain = sum(name in _SEARCH for name in planned.recipe.transforms)
    plain += planned.recipe.propagation > 0
    for tensor in layers if plain else ():
        kind = "walk in floats" if tensor.source.format in FLOATS else "walk"
        found += plain * tensor.weights / _SHARE[kind]
    return found


def _passes(tensor: PlannedTensor) -> float:
    """Return the passes' worth of time that a weight of a matrix takes."""
    return _PASSES[_scales(tensor.format)][tensor.method] + _AROUND


def _scales(form: NumberFormat) -> _Scales:
    """Return how a format's scales are searched."""
    if isinstance(form, BlockSpec):
        return "two levels" if form.block_size == _SUPERBLOCK else "block"
    return "one" if not isinstance(form, QuantSpec) or form.symmetric else "zero points"


def _on(method: str, cores: int) -> float:
    """Return the part of a solver's work that passes one after the other on so many cores."""
    serial = _SERIAL.get(method, 1.0)
    return serial + (1 - serial) / cores


def _statistics_work(planned: QuantizationPlan, work: Workload) -> float:
    """Return the products of taking Gram matrices and factorizing them, at the full rate."""
    in_need = {t.slot for t in _quantized(planned) if METHODS[t.method].needs is Need.GRAM}
    if not in_need:
        return 0.0
    program = build_program(planned.source.config)
    widths = [program.widths[c.x] for c in cuts(program) if not in_need.isdisjoint(c.slots)]
    swept = [t for t in _quantized(planned) if t.slot in in_need]
    columns = sum(t.weights * t.source.shape[-1] * _SWEEPS.get(t.method, 1) for t in swept)
    sums = 3 if planned.recipe.propagation else 1  # products of two inputs have no symmetry
    gram = sums * work.rows * sum(width**2 for width in widths) / _SHARE["gram"]
    factors = sum(width**3 for width in widths) / _SHARE["factor"]
    return gram + factors + columns / _SHARE["feedback"]


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
