"""An importance matrix taken on calibration text, for llama.cpp's quantizer or for our own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.calibrate.importance import Importance, ImportanceMatrix
from fewbit.methods.statistics import InputStatistics
from fewbit.model.decoder import build_program
from fewbit.model.families import expert_of, gguf_name
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.progress import Progress, unwatched
from fewbit.quantization.bound import BoundModel
from fewbit.quantization.walk import Cut, CutInput, WalkOptions, cuts, walk
from fewbit.runtime.native import thread_pool


def measure_importance(
    source: ModelSource,
    calibration: CalibrationSet,
    threads: int,
    progress: Progress = unwatched,
) -> ImportanceMatrix:
    """Return the sum of squares of every layer's inputs in the source, by llama.cpp's names.

    Experts of one mixture share an entry with a row each. Inputs are those of GGUF files too: only
    rows are stored there in another order.

    Raises:
        NumericalError: a value is not finite; says which layer's input, in which window and token.
        KernelError: no kernel can run a matrix.
        UsageError: the calibration text does not fit in memory.
    """
    program, pool = build_program(source.config), thread_pool(threads)
    found: dict[Slot, InputStatistics] = {}
    total = sum(len(cut.slots) for cut in cuts(program))

    def visit(cut: Cut, inputs: CutInput) -> None:
        progress(f"measuring {cut.slots[0]}", len(found), total)
        found.update(dict.fromkeys(cut.slots, inputs.own()))

    walk(
        program,
        calibration,
        BoundModel(source, program, pool),
        visit,
        WalkOptions(pool, gram=frozenset()),
    )
    facts = calibration.facts
    return ImportanceMatrix(
        _entries(found),
        tuple(text.name for text in facts.texts),
        facts.windows,
        facts.window_tokens,
    )


def _entries(found: Mapping[Slot, InputStatistics]) -> dict[str, Importance]:
    """Return one entry for each stored tensor, experts in the order of their numbers."""
    together: dict[str, list[Slot]] = defaultdict(list)
    for slot in found:
        together[gguf_name(slot)].append(slot)
    entries = {}
    for name, slots in together.items():
        ordered = [found[slot] for slot in sorted(slots, key=lambda s: expert_of(s) or 0)]
        sums = np.stack([one.squares for one in ordered]).astype(np.float32)
        entries[name] = Importance(sums, np.array([one.count for one in ordered], np.int64))
    return entries
