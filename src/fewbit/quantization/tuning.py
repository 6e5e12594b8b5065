"""Tuning what was solved by distillation, and the record of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.formats.distance import relative_error
from fewbit.formats.registry import F32, decode_rows, encode
from fewbit.formats.spec import QuantTensor, digest
from fewbit.model.transformed import TransformedSource
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.progress import Progress
from fewbit.quantization.made import Made
from fewbit.quantization.planned import PlannedTensor, QuantizationPlan
from fewbit.quantization.solving import Solved, check_finite, solve_alone
from fewbit.records.manifest import Change
from fewbit.tune import Job, TuneProgress, TuneSettings, TuneText, distill


@dataclass(frozen=True)
class TunePlace:
    """Where a tuning keeps its states, and who is told that it has just kept them."""

    folder: Path
    kept: Callable[[], None] = lambda: None


def tuned(  # noqa: PLR0913
    planned: QuantizationPlan,
    made: Made,
    calibration: CalibrationSet,
    settings: TuneSettings,
    *,
    place: TunePlace,
    progress: Progress,
) -> Made:
    """Return what was made with its tensors tuned against the source.

    Matrices keep their formats; vectors that change are stored in float32, as the plan has them.

    Args:
        planned: the plan.
        made: what was solved; matrices that are not there are solved without statistics.
        calibration: the text to tune on; a part of it is held out and decides what is kept.
        settings: what is tuned, and how.
        place: where a stopped tuning finds its states again.
        progress: told of every step.

    Raises:
        As `distill`.
    """
    start = _started(planned, made)
    before = {slot: digest(solved.tensor) for slot, solved in start.items()}
    result = distill(
        _teacher(planned.source, settings),
        {slot: solved.tensor for slot, solved in start.items()},
        TuneText(calibration.windows, calibration.masks),
        settings,
        Job(place.folder, _key(before, calibration), _told(progress, place.kept)),
        config=planned.source.config,
    )
    names = {t.slot: t for t in planned.tensors if t.slot}
    changed = {
        slot: _changed(planned, names[slot], start[slot], tensor)
        for slot, tensor in result.tensors.items()
        if digest(tensor) != before[slot]
    }
    record = result.record
    detail = (
        f"{record.ran} steps of {record.batch} windows; mean KL on {record.held_out} held-out "
        f"windows {record.before:.4f} before, {record.after:.4f} after"
    )
    stored = tuple(names[slot].stored for slot in changed)
    change = Change(name=f"tune {record.what}", detail=detail, tensors=stored)
    return replace(
        made,
        solved={**start, **changed},
        tuning=(*made.tuning, change),
        tuning_text=calibration.facts,
        tune_record=record,
    )


def _teacher(source: ModelSource, settings: TuneSettings) -> ModelSource:
    """Return what is learned from: the source as it is stored, which runs faster than in float32.

    A transform may have turned the residual stream, so states are compared with the transformed
    source's.
    """
    if settings.hidden or not isinstance(source, TransformedSource):
        return source
    return source.origin or source


def _started(planned: QuantizationPlan, made: Made) -> dict[Slot, Solved]:
    """Return the tensor of every slot as it would be written without tuning."""
    return {
        tensor.slot: made.solved.get(tensor.slot) or _untouched(planned, tensor)
        for tensor in planned.tensors
        if tensor.slot
    }


def _untouched(planned: QuantizationPlan, tensor: PlannedTensor) -> Solved:
    if tensor.status == "quantized":
        return solve_alone(planned, tensor)
    kept = planned.source.read(tensor.slot)
    check_finite(kept, tensor.label)
    if kept.shape[0] > 1 or kept.spec == F32:
        return Solved(kept, 0.0)
    return Solved(encode(decode_rows(kept, slice(None)), F32), 0.0)


def _changed(
    planned: QuantizationPlan, tensor: PlannedTensor, solved: Solved, found: QuantTensor
) -> Solved:
    """Return a tuned tensor with its error anew."""
    if found.shape[0] == 1:
        return replace(solved, tensor=found)
    error = relative_error(planned.source.read(tensor.slot), found)
    return replace(solved, tensor=found, relative_error=error)


def _key(digests: Mapping[Slot, str], calibration: CalibrationSet) -> str:
    return " ".join([calibration.facts.tokens_sha256, *digests.values()])


def _told(progress: Progress, kept: Callable[[], None]) -> Callable[[TuneProgress], None]:
    """Return what passes progress on, and says when something was kept.

    The source's states are before they are told of; a checkpoint is after the look that is told
    of, so that the next step is the first to know.
    """
    best, looked = math.inf, False

    def told(found: TuneProgress) -> None:
        nonlocal best, looked
        if found.stage == "source":
            progress("running the source", found.done, found.total)
            kept()
            return
        if looked:
            kept()
        looked = found.point is not None and found.done > 0
        if found.point is not None:
            best = min(best, found.point.divergence)
        shown = f" (held-out KL {best:.4f})" if best < math.inf else ""
        progress(f"tuning{shown}", found.done, found.total)

    return told
