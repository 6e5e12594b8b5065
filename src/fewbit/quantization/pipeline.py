"""The main path: plan, collect, transform, solve, tune, write."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from fewbit.calibrate.calibration import CalibrationSet
from fewbit.errors import UsageError
from fewbit.methods.solvers import Need, greatest_need
from fewbit.model.transformed import TransformedSource
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.progress import Progress, unwatched
from fewbit.quantization.calibrated import Solving, solve_plan
from fewbit.quantization.importance import GivenImportance, solve_given
from fewbit.quantization.job import Job, Resume, asked, claimed_job
from fewbit.quantization.kept_scalings import KeptScalings
from fewbit.quantization.kv_scales import measure_kv
from fewbit.quantization.made import Made
from fewbit.quantization.making import NO_REQUEST, Request, asked_tuning, making
from fewbit.quantization.planned import QuantizationPlan
from fewbit.quantization.planning import plan, require_rules_used
from fewbit.quantization.resume import SolvedStore, WorkKey, hashed
from fewbit.quantization.solving import Solved, solve_alone, solve_rest
from fewbit.quantization.transforming import Walking, apply_transforms, fingerprints, need_text
from fewbit.quantization.tuning import TunePlace, tuned
from fewbit.quantization.writing import container_of, require_free, write
from fewbit.records.allocation import AllocationRecord
from fewbit.records.base import to_json
from fewbit.records.calibration import Inputs
from fewbit.records.kernels import Activations
from fewbit.records.manifest import Card, Change, DraftFacts, Manifest
from fewbit.records.recipe import Recipe
from fewbit.runtime.native import thread_pool, threads_of
from fewbit.tune import TuneSettings

_UNSAVED_SECONDS = 0.5
"""Work that waits for the end of its layer to be kept, at most. Keeping takes milliseconds, nearly
all of them for the disk to say that it did, so this many of them are 1% of the time."""


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings:
    """What a quantization takes beside its recipe."""

    calibration: CalibrationSet | None = None
    """Token windows; needed where the recipe's method looks at a layer's inputs."""
    inputs: Inputs = "quantized"
    """Whose layers give a layer its inputs."""
    allocation: AllocationRecord | None = None
    """How the recipe's formats were chosen, for the manifest."""
    importance: GivenImportance | None = None
    """Stands for calibration text, for methods that weigh inputs one by one."""
    tuning: TuneSettings | None = None
    """How a recipe that is tuned is tuned; None for the defaults."""
    tuning_text: CalibrationSet | None = None
    """What it is tuned on; None for the calibration's windows. Training wants more text than
    statistics do."""
    draft: DraftFacts | None = None
    """What the model will draft for, where its head was cut, for the manifest."""
    request: Request = NO_REQUEST
    """What was asked for as text, for the manifest."""
    card: Card | None = None
    """Makes the model card that goes into a folder; None for none."""
    resume: Resume = Resume.AUTO
    """What becomes of the work that an earlier run left."""
    threads: int | None = None
    """Of the walk through the model; None for every core."""

    def __post_init__(self) -> None:
        """Check the threads; raises UsageError."""
        threads_of(self.threads)


DEFAULT = QuantizeSettings()


def quantize(
    source: ModelSource,
    recipe: Recipe,
    out: Path,
    settings: QuantizeSettings = DEFAULT,
    progress: Progress = unwatched,
) -> Manifest:
    """Quantize a model by a recipe; `out` is a folder, or a file that ends in .gguf.

    Raises as `plan`, `require_rules_used` and `execute`.
    """
    planned = plan(source, recipe, container_of(out))
    require_rules_used(planned)
    return execute(planned, out, settings, progress)


