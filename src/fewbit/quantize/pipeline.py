"""The main path: plan, collect, transform, solve, tune, write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from fewbit import __version__
from fewbit.calibrate.calibration import CalibrationSet
from fewbit.errors import UsageError
from fewbit.methods.solvers import METHODS, Need
from fewbit.model.transformed import TransformedSource
from fewbit.model.weights import ModelSource
from fewbit.quantize.calibrated import Solving, solve_plan
from fewbit.quantize.made import Made
from fewbit.quantize.planning import QuantizationPlan, plan
from fewbit.quantize.resume import SolvedStore, WorkKey, hashed, work_folder
from fewbit.quantize.transforming import Walking, apply_transforms, fingerprints, need_text
from fewbit.quantize.writing import container_of, require_free, write
from fewbit.records.allocation import AllocationRecord
from fewbit.records.base import to_json
from fewbit.records.calibration import Inputs
from fewbit.records.manifest import Change, Manifest
from fewbit.records.recipe import Recipe
from fewbit.runtime.chooser import choose_isa
from fewbit.runtime.native import available_cores, thread_pool

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


def unwatched(_what: str, _done: int, _all: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings:
    """What a quantization takes beside its recipe."""

    calibration: CalibrationSet | None = None
    """Token windows; needed where the recipe's method looks at a layer's inputs."""
    inputs: Inputs = "quantized"
    """Whose layers give a layer its inputs."""
    allocation: AllocationRecord | None = None
    """How the recipe's formats were chosen, for the manifest."""
    threads: int | None = None
    """Of the walk through the model; None for every core."""


DEFAULT = QuantizeSettings()


def quantize(
    source: ModelSource,
    recipe: Recipe,
    out: Path,
    settings: QuantizeSettings = DEFAULT,
    progress: Progress = unwatched,
) -> Manifest:
    """Quantize a model by a recipe; `out` is a folder, or a file that ends in .gguf.

    Raises as `plan` and `execute`.
    """
    return execute(plan(source, recipe, container_of(out)), out, settings, progress)


def execute(
    planned: QuantizationPlan,
    out: Path,
    settings: QuantizeSettings = DEFAULT,
    progress: Progress = unwatched,
) -> Manifest:
    """Carry a plan out; where it is stopped, the same call goes on from the last solved cut.

    Raises:
        UsageError: the recipe's method needs calibration text and there is none.
        NumericalError: a weight or a state is not finite; says where.
        KernelError: no kernel can run a matrix, so that its layer could not be walked.
        OutputError, UnsupportedError, FaultError: as `write`.
    """
    require_free(planned, out)
    if needs_text(planned.recipe) and settings.calibration is None:
        raise UsageError(
            f"The recipe '{planned.recipe.name}' looks at what layers read; give a text with "
            "--calibration."
        )
    planned, changes = _transformed(planned, settings, progress)
    if settings.calibration is None or not _solves_with_text(planned.recipe):
        looked = settings.calibration if need_text(planned.recipe.transforms) else None
        facts = looked.facts if looked else None
        made = Made(calibration=facts, transforms=changes, allocation=settings.allocation)
        return _write(planned, out, made, progress)
    store = SolvedStore(work_folder(out), _key(planned, settings, settings.calibration))
    if store.note:
        progress(store.note, 0, 0)
    made = _solve(planned, settings, settings.calibration, store, progress)
    manifest = _write(planned, out, replace(made, transforms=changes), progress)
    store.remove()
    return manifest


def needs_text(recipe: Recipe) -> bool:
    """Return whether a recipe's method or transforms take statistics: there must be a text."""
    return _solves_with_text(recipe) or need_text(recipe.transforms)


def _solves_with_text(recipe: Recipe) -> bool:
    return METHODS[recipe.method].needs is not Need.NOTHING


def _transformed(
    planned: QuantizationPlan, settings: QuantizeSettings, progress: Progress
) -> tuple[QuantizationPlan, tuple[Change, ...]]:
    """Return the plan on the transformed source, and the record of each transform."""
    outlined, names = planned.source, planned.recipe.transforms
    if not isinstance(outlined, TransformedSource) or outlined.origin is None:
        return planned, ()
    walking = None
    if settings.calibration is not None:
        walking = Walking(
            calibration=settings.calibration,
            pool=thread_pool(settings.threads or available_cores()),
            progress=lambda done, all_, what: progress(f"transforming {what}", done, all_),
        )
    plain = plan(outlined.origin, structs.replace(planned.recipe, transforms=()), planned.container)
    source, applied = apply_transforms(outlined.origin, names, plain.formats, walking)
    stored = {t.slot: t.stored for t in planned.tensors if t.slot}
    changes = tuple(
        Change(name=a.name, detail=a.detail, tensors=tuple(stored[slot] for slot in a.slots))
        for a in applied
    )
    return replace(planned, source=source), changes


def _solve(
    planned: QuantizationPlan,
    settings: QuantizeSettings,
    calibration: CalibrationSet,
    store: SolvedStore,
    progress: Progress,
) -> Made:
    solving = Solving(
        calibration=calibration,
        inputs=settings.inputs,
        threads=settings.threads or available_cores(),
        store=store,
        progress=lambda done, all_, what: progress(f"solving {what}", done, all_),
    )
    solved = solve_plan(planned, solving)
    return Made(
        solved=solved,
        calibration=calibration.facts,
        inputs=settings.inputs,
        allocation=settings.allocation,
    )


def _write(planned: QuantizationPlan, out: Path, made: Made, progress: Progress) -> Manifest:
    what, total = "writing" if made.solved else "quantizing", len(planned.tensors)
    done = itertools.count(1)
    return write(planned, out, made, lambda _: progress(what, next(done), total))


def _key(
    planned: QuantizationPlan, settings: QuantizeSettings, calibration: CalibrationSet
) -> WorkKey:
    checkpoint = planned.source.checkpoint
    formats = [f"{t.source.name} {t.format.name} {t.status}" for t in planned.tensors]
    formats += fingerprints(planned.source)
    return WorkKey(
        version=__version__,
        source=hashed(*(f"{name} {checkpoint.digest(name)}" for name in checkpoint.tensors)),
        plan=hashed(to_json(planned.recipe).decode(), planned.container.value, *formats),
        calibration=calibration.facts.tokens_sha256,
        inputs=settings.inputs,
        kernels=choose_isa(),
    )
