"""`fewbit quantize --plan` and `--target`: what a job will do and take, before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fewbit.errors import UnsupportedError

if TYPE_CHECKING:
    from fewbit.cli.calibration import CalibrationOptions
    from fewbit.cli.tuning import TuneOptions
    from fewbit.quantization import QuantizationPlan
    from fewbit.quantization.estimate import Workload
    from fewbit.records.plan import PlanReport
    from fewbit.records.recipe import Recipe
    from fewbit.records.runtime import Runtime


def workload(
    recipe: Recipe, calibration: CalibrationOptions, tuning: TuneOptions, threads: int | None
) -> Workload:
    """Return how much text a recipe takes under the options."""
    from fewbit.quantization import needs_text
    from fewbit.quantization.estimate import Workload

    if not needs_text(recipe) or calibration.imatrix is not None:
        return Workload(threads=threads)
    settings = calibration.settings(threads)
    rows = settings.windows * settings.length
    chosen = tuning.settings(recipe)
    text = rows if chosen is None else max(rows, tuning.tune_windows * settings.length)
    return Workload(
        rows=rows,
        window=settings.length,
        samples=0 if calibration.calibration else text // 2,
        tuned_rows=0 if chosen is None else chosen.steps * chosen.batch * settings.length,
        threads=threads,
    )


def plan_report(
    planned: QuantizationPlan, work: Workload, out: Path | None, runtime: Runtime | None
) -> PlanReport:
    """Return everything that is known before anything is done."""
    from fewbit.atomic import free_bytes
    from fewbit.compress.runtimes import refusals
    from fewbit.quantization.estimate import disk_needs, memory_needs, time_needs
    from fewbit.records.plan import PlannedEntry, PlanReport
    from fewbit.runtime.memory import available_memory

    entries = tuple(
        PlannedEntry(
            source=t.source.name,
            slot=t.slot,
            shape=t.source.shape,
            source_format=t.source.format.name,
            format=t.format.name if t.stored else "",
            status=t.status,
            bytes=t.bytes,
            reason=t.reason,
        )
        for t in planned.tensors
    )
    absent = tuple(f"{t.source.name} is left out: {t.reason}." for t in planned.absent)
    return PlanReport(
        source=str(planned.source.path),
        recipe=planned.recipe,
        container=planned.container.value,
        tensors=entries,
        source_bytes=planned.source_bytes,
        promised_bytes=planned.promised_bytes,
        bits_per_weight=planned.bits_per_weight,
        memory=memory_needs(planned, work),
        available_memory=available_memory().bytes,
        disk=disk_needs(planned, work),
        free_disk=None if out is None else free_bytes(out),
        time=time_needs(planned, work),
        notes=(*planned.fallbacks, *absent, *_export_note(planned, runtime)),
        target=runtime,
        refusals=() if runtime is None else refusals(planned, runtime),
    )


def _export_note(planned: QuantizationPlan, runtime: Runtime | None) -> tuple[str, ...]:
    from fewbit.compress.runtimes import EXPORTS, export_of, reads_as_it_is
    from fewbit.records.figures import size

    if runtime is None or runtime not in EXPORTS or reads_as_it_is(planned, runtime):
        return ()
    try:
        found = export_of(planned, runtime)
    except UnsupportedError:
        return ()
    how = f"{runtime} reads it after fewbit export --to {EXPORTS[runtime]}"
    return (f"{how}, with {size(found.bytes)} of tensors.",)


def require_taken(planned: QuantizationPlan, runtime: Runtime) -> None:
    """Refuse a plan whose artefact a runtime would not take.

    Raises:
        UnsupportedError: the message has the reasons.
    """
    from fewbit.compress.runtimes import refusals

    found = refusals(planned, runtime)
    if found:
        raise UnsupportedError(
            f"{runtime} would not take this model as it is: {' '.join(found)} Choose another "
            "recipe, or leave --target out."
        )