def execute(
    planned: QuantizationPlan,
    out: Path,
    settings: QuantizeSettings = DEFAULT,
    progress: Progress = unwatched,
    job: Job | None = None,
) -> Manifest:
    """Carry a plan out; where it is stopped, the same call goes on from the last solved cut.

    Args:
        planned: the plan.
        out: where the artefact appears.
        settings: calibration, tuning, and what becomes of earlier work.
        progress: told what is being done.
        job: the claim on the output, where the caller has it already.

    Raises:
        UsageError: the recipe's method needs calibration text and there is none; or there is work
            of another job on this output.
        NumericalError: a weight or a state is not finite; says where.
        KernelError: no kernel can run a matrix, so that its layer could not be walked.
        StoppedError: an interrupt or a signal came when something was solved already.
        OutputError: another process writes this output, or there is no room for it.
        OutputError, UnsupportedError, FaultError: as `write`.
    """
    require_free(planned, out)
    _require_text(planned.recipe, settings)
    with contextlib.nullcontext(job) if job else claimed_job(out, settings.resume) as held:
        store = _store(planned, settings, held)
        with store.stop.waits() if store else contextlib.nullcontext():
            planned, changes = _transformed(planned, settings, store, progress)
        if store is not None and changes:
            store.require_same_transforms(fingerprints(planned.source))
        made = Made(
            transforms=changes,
            allocation=settings.allocation,
            making=making(settings.request),
            draft=settings.draft,
            card=settings.card,
        )
        made = _solve(planned, made, settings, store, progress)
        made = _tune(planned, made, settings, store, progress)
        made = _measure_kv(planned, made, settings, progress)
        return _write(planned, out, made, progress)


def needs_text(recipe: Recipe) -> bool:
    """Return whether a recipe's method, transforms, tuning or KV scales need calibration text."""
    return solves_with_text(recipe) or runs_with_text(recipe)


def runs_with_text(recipe: Recipe) -> bool:
    """Return whether something beside the method runs the model over calibration text."""
    beside = recipe.tune is not None or recipe.kv is not None
    return beside or need_text(recipe.transforms)


def require_errors(recipe: Recipe, inputs: str) -> None:
    """Check that a recipe with propagation has errors to make up for; raises UsageError."""
    if recipe.propagation and inputs == "source":
        raise UsageError(
            f"The recipe '{recipe.name}' makes up for errors in a layer's inputs, and with "
            "--inputs source there are none; leave one of the two out."
        )


def _require_text(recipe: Recipe, settings: QuantizeSettings) -> None:
    require_errors(recipe, settings.inputs)
    given = settings.importance is not None and not runs_with_text(recipe)
    if settings.calibration is None and needs_text(recipe) and not given:
        raise UsageError(
            f"The recipe '{recipe.name}' looks at what layers read; give a text with --calibration."
        )


def solves_with_text(recipe: Recipe) -> bool:
    """Return whether a method, or a static scale, needs what calibration text brings a layer."""
    static = any(rule.activations is Activations.STATIC for rule in recipe.rules)
    return static or greatest_need(recipe.methods) is not Need.NOTHING


def _store(planned: QuantizationPlan, settings: QuantizeSettings, job: Job) -> SolvedStore | None:
    """Return where solved tensors are kept for a later run.

    Rounding takes as long as reading and writing, so keeping its results would gain nothing.
    """
    quick = planned.recipe.methods == ("rtn",)
    given = settings.importance is not None and not runs_with_text(planned.recipe)
    if given or (quick and not needs_text(planned.recipe)):
        return None
    if not job.begun:
        job.begin(asked(planned.source, planned.recipe, planned.container))
    return SolvedStore(job, _key(planned, settings))


def _transformed(
    planned: QuantizationPlan,
    settings: QuantizeSettings,
    store: SolvedStore | None,
    progress: Progress,
) -> tuple[QuantizationPlan, tuple[Change, ...]]:
    """Return the plan on the transformed source, and the record of each transform."""
    outlined, names = planned.source, planned.recipe.transforms
    if not isinstance(outlined, TransformedSource) or outlined.origin is None:
        return planned, ()
    walking = None
    if settings.calibration is not None:
        walking = Walking(
            calibration=settings.calibration,
            pool=thread_pool(threads_of(settings.threads)),
            progress=lambda done, all_, what: progress(f"transforming {what}", done, all_),
            kept=None if store is None else KeptScalings(store.folder, store.stop),
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
    made: Made,
    settings: QuantizeSettings,
    store: SolvedStore | None,
    progress: Progress,
) -> Made:
    """Solve what needs statistics, by the importance matrix or on calibration text."""
    if settings.importance is not None:
        solved = solve_given(planned, settings.importance)
        return replace(made, solved=solved, importance=settings.importance.facts)
    if store is not None:
        made = replace(made, release=store.release)
    if settings.calibration is None or not needs_text(planned.recipe):
        return replace(made, solved=_solve_without_text(planned, store, progress))
    made = replace(made, calibration=settings.calibration.facts)
    if not solves_with_text(planned.recipe):
        return replace(made, solved=_solve_without_text(planned, store, progress))
    solving = Solving(
        calibration=settings.calibration,
        inputs=settings.inputs,
        threads=threads_of(settings.threads),
        store=store,
        progress=lambda done, all_, what: progress(f"solving {what}", done, all_),
    )
    with solving.store.stop.waits() if solving.store else contextlib.nullcontext():
        solved = solve_plan(planned, solving)
    return replace(made, solved=solved, inputs=settings.inputs)


