"""Measuring static scales of keys and values: the largest magnitudes that calibration text brings.

The model runs once more, with the tensors that were made, and what attention stores is looked at:
keys behind rope, values as projected. A scale lets the largest magnitude of its head have the
largest code; larger ones, which other text may bring, are clipped by whoever stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.errors import NumericalError
from fewbit.model.decoder import build_program
from fewbit.model.pieces import Piece, step_of
from fewbit.program import Attention, Program, Slot
from fewbit.quantization.bound import BoundModel
from fewbit.quantization.planned import QuantizationPlan
from fewbit.quantization.solving import Solved
from fewbit.records.kv import KvForm, KvScales
from fewbit.runtime.executor import Tap
from fewbit.runtime.native import NativeExecutor, Pool
from fewbit.runtime.step import PAGE


def measure_kv(  # noqa: PLR0913
    planned: QuantizationPlan,
    solved: Mapping[Slot, Solved],
    form: KvForm,
    calibration: CalibrationSet,
    pool: Pool,
    *,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> KvScales:
    """Return scales for the keys and values that a quantized model stores.

    Rows behind the last that counts in its window are padding and are left out; all others are
    stored when the model runs, whether they count in statistics or not.

    Args:
        planned: the plan, on the source as its transforms left it.
        solved: its matrices; the source's tensors stand for those that are not among them.
        form: what keys and values will be rounded to.
        calibration: the text.
        pool: threads to run on.
        progress: told the windows that are done, and how many there are.

    Raises:
        KernelError: no kernel can run a matrix.
        NumericalError: a key or a value is not finite; says of which layer, in which window.
    """
    program = build_program(planned.source.config)
    attentions = [op for op in program.ops if isinstance(op, Attention)]
    keys, values = (_writers(program, attentions, side) for side in ("k", "v"))
    pages = -(-max(calibration.lengths) // PAGE)
    binding = _bound(planned, solved, program, pool).binding(program, program.slots())
    taps = tuple(tap for both in zip(keys, values, strict=True) for tap in both)
    executor = NativeExecutor(binding, pages=pages, threads=pool, taps=frozenset(taps))
    largest: dict[Tap, NDArray[np.float32]] = {}
    for window, (tokens, mask) in enumerate(
        zip(calibration.windows, calibration.masks, strict=True)
    ):
        progress(window, len(calibration.windows))
        rows = int(np.flatnonzero(mask).max(initial=-1)) + 1
        if rows:
            _run(executor, tokens[:rows])
            _raise_largest(largest, executor, taps, attentions[0].head_dim, window)
    return KvScales(
        form=form,
        keys=tuple(_scales(largest[tap], form) for tap in keys),
        values=tuple(_scales(largest[tap], form) for tap in values),
    )


def _writers(program: Program, attentions: list[Attention], side: str) -> list[Tap]:
    """Return the ops that write what each attention stores."""
    places = {op.out: (op.layer, op.site) for op in program.ops}
    return [places[getattr(op, side)] for op in attentions]


def _bound(
    planned: QuantizationPlan, solved: Mapping[Slot, Solved], program: Program, pool: Pool
) -> BoundModel:
    model = BoundModel(planned.source, program, pool)
    of = {tensor.slot: tensor for tensor in planned.tensors}
    for slot, made in solved.items():
        model.replace(slot, made.tensor, of[slot].rounding(made.input_scale), made.input_scale)
    return model


def _run(executor: NativeExecutor, tokens: NDArray[np.int32]) -> None:
    pages = np.arange(-(-len(tokens) // PAGE), dtype=np.int32)
    executor.step(step_of([Piece(tokens, 0, pages, np.empty(0, np.int32))]))


def _raise_largest(
    largest: dict[Tap, NDArray[np.float32]],
    executor: NativeExecutor,
    taps: tuple[Tap, ...],
    head_dim: int,
    window: int,
) -> None:
    """Let the largest magnitudes of each tap's heads, float32 [heads], cover the last step."""
    for tap in taps:
        heads = _of_heads(executor.tap(*tap), head_dim, tap, window)
        largest[tap] = np.maximum(largest.get(tap, heads), heads)


def _of_heads(
    stored: NDArray[np.float32], head_dim: int, tap: Tap, window: int
) -> NDArray[np.float32]:
    heads: NDArray[np.float32] = np.abs(stored).reshape(len(stored), -1, head_dim).max(axis=(0, 2))
    if not np.isfinite(heads).all():
        raise NumericalError(
            f"What layer {tap[0]} stores at '{tap[1]}' is not finite in calibration window "
            f"{window}; a weight of the model is out of range."
        )
    return heads


def _scales(largest: NDArray[np.float32], form: KvForm) -> tuple[float, ...]:
    """Return the scale of each head; 1 where all its elements are zero, so that one may divide."""
    scales = np.where(largest > 0, largest / np.float32(form.largest), np.float32(1))
    return tuple(float(max(scale, np.finfo(np.float32).tiny)) for scale in scales)
