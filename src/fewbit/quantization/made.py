"""What is made before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fewbit.program import Slot
from fewbit.quantization.solving import Solved
from fewbit.records.allocation import AllocationRecord
from fewbit.records.calibration import CalibrationFacts, ImportanceFacts, Inputs
from fewbit.records.kv import KvScales
from fewbit.records.manifest import Card, Change, DraftFacts, Making
from fewbit.records.tuning import TuneRecord


@dataclass(frozen=True)
class Made:
    """The tensors that calibration, transforms and tuning gave, and the record of how.

    A quantized matrix that is not among them is solved when it is written, without statistics.
    """

    solved: Mapping[Slot, Solved] = field(default_factory=dict)
    """Matrices in their format, and tuned vectors in float32, all as the Program has them."""
    release: Callable[[Slot], None] = lambda _: None
    """Lets go of the pages of a solved tensor that was written."""
    calibration: CalibrationFacts | None = None
    inputs: Inputs | None = None
    importance: ImportanceFacts | None = None
    allocation: AllocationRecord | None = None
    making: Making | None = None
    transforms: tuple[Change, ...] = ()
    tuning: tuple[Change, ...] = ()
    tuning_text: CalibrationFacts | None = None
    tune_record: TuneRecord | None = None
    kv_scales: KvScales | None = None
    draft: DraftFacts | None = None
    card: Card | None = None
    """Makes the card that goes into a folder; None for none."""


NOTHING_MADE = Made()