def _solve_without_text(
    planned: QuantizationPlan, store: SolvedStore | None, progress: Progress
) -> Mapping[Slot, Solved]:
    """Solve every matrix by itself; without a store that waits for the writing.

    They are kept together, those of a layer or of some time's work.
    """
    if store is None:
        return {}
    tensors = [t for t in planned.tensors if t.status == "quantized"]
    unsaved: dict[Slot, Solved] = {}
    number, begun = 0, time.monotonic()
    with store.stop.waits():
        for done, (tensor, after) in enumerate(itertools.zip_longest(tensors, tensors[1:])):
            progress("quantizing", done, len(tensors))
            if tensor.slot not in store.found:
                number = done
                unsaved[tensor.slot] = solve_alone(planned, tensor)
            planned.source.release(tensor.slot)
            whole = after is None or _layer(after.slot) != _layer(tensor.slot)
            if not whole and time.monotonic() - begun < _UNSAVED_SECONDS:
                continue
            for slot in store.save(number, unsaved) if unsaved else ():
                store.release(slot)
            unsaved, begun = {}, time.monotonic()
            store.stop.check()
    return store.found


def _layer(slot: Slot) -> list[str]:
    """Return the parts of a slot's name that those of one decoder layer share."""
    return slot.split(".")[:2]


def _tune(
    planned: QuantizationPlan,
    made: Made,
    settings: QuantizeSettings,
    store: SolvedStore | None,
    progress: Progress,
) -> Made:
    chosen = settings.tuning or asked_tuning(planned.recipe)
    text = settings.tuning_text or settings.calibration
    if planned.recipe.tune is None or chosen is None or text is None or store is None:
        return made
    with store.stop.waits():
        place = TunePlace(store.folder / "tune", store.stop.check)
        return tuned(planned, made, text, chosen, place=place, progress=progress)


def _measure_kv(
    planned: QuantizationPlan, made: Made, settings: QuantizeSettings, progress: Progress
) -> Made:
    form, text = planned.recipe.kv, settings.calibration
    if form is None or text is None:
        return made
    pool = thread_pool(threads_of(settings.threads))
    made = replace(made, solved={**solve_rest(planned, made.solved), **made.solved})
    scales = measure_kv(
        planned,
        made.solved,
        form,
        text,
        pool,
        progress=lambda done, all_: progress("measuring keys and values", done, all_),
    )
    return replace(made, kv_scales=scales, calibration=text.facts)


def _write(planned: QuantizationPlan, out: Path, made: Made, progress: Progress) -> Manifest:
    what, total = "writing" if made.solved else "quantizing", len(planned.tensors)
    done = itertools.count(1)
    return write(planned, out, made, lambda _: progress(what, next(done), total))


def _key(planned: QuantizationPlan, settings: QuantizeSettings) -> WorkKey:
    formats = [f"{t.source.name} {t.slot} {t.format.name} {t.status}" for t in planned.tensors]
    calibration, tuning = settings.calibration, ""
    if planned.recipe.tune is not None:
        text = settings.tuning_text or calibration
        tuning = f"{settings.tuning} on {text.facts.tokens_sha256 if text else ''}"
    return WorkKey(
        plan=hashed(to_json(planned.recipe).decode(), *formats),
        calibration="" if calibration is None else calibration.facts.tokens_sha256,
        inputs=settings.inputs,
        tuning=tuning,
    )
